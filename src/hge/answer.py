"""Answering: which expert speaks for a row, how surely, and what it says. Reads the learner, never changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from hge.gate import FloatArray, IntArray, Routes
from hge.learner import Learner

Routing = Literal["sample", "batch"]

ROWS_AT_ONCE = 1024
"""Rows that are scored in one go; bounds the memory that a large X needs."""


@dataclass(frozen=True)
class Yardstick:
    """Mean and spread of an expert's per-row scores on its own replay: what is a usual score for it?"""

    mean: float
    spread: float


@dataclass
class Answerer:
    """Routes rows to experts and asks those for class probabilities."""

    learner: Learner
    _yardsticks: dict[tuple[int, bool], tuple[int, Yardstick]] = field(default_factory=dict)

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose an expert per row, independently of the rows beside it, or one for all rows (`routing="batch"`).

        The gate chooses among the promoted experts. A newcomer then takes a row over if, by the yardstick of its own
        replay, the row suits it better than it suits the gate's choice: their raw scores are not comparable yet, or
        it would have been promoted. Without newcomers nothing is changed.
        """
        if routing == "batch":
            return self._route(x, batch_statistics=True)
        parts = [self._route(part, batch_statistics=False) for part in torch.split(x, ROWS_AT_ONCE)]
        return Routes(
            np.concatenate([p.expert for p in parts]),
            np.concatenate([p.node for p in parts]),
            np.concatenate([p.scores for p in parts], axis=1),
        )

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the chosen expert's softmax over the first `outputs` outputs."""
        expert = np.broadcast_to(routes.expert, len(x))
        result = np.zeros((len(x), outputs))
        for e in np.unique(expert):
            rows = np.flatnonzero(expert == e)
            for part in np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)):
                logits = self.learner.pool.logits(int(e), x[torch.from_numpy(part)].to(self.learner.pool.device))
                result[part] = logits[:, :outputs].double().softmax(dim=1).cpu().numpy()
        return result

    def confidence(self, routes: Routes, routing: Routing) -> FloatArray:
        """Return [groups]: softmax of the negative scores of all asked experts, in spreads of the chosen one's own."""
        chosen = routes.expert
        spread = np.array([self._yardstick(int(e), routing == "batch").spread for e in chosen])
        advantage = (routes.scores[chosen, np.arange(len(chosen))] - routes.scores) / spread
        confidence: FloatArray = 1 / np.exp(np.minimum(advantage, 500.0)).sum(axis=0)
        return confidence

    def _route(self, x: Tensor, *, batch_statistics: bool) -> Routes:
        learner, x = self.learner, x.to(self.learner.pool.device)

        def score(ids: list[int] | tuple[int, ...]) -> FloatArray:
            rows = learner.pool.scores(ids, x, batch_statistics=batch_statistics)
            return rows.mean(axis=1, keepdims=True) if batch_statistics else rows

        routes = learner.tree.select(score)  # type: ignore[arg-type]
        if not (learner.config.newcomers_answer and learner.newcomers):
            return routes
        newcomers = list(learner.newcomers)
        scores = np.full((len(learner.experts), len(routes.expert)), np.inf)
        scores[: len(routes.scores)] = routes.scores
        scores[newcomers] = score(newcomers)
        return self._contest(routes, scores, newcomers, batch_statistics)

    def _contest(self, routes: Routes, scores: FloatArray, newcomers: list[int], batch_statistics: bool) -> Routes:
        """Let newcomers take over what suits them better, each score measured by its expert's own yardstick."""
        groups = np.arange(len(routes.expert))
        candidates = np.vstack([routes.expert, *(np.full(len(groups), n) for n in newcomers)])
        yardsticks = {int(e): self._yardstick(int(e), batch_statistics) for e in np.unique(candidates)}
        mean = np.vectorize(lambda e: yardsticks[e].mean)(candidates)
        spread = np.vectorize(lambda e: yardsticks[e].spread)(candidates)
        standardised = (scores[candidates, groups] - mean) / spread
        winner: IntArray = candidates[standardised.argmin(axis=0), groups]
        return Routes(winner, np.where(winner == routes.expert, routes.node, -1), scores)

    def _yardstick(self, expert: int, batch_statistics: bool) -> Yardstick:
        """Return the expert's yardstick, from memory unless it was trained since."""
        trained, key = self.learner.experts[expert].batches_trained, (expert, batch_statistics)
        if key not in self._yardsticks or self._yardsticks[key][0] != trained:
            pool, replay = self.learner.pool, self.learner.experts[expert].replay.batches
            own = [pool.scores([expert], b.x, batch_statistics=batch_statistics)[0] for b in replay]
            rows = np.concatenate(own) if own else np.zeros(1)
            self._yardsticks[key] = trained, Yardstick(float(rows.mean()), max(float(rows.std()), 1e-12))
        return self._yardsticks[key][1]
