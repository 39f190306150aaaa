"""The base class of scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

UNSUITABLE = 1e30
"""Replaces a score that is not finite."""


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of a score, per row."""

    once: float
    """Independent of the number of experts queried."""
    each: float
    """For each expert queried for the individual row."""
    together: float = 0.0
    """For each expert queried for a batch as a whole, per batch …"""
    each_in_batch: float = 0.0
    """… and per row of that batch."""

    def per_row(self, experts: float, rows: int) -> float:
        """Return the multiply-adds per row of scoring groups of `rows` rows by `experts` experts."""
        return self.once + experts * (self.each if rows == 1 else self.together / rows + self.each_in_batch)


class Score(nn.Module, ABC):
    """How suitable one expert is for an input: lower is better.

    Learning has two parts, `compute_update` and `apply_update`, so that a fast pool can run the first while the expert
    itself is being trained, and mask the second by a flag that never leaves the device. `refresh` follows when it is
    due. All state is in parameters, buffers and the optimiser, and is changed in place.
    """

    optimiser: torch.optim.Optimizer | None = None
    """The optimiser of its network, if there is one."""

    @property
    def asynchronous(self) -> bool:
        """Whether learning does not make the host wait, so that it can be captured in a CUDA graph."""
        return True

    @property
    def capturable(self) -> bool:
        """Whether scoring can be captured, too."""
        return True

    @property
    def network(self) -> nn.Module | None:
        """The network that is trained, if there is one."""
        return None

    @abstractmethod
    def draw_noise(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Return the random numbers that `compute_update` needs for `rows` rows."""

    def finish_deferred(self) -> None:
        """Do the work that this expert, the first, has deferred until there are more rows."""
        return

    def preprocess(self, x: Tensor) -> Tensor:
        """Return preprocessed rows, computed once for learning and for all experts' scores."""
        return x

    @abstractmethod
    def compute_update(self, inputs: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Compute the update from a batch and its labels; scores do not change."""

    @abstractmethod
    def apply_update(self, skip: Tensor) -> None:
        """Apply the update computed by `compute_update`, unless `skip` is 1."""

    @abstractmethod
    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Return whether a refresh is due after `rows` rows, with `at_refresh` rows at the last refresh."""

    @abstractmethod
    def refresh(self, rows: int) -> None:
        """Update the scores from what was learned from `rows` rows, if learning itself does not."""

    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return this expert's own score of each row.

        With `batch_statistics` the rows are known to belong together, and may be normalised by batch statistics;
        without, the score of a row must not depend on the other rows.
        """
        own = {name: tensor[None] for name, tensor in self.gate_tensors().items()}
        return self.stacked(own, self.preprocess(x), batch_statistics=batch_statistics)[0]

    def score_together(self, x: Tensor) -> Tensor:
        """Return this expert's own score of rows that belong together."""
        own = {name: tensor[None] for name, tensor in self.gate_tensors().items()}
        return self.together(own, self.preprocess(x))[0]

    @abstractmethod
    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the multiply-adds of the scores of experts with these stacked gate tensors."""

    def sketch_cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the same for their sketches."""
        return self.cost(tensors)

    @abstractmethod
    def gate_tensors(self) -> dict[str, Tensor]:
        """Return the tensors that `score` reads, by name; the others are only needed for learning."""

    @abstractmethod
    def stacked(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the scores [experts, rows] of preprocessed rows, for experts with stacked gate tensors."""

    def together(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the scores [experts] of rows that belong together, in double precision: the means over the rows."""
        return self.stacked(tensors, inputs, batch_statistics=True).double().mean(1)

    def optimism(self, tensors: Mapping[str, Tensor], rows: int) -> float:
        """Return by how much lower rows that an expert has learned score than new ones, on average; 0: not known.

        `tensors`: the expert's gate tensors, which `rows` rows have led to.
        """
        return 0.0

    def sketches(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, together: bool) -> Tensor:
        """Return cheap scores [experts, rows], or [experts] together, that indicate the best few experts."""
        if together:
            return self.together(tensors, inputs)
        return self.stacked(tensors, inputs, batch_statistics=False)

    def parts(self, gates: Sequence[Mapping[str, Tensor]], x: Tensor) -> list[Tensor]:
        """Return [rows, parts] for each expert, by its gate tensors: the parts of its score; NaN says nothing."""
        stacked = [{name: tensor[None] for name, tensor in tensors.items()} for tensors in gates]
        inputs = self.preprocess(x)
        return [self.stacked(tensors, inputs, batch_statistics=False)[0][:, None] for tensors in stacked]


@dataclass
class ScoreTrainer:
    """A score and its row counts; the plain way to train it."""

    score: Score
    rows: int = 0
    rows_at_refresh: int = 0

    def train(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Train the score on a batch."""
        score = self.score
        score.compute_update(score.preprocess(x), y, score.draw_noise(len(x), generator))
        score.apply_update(skip=torch.zeros((), device=x.device))
        self.rows += len(x)
        if score.refresh_due(self.rows, self.rows_at_refresh):
            self.refresh()

    def refresh(self) -> None:
        """Update the scores from what was learned."""
        self.score.refresh(self.rows)
        self.rows_at_refresh = self.rows
