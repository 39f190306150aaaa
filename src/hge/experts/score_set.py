"""The scores of all experts of a pool that queries them one after the other, and the space that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hge.core.types import as_float
from hge.experts.optim import arithmetic, autocast
from hge.experts.pool_spec import PoolSpec
from hge.experts.scores import UNSUITABLE, Cost, Score, ScoreTrainer
from hge.gating.tree import FloatArray


class ScoreSet:
    """One score per expert, queried in turn."""

    def __init__(self, spec: PoolSpec, device: torch.device) -> None:
        self.precision, self.device = spec.precision, device
        self.space = spec.build_space(device)
        self.trainers: list[ScoreTrainer] = []

    def add(self, score: Score) -> ScoreTrainer:
        """Add the score of the next expert."""
        self.trainers.append(ScoreTrainer(score))
        return self.trainers[-1]

    def finish_deferred(self) -> None:
        """Fix the sketches' space."""
        if self.space.first_rows:
            trainer = self.trainers[self.space.owner]
            trainer.score.finish_deferred()
            trainer.refresh()

    def prepare(self, expert: int) -> None:
        """Fix the sketches' space if its first rows belong to another expert than the one to be trained."""
        if self.space.has_rows_of_another(expert):
            self.finish_deferred()
        self.space.owner = expert

    def train(self, expert: int, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Train an expert's score on a batch."""
        with self._computing():
            self.trainers[expert].train(as_float(x), y, generator)

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts, rows] of individual rows."""
        return self._query(experts, lambda score: score.score(as_float(x), batch_statistics=False))

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts] of a batch as a whole."""
        return self._query(experts, lambda score: score.score_together(as_float(x)))

    def optimism(self, expert: int) -> float:
        """Return by how much lower rows that an expert has learned score than new ones."""
        trainer = self.trainers[expert]
        return trainer.score.optimism(trainer.score.gate_tensors(), trainer.rows_at_refresh)

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Return cheap scores [experts, rows], or [experts] for all rows together."""

        def sketch(score: Score) -> Tensor:
            own = {name: tensor[None] for name, tensor in score.gate_tensors().items()}
            return score.sketches(own, score.preprocess(as_float(x)), together=together)[0]

        return self._query(experts, sketch)

    def costs(self) -> tuple[Cost, Cost]:
        """Count the multiply-adds of scores and of sketches."""
        first, gates = self.trainers[0].score, [trainer.score.gate_tensors() for trainer in self.trainers]
        stacked = {name: torch.stack([own[name].detach() for own in gates]) for name in gates[0]}
        return first.cost(stacked), first.sketch_cost(stacked)

    @torch.no_grad()
    def _query(self, experts: Sequence[int], evaluate: Callable[[Score], Tensor]) -> FloatArray:
        with self._computing():
            scores = torch.stack([evaluate(self.trainers[e].score) for e in experts]).double()
        return np.asarray(scores.nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE).cpu())

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with arithmetic(self.precision, self.device), autocast(self.precision, self.device):
            yield
