"""GE_forward and its neighbours: which expert is offered a batch in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hge.core.types import Batch
from hge.experts.pool import lowest_scores, scorer, sketcher
from hge.gating.switch_detection import RecentEntry
from hge.gating.tree import Routes, ScoreExperts
from hge.learning.stream_memory import YOUNG
from hge.learning.training import Look, look

if TYPE_CHECKING:
    from hge.learning.learner import Learner

MOST_ASKED = 40
"""Number of experts whose losses on a refused batch are computed; of more, those that the gate prefers."""


def forward(learner: Learner, entry: RecentEntry[Batch]) -> Look:
    """GE_forward: the promoted expert with the lowest score or, if sticky, the last-used one while it accepts."""
    last = None
    if learner.config.sticky and learner.last_used not in learner.newcomers:
        last = look(learner, learner.last_used, entry)
        if last.accepts and not last.expert.knows_nothing:
            young = learner.memory is not None and last.expert.losses.count < YOUNG
            return _older_if_better(learner, last, entry) if young else last
    routes, ask = gate(learner, entry)
    best, learner.last_node = int(routes.expert[0]), int(routes.node[0])
    chosen = last if last is not None and last.expert.id == best else look(learner, best, entry)
    score, path = float(routes.scores[best, 0]), learner.tree.path(learner.last_node)
    return replace(chosen, score=score, path=path, ask=ask, queried=int(routes.queried[0]))


def _older_if_better(learner: Learner, young: Look, entry: RecentEntry[Batch]) -> Look:
    """Return the gate's choice instead of a young expert if its loss is lower, too.

    Otherwise the young expert would learn a task that came back, since its bound is still wide, and forget its own.
    """
    older = int(gate(learner, entry)[0].expert[0])
    if older == young.expert.id:
        return young
    found = look(learner, older, entry)
    return found if found.accepts and found.loss < young.loss else young


def gate(learner: Learner, entry: RecentEntry[Batch]) -> tuple[Routes, ScoreExperts]:
    """Route a batch as one group, by its mean score; also return the scoring function."""
    x, some = entry.batch.x, learner.organisation.shortlist is not None
    score = scorer(learner.pool, len(learner.experts), x, one_group=True, some=some)
    sketch = sketcher(learner.pool, x, one_group=True)
    routes = learner.organisation.route(score, sketch, 1, rows_per_group=len(x))
    learner.evaluations["gate"] += int(routes.queried[0])
    return routes, score


def better_informed(learner: Learner, look: Look, entry: RecentEntry[Batch]) -> Look:
    """Return the same, unless its expert knows nothing, so that any batch is within its bound, and another does."""
    if not look.expert.knows_nothing:
        return look
    others = [e.id for e in learner.experts if e.losses.count > 1 and e.merged_into is None and not e.knows_nothing]
    return accepting(learner, others, entry) or look


def nearest_experts(learner: Learner, entry: RecentEntry[Batch]) -> Sequence[int]:
    """Return the promoted experts or, if there are many, those with the lowest scores."""
    return lowest_scores(learner.pool, learner.tree.experts, [entry.batch.x], MOST_ASKED)


def accepting(learner: Learner, experts: Iterable[int], entry: RecentEntry[Batch]) -> Look | None:
    """Return the expert with the lowest loss among those that accept the batch; None if there is none."""
    looks = [look(learner, expert, entry) for expert in experts]
    return min((look for look in looks if look.accepts), key=lambda look: look.loss, default=None)
