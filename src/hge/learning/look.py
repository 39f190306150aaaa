"""An expert's loss on a batch, compared with the expert's bound."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, nan

import numpy as np

from hge.experts.replay import Expert
from hge.gating.tree import ScoreExperts

ONE_GROUP = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Look:
    """An expert's loss, bound and score for a batch, before any training."""

    expert: Expert
    loss: float
    bound: float
    admitted: bool = True
    """Whether its labels are those that the expert was trained on, as far as labels count as evidence."""
    score: float = nan
    """The expert's score for the batch, if the gate computed it."""
    path: tuple[int, ...] = ()
    """The expert's path in the tree, if the gate was evaluated."""
    ask: ScoreExperts | None = None
    """Function that scores the same batch with other experts, if the gate was evaluated."""
    queried: int = 0
    """Number of experts that the gate queried."""

    @property
    def accepts(self) -> bool:
        """Whether the loss is within the expert's bound, and the labels are not new to it."""
        return self.admitted and self.loss <= self.bound

    @property
    def misfit(self) -> float:
        """The loss as a key for ranking experts; infinite if the loss is not finite."""
        return self.loss if isfinite(self.loss) else inf

    def scores_above(self, other: int) -> bool:
        """Return whether the score is above another expert's for the same batch; requires `ask` and `score`."""
        assert self.ask is not None
        return bool(self.ask([other], ONE_GROUP)[0, 0] < self.score)
