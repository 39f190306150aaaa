"""Prediction: the expert of a row, its confidence and its class probabilities. Never modifies the learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hge.experts.joint.calibration import Calibration
from hge.experts.pool import ExpertPool, class_probabilities, scorer, sketcher
from hge.experts.scores import UNSUITABLE
from hge.gating.tree import FloatArray, IntArray, Routes
from hge.learning.online import Routing
from hge.learning.window_routing import follow

if TYPE_CHECKING:
    from hge.learning.learner import Learner

ROWS_AT_ONCE = 1024
"""Number of rows scored at once; bounds the memory needed for a large X."""


NEGLIGIBLE = 1e-3
"""Experts of a lower probability, relative to that of the most probable one, are not asked about a row."""
NOT_IN_THE_TREE = -1
"""Node reported for a newcomer, which is not in the tree."""


@dataclass
class Answerer:
    """Routes rows to experts and returns the experts' class probabilities."""

    learner: Learner
    _replay_scores: dict[tuple[int, int], tuple[tuple[int, ...], FloatArray]] = field(default_factory=dict)

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose an expert per row, independently of the other rows, or one for all rows (`routing="batch"`).

        `routing="stream"` starts from the expert in use (`gating/stream_belief.py`). `routing="window"` treats the rows
        as consecutive rows of a stream that seldom changes (`window_routing.py`).

        The gate chooses among the promoted experts. A newcomer then takes over a row if the difference between its
        score and the chosen expert's is below a threshold, set from that difference on the replay of both.
        """
        if routing == "stream" and self.learner.memory is not None and self.calibration is None:
            belief = self._belief(x)
            with np.errstate(divide="ignore"):
                scores = -np.log(belief[:-1])
            return Routes(*self._places(scores), scores)
        if routing == "window":
            alone = self.route(x, "sample")
            scores = follow(np.where(np.isfinite(alone.scores), alone.scores, UNSUITABLE))
            return Routes(*self._places(scores), scores)
        if routing == "batch":
            return self._route(x, one_group=True)
        parts = [self._route(part, one_group=False) for part in torch.split(x, ROWS_AT_ONCE)]
        return Routes(
            np.concatenate([p.expert for p in parts]),
            np.concatenate([p.node for p in parts]),
            np.concatenate([p.scores for p in parts], axis=1),
        )

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the chosen expert's softmax over the first `outputs` outputs.

        If rows were routed one by one by the joint score, whose scores are probabilities of the experts, those of all
        experts that may be the right one are weighted by them: a row between two experts is not a certain one.
        """
        weights = np.zeros((len(routes.scores), len(x)))
        if self.calibration is not None and routes.scores.shape[1] == len(x):
            weights[:] = np.exp(-routes.scores)
            weights[weights < NEGLIGIBLE * weights.max(axis=0)] = 0.0
        else:
            weights[np.broadcast_to(routes.expert, len(x)), np.arange(len(x))] = 1.0
        weights /= weights.sum(axis=0)
        result = np.zeros((len(x), outputs))
        for e in np.flatnonzero(weights.any(axis=1)):
            rows = np.flatnonzero(weights[e])
            for part in np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)):
                result[part] += weights[e, part, None] * self._of_expert(int(e), x[torch.from_numpy(part)], outputs)
        return self._completed(result, x) if routes.scores.shape[1] == len(x) else result

    def _completed(self, probabilities: FloatArray, x: Tensor) -> FloatArray:
        """Return class probabilities of rows that were routed one by one, with the opinion of the discriminant."""
        own = self.learner.discriminant
        return probabilities if own is None else own.with_opinion(probabilities, x)

    def _of_expert(self, expert: int, x: Tensor, outputs: int) -> FloatArray:
        """Return [rows, outputs]: one expert's class probabilities, with those of its companions if it has any."""
        pool, memory = self.learner.pool, self.learner.memory
        x = x.to(pool.device)
        if memory is not None:
            return memory.probabilities(expert, x, outputs)
        return class_probabilities(pool, expert, x, outputs)

    @property
    def weighs_all_experts(self) -> bool:
        """Whether `stream_probabilities` is available: there is a memory, and no joint score."""
        return self.learner.memory is not None and self.learner.calibration is None

    def stream_probabilities(self, x: Tensor, outputs: int) -> FloatArray:
        """Return [rows, outputs]: class probabilities of all experts, weighted by the belief in each."""
        learner, memory, belief = self.learner, self.learner.memory, self._belief(x)
        assert memory is not None
        aside = cache(lambda: memory.rows_aside(learner.recent, learner.experts[learner.last_used]))
        return np.concatenate(
            [memory.mixture(x[part].to(learner.pool.device), belief[:, part], outputs, aside) for part in slices_of(x)]
        )

    def _belief(self, x: Tensor) -> FloatArray:
        """Return [experts + 1, rows]: the belief that each row belongs to each expert, or to the rows set aside."""
        memory, experts, device = self.learner.memory, len(self.learner.experts), self.learner.pool.device
        assert memory is not None
        choices = [memory.choices(x[part].to(device), experts) for part in slices_of(x)]
        unlike = None
        if memory.belief.switched:
            unlike = np.concatenate([memory.unlike_learned(x[part], self.learner.recent) for part in slices_of(x)])
        return memory.belief.posterior(np.concatenate(choices, axis=1), experts, unlike)

    def mixture(self, x: Tensor, outputs: int) -> FloatArray:
        """Return [rows, outputs]: class probabilities of the mixture of all experts; requires the joint score."""
        if self.calibration is None or self.calibration.joint is None:
            raise ValueError("mixture: got a learner without a joint score, expected learner.joint=true")
        joint, device = self.calibration.joint, self.learner.pool.device
        parts = [self.calibration.evidence(part.to(device)) for part in torch.split(x, ROWS_AT_ONCE)]
        silent = [] if self.learner.config.newcomers_answer else self.learner.newcomers
        return self._completed(np.concatenate([joint.mixture(evidence, outputs, silent) for evidence in parts]), x)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of the joint score, if there is one and it has been fitted."""
        found = self.learner.calibration
        return None if found is None or found.joint is None else found

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return the gate's multiply-adds per row, if it queries `asked` experts for groups of `rows` rows."""
        costs, experts = self.learner.pool.costs(), len(self.learner.experts)
        shortlist = self.learner.shortlist is not None
        looked = costs.sketch.per_row(experts, rows) if shortlist else 0.0
        if self.calibration is None:
            return looked + costs.score.per_row(asked, rows)
        each = costs.network + costs.score.each + self.calibration.multiply_adds
        return looked + costs.score.once + asked * each

    def confidence(self, routes: Routes, routing: Routing) -> FloatArray:
        """Return [groups]: softmax of the queried experts' negative scores, in units of the chosen one's spread.

        The spread is the standard deviation of single-row scores on the expert's replay, also for batches. The joint
        score, the window score and the belief of "stream" are already probabilities.
        """
        chosen = routes.expert
        by_belief = routing == "stream" and self.learner.memory is not None
        if self.calibration is not None or routing == "window" or by_belief:
            probability: FloatArray = np.exp(-routes.scores[chosen, np.arange(len(chosen))])
            return probability
        spreads = {int(e): max(float(self.scores_on_replay(int(e), int(e)).std()), 1e-12) for e in np.unique(chosen)}
        spread = np.array([spreads[int(e)] for e in chosen])
        advantage = (routes.scores[chosen, np.arange(len(chosen))] - routes.scores) / spread
        confidence: FloatArray = 1 / np.exp(np.minimum(advantage, 500.0)).sum(axis=0)
        return confidence

    def _route(self, x: Tensor, *, one_group: bool) -> Routes:
        learner, x = self.learner, x.to(self.learner.pool.device)
        if self.calibration is not None:
            return self._route_jointly(self.calibration, x, one_group=one_group)

        some = learner.organisation.shortlist is not None
        score = scorer(learner.pool, len(learner.experts), x, one_group=one_group, some=some)
        sketch = sketcher(learner.pool, x, one_group=one_group)
        groups, rows = (1, len(x)) if one_group else (len(x), 1)
        routes = learner.organisation.route(score, sketch, groups, rows_per_group=rows)
        if not (learner.config.newcomers_answer and learner.newcomers):
            return routes
        newcomers = learner.newcomers
        scores = np.full((len(learner.experts), groups), np.inf)
        scores[: len(routes.scores)] = routes.scores
        scores[newcomers] = score(newcomers, np.arange(groups))
        return self._let_newcomers_take_over(routes, scores, newcomers)

    def _route_jointly(self, calibration: Calibration, x: Tensor, *, one_group: bool) -> Routes:
        """Query all experts (also newcomers) or the shortlist; a group's score is the mean of -log P(expert | row)."""
        scores = -calibration.log_probabilities(x, self._asked(calibration.known, x, one_group=one_group))
        if one_group:
            scores = scores.mean(axis=1, keepdims=True)
        if not self.learner.config.newcomers_answer:
            scores[self.learner.newcomers] = np.inf
        return Routes(*self._places(scores), scores)

    def _asked(self, experts: int, x: Tensor, *, one_group: bool) -> npt.NDArray[np.bool_] | None:
        """Return [experts, rows]: which of the first experts are on the shortlist; None if there is no shortlist."""
        learner = self.learner
        if learner.shortlist is None:
            return None
        sketches = learner.pool.sketches(range(experts), x, together=one_group)
        if one_group:
            chosen = learner.shortlist.choose(sketches[:, None], len(x))
            return np.broadcast_to(chosen, (len(chosen), len(x)))
        return learner.shortlist.choose(sketches, 1)

    def _places(self, scores: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the experts with the lowest scores, and their tree nodes."""
        expert: IntArray = scores.argmin(axis=0)
        place = {node.expert: number for number, node in reversed(list(enumerate(self.learner.tree.nodes))[1:])}
        return expert, np.array([place.get(int(e), NOT_IN_THE_TREE) for e in expert])

    def _let_newcomers_take_over(self, routes: Routes, scores: FloatArray, newcomers: list[int]) -> Routes:
        """Reassign to each newcomer in turn the groups on which it beats the expert chosen so far."""
        holder, node = routes.expert.copy(), routes.node.copy()
        for newcomer in newcomers:
            for held in np.unique(holder):
                groups = np.flatnonzero(holder == held)
                difference = scores[newcomer, groups] - scores[held, groups]
                won = groups[difference < self._threshold(newcomer, int(held))]
                holder[won], node[won] = newcomer, NOT_IN_THE_TREE
        return Routes(holder, node, scores)

    def _threshold(self, newcomer: int, holder: int) -> float:
        """Return the score difference (newcomer - holder) below which a row goes to the newcomer.

        It is equally many standard deviations from the mean difference on the newcomer's replay and on the holder's.
        """
        own, other = (
            self.scores_on_replay(newcomer, owner) - self.scores_on_replay(holder, owner)
            for owner in (newcomer, holder)
        )
        if not own.mean() < other.mean():
            return -np.inf  # the replays do not separate the two: the holder keeps the row
        own_spread, other_spread = (max(float(d.std()), 1e-12) for d in (own, other))
        return float(own.mean() * other_spread + other.mean() * own_spread) / (own_spread + other_spread)

    def scores_on_replay(self, expert: int, owner: int) -> FloatArray:
        """Return the expert's scores for the rows in the owner's replay; cached until either is trained again."""
        experts, key = self.learner.experts, (expert, owner)
        version = experts[expert].batches_trained, experts[owner].batches_trained, self.learner.pool.space.fixed
        if key not in self._replay_scores or self._replay_scores[key][0] != version:
            kept = experts[owner].replay.kept
            rows = [self.learner.pool.scores([expert], b.batch.x)[0] for b in kept]
            self._replay_scores[key] = version, np.concatenate([*rows, np.zeros(0 if rows else 1)])
        return self._replay_scores[key][1]


def slices_of(x: Tensor) -> list[slice]:
    """Return the parts of rows that are predicted at once."""
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, len(x), ROWS_AT_ONCE)]


def ask(pool: ExpertPool, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
    """Return [rows, outputs]: the softmax of each row's chosen expert over the first `outputs` outputs."""
    expert = np.broadcast_to(routes.expert, len(x))
    result = np.zeros((len(x), outputs))
    for e in np.unique(expert):
        rows = np.flatnonzero(expert == e)
        for part in np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)):
            result[part] = class_probabilities(pool, int(e), x[torch.from_numpy(part)], outputs)
    return result
