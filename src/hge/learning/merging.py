"""Two experts of the same task become one, so that a switch that was none heals."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hge.core import events
from hge.experts.pool import lowest_scores
from hge.experts.replay import Expert
from hge.gating.switch_detection import RecentEntry
from hge.learning.training import train_all

if TYPE_CHECKING:
    from hge.learning.learner import Learner

MATURE = 50
"""Batches after which the mean and the deviation of an expert's losses no longer show how it began."""
GROWTH = 1.5
"""The expert in use is compared with others whenever its number of batches has grown by this factor."""
MOST_COMPARED = 16
"""Number of experts that it is compared with; of more, those with the lowest scores on its replay."""
LOST = 0.1
"""Largest increase of the loss that is tolerated, as a share of the loss of guessing among the labels."""


class Merging:
    """Merges an expert into the expert in use if that one explains its whole replay (an upkeep).

    The other one's weights are not needed then: whatever it was trained on, the expert in use knows. It keeps its
    number, so that all others keep theirs, and is never asked again.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.in_use = 0
        """The expert in use after the last batch."""
        self.due: dict[int, int] = {}
        """By expert: number of batches at which it is compared with others."""

    def batches_until_due(self, experts: int, trained: int) -> int:
        """Return how many batches the expert in use can be trained on before it is compared with others."""
        used = self.learner.experts[self.learner.last_used]
        return max(0, self.due.get(used.id, MATURE) - used.losses.count) if used.id == self.in_use else 0

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Compare the expert in use with its nearest ones if that is due, else with the one in use before it."""
        used, before = self.learner.experts[self.learner.last_used], self.learner.experts[self.in_use]
        self.in_use = used.id
        if used.losses.count < MATURE:
            return
        if used.losses.count >= self.due.get(used.id, MATURE):
            self.due[used.id] = round(GROWTH * used.losses.count)
            others = self._nearest(used)
        else:
            others = [before] if before is not used else []
        for other in others:
            loss = self._loss_if_explained(used, other)
            if loss is not None:
                self._merge(other, used, loss)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"in_use": self.in_use, "due": [[expert, batches] for expert, batches in self.due.items()]}

    def load_state(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.in_use, self.due = facts["in_use"], {int(expert): int(batches) for expert, batches in facts["due"]}

    def _nearest(self, used: Expert) -> list[Expert]:
        """Return the other experts or, if there are many, those that the gate would choose next for its replay."""
        others = [expert for expert in self.learner.active if expert is not used]
        batches = [old.batch.x for old in used.replay.kept]
        near = lowest_scores(self.learner.pool, [other.id for other in others], batches, MOST_COMPARED)
        return [self.learner.experts[expert] for expert in near]

    def _loss_if_explained(self, expert: Expert, other: Expert) -> float | None:
        """Return the expert's mean loss on the other's replay if it explains all of it; None if it does not.

        It must accept every batch. That is not enough, since its bound is wide after a batch of another task: it must
        also predict the labels almost as well as each of the two predicts those of its own replay, and the gate must
        choose it for every batch once the other is gone.
        """
        kept, bound, pool = other.replay.kept, expert.losses.bound(self.learner.config.epsilon), self.learner.pool
        if not kept or not all(expert.labels.admits(old.batch.y.tolist()) for old in kept):
            return None
        losses = []
        for old in kept:
            losses.append(pool.loss(expert.id, old.batch, old.step))
            if not losses[-1] <= bound:
                return None
        left = [e.id for e in self.learner.active if e is not other]
        if any(left[int(pool.batch_scores(left, old.batch.x).argmin())] != expert.id for old in kept):
            return None
        own = min(fmean(pool.loss(e.id, old.batch, old.step) for old in e.replay.kept) for e in (expert, other))
        labels = {label for old in kept for label in old.batch.y.tolist()}
        return fmean(losses) if fmean(losses) - own <= LOST * log(max(2, len(labels))) else None

    def _merge(self, other: Expert, into: Expert, loss: float) -> None:
        """Train an expert on another one's replay, and put it in the other's place."""
        learner, recent = self.learner, self.learner.recent
        learner.emit(events.ExpertsMerged(learner.steps, into.id, other.id, loss))
        train_all(learner, into, [RecentEntry(old.step, old.batch) for old in other.replay.kept])
        other.replay.kept, other.merged_into = [], into.id
        learner.organisation.merged(other.id, into.id)
        if learner.memory is not None:
            learner.memory.merged(other.id, into.id)
        recent.previous_expert = into.id if recent.previous_expert == other.id else recent.previous_expert
        for entry in recent:
            entry.expert = into.id if entry.expert == other.id else entry.expert
            entry.refused_by = into.id if entry.refused_by == other.id else entry.refused_by
