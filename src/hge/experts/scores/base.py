"""What a score is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

UNSUITABLE = 1e30
"""Stands for a score that is not a number."""


@dataclass(frozen=True)
class Cost:
    """Multiply-adds of a score, per row."""

    once: float
    """Whoever is asked,"""
    each: float
    """and for each expert that is asked about the row by itself;"""
    together: float
    """or, if it is asked about a batch as a whole, for the batch."""


class Score(nn.Module, ABC):
    """How suitable one expert is for an input: lower is better.

    Learning is in two parts, `study` and `learn`, so that a fast pool can do the first while the expert itself is
    being trained, and mask the second by a number that never leaves the device. Then comes `refresh`, where it is due.
    All state is in parameters, buffers and the optimiser, and is changed in place.
    """

    optimiser: torch.optim.Optimizer | None = None
    """The optimiser of its network, if there is one."""

    @property
    def asynchronous(self) -> bool:
        """Learning does not make the host wait, so that a CUDA graph can hold it."""
        return True

    @property
    def capturable(self) -> bool:
        """Scoring does not, either."""
        return True

    @property
    def network(self) -> nn.Module | None:
        """The network that is trained, if there is one."""
        return None

    @abstractmethod
    def draw(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Return the random numbers that `study` takes for so many rows."""

    def open(self) -> None:
        """Do now whatever this expert, the first, has put off until there are more rows."""
        return

    def read(self, x: Tensor) -> Tensor:
        """Return rows as the score looks at them: made once, for learning and for all experts' scores."""
        return x

    @abstractmethod
    def study(self, seen: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Work out what a batch and its labels teach; scores stay as they are."""

    @abstractmethod
    def learn(self, skip: Tensor) -> None:
        """Take in the batch that was studied, unless `skip` is 1."""

    @abstractmethod
    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Say whether to refresh, now that so many rows have been learned, and so many at the last refresh."""

    @abstractmethod
    def refresh(self, rows: int) -> None:
        """Let what was learned, from so many rows, show in the scores, where learning itself does not."""

    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return this expert's own score of each row.

        With `batch_statistics` the rows are known to belong together, and may be normalised by each other; without,
        the score of a row must not depend on the rows beside it.
        """
        own = {name: tensor[None] for name, tensor in self.gate_tensors().items()}
        return self.stacked(own, self.read(x), batch_statistics=batch_statistics)[0]

    def score_together(self, x: Tensor) -> Tensor:
        """Return this expert's own score of rows that belong together."""
        own = {name: tensor[None] for name, tensor in self.gate_tensors().items()}
        return self.together(own, self.read(x))[0]

    @abstractmethod
    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count what the scores of experts with these stacked gate tensors take."""

    def sketch_cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the same for their sketches."""
        return self.cost(tensors)

    @abstractmethod
    def gate_tensors(self) -> dict[str, Tensor]:
        """Return what `score` reads, by name; the rest is needed for learning only."""

    @abstractmethod
    def stacked(self, tensors: Mapping[str, Tensor], seen: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the scores [experts, rows] of several experts, whose gate tensors are stacked, of rows as read."""

    def together(self, tensors: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """Return the scores [experts] of rows that belong together, in double: the means of their own."""
        return self.stacked(tensors, seen, batch_statistics=True).double().mean(1)

    def sketches(self, tensors: Mapping[str, Tensor], seen: Tensor, *, together: bool) -> Tensor:
        """Return cheap scores [experts, rows], or [experts] together, by which the best few can be told."""
        if together:
            return self.together(tensors, seen)
        return self.stacked(tensors, seen, batch_statistics=False)

    def parts(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return [rows, parts]: what the score of an expert with these gate tensors is made of; NaN says nothing."""
        stacked = {name: tensor[None] for name, tensor in tensors.items()}
        return self.stacked(stacked, self.read(x), batch_statistics=False)[0][:, None]


@dataclass
class Pupil:
    """A score and what it has seen; teaches it in the plain way."""

    score: Score
    rows: int = 0
    rows_at_refresh: int = 0

    def teach(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Let the score learn a batch."""
        score = self.score
        score.study(score.read(x), y, score.draw(len(x), generator))
        score.learn(skip=torch.zeros((), device=x.device))
        self.rows += len(x)
        if score.refresh_due(self.rows, self.rows_at_refresh):
            self.refresh()

    def refresh(self) -> None:
        """Let what was learned show in the scores."""
        self.score.refresh(self.rows)
        self.rows_at_refresh = self.rows
