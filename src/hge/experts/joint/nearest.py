"""Distances of rows to the nearest rows that an expert keeps: evidence that needs no training (docs/paper.md)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

NEIGHBOURS = 3
"""Rows of a class whose mean distance counts."""
SAME = 1e-5
"""Squared distance, relative to the squared lengths, below which two rows are the same one."""


@dataclass(frozen=True)
class KeptRows:
    """Rows that an expert keeps, class by class.

    >>> kept = KeptRows.of(torch.tensor([[0.0], [10.0], [2.0]]), torch.tensor([0, 2, 0]))
    >>> kept.distances(torch.tensor([[1.0], [2.0]]), outputs=3).tolist()
    [[1.0, nan, 9.0], [2.0, nan, 8.0]]
    """

    middle: Tensor
    """[directions] of all rows: far from zero, distances would be lost to rounding."""
    from_middle: Tensor
    """[kept, directions]"""
    squares: Tensor
    """[kept] of the lengths of these."""
    classes: tuple[tuple[int, slice], ...]
    """Each label, and its rows."""

    @classmethod
    def of(cls, positions: Tensor, labels: Tensor) -> KeptRows:
        """Return rows at these positions [kept, directions], sorted by label."""
        order = labels.argsort(stable=True)
        ends = torch.bincount(labels).cumsum(0).tolist()
        classes = ((label, slice(*ends)) for label, ends in enumerate(pairwise([0, *ends])) if ends[0] < ends[1])
        middle = positions.mean(0)
        from_middle = positions[order] - middle
        return cls(middle, from_middle, from_middle.square().sum(1), tuple(classes))

    def distances(self, positions: Tensor, outputs: int) -> Tensor:
        """Return [rows, outputs]: the mean distance to the nearest rows of each class; NaN where there are none.

        A kept row that is the same as the one in question does not count: a row that is kept would be its own
        neighbour, and what is fitted to such rows would not hold for others.
        """
        rows = positions - self.middle
        lengths = rows.square().sum(1)[:, None] + self.squares
        squares = torch.addmm(lengths, rows, self.from_middle.T, alpha=-2).clamp_min_(0)
        squares.masked_fill_(squares <= SAME * lengths, torch.inf)
        found = positions.new_full((len(positions), outputs), torch.nan)
        for label, own_rows in self.classes:
            own = squares[:, own_rows]
            nearest = own.topk(min(NEIGHBOURS, own.shape[1]), largest=False, sorted=False).values.sqrt_()
            found[:, label] = torch.where(nearest.isinf(), torch.nan, nearest).nanmean(1)
        return found
