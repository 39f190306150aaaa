"""The loss of a batch on an expert, held against the expert's bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan

import numpy as np

from hge.experts.replay import Expert
from hge.gating.tree import ScoreExperts

ONE_GROUP = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Look:
    """A look at a batch, before anything is trained."""

    expert: Expert
    loss: float
    bound: float
    score: float = nan
    """The expert's score of the batch, where the gate computed it."""
    path: tuple[int, ...] = ()
    """The expert's path in the tree, where the gate followed it."""
    ask: ScoreExperts | None = None
    """Returns other experts' scores of the same batch, where the gate was asked."""
    queried: int = 0
    """Number of experts that the gate asked."""

    @property
    def accepts(self) -> bool:
        """The loss is within the expert's bound."""
        return self.loss <= self.bound

    @property
    def misfit(self) -> float:
        """The loss, to compare experts by; what is not a number fits worst."""
        return self.loss if isfinite(self.loss) else inf

    def scores_above(self, other: int) -> bool:
        """Compare with another expert's score of the same batch; needs a look that the gate led to."""
        assert self.ask is not None
        return bool(self.ask([other], ONE_GROUP)[0, 0] < self.score)
