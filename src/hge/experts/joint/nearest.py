"""Distances of rows to the nearest rows that an expert keeps: evidence that needs no training (docs/paper.md)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

NEIGHBOURS = 3
"""Rows of a class whose mean distance counts."""
SAME = 1e-5
"""Squared distance, relative to the squared lengths, below which two rows are the same one."""


@dataclass(frozen=True)
class KeptRows:
    """Rows and labels that an expert keeps.

    >>> kept = KeptRows(torch.tensor([[0.0], [2.0], [10.0]]), torch.tensor([0, 0, 2]))
    >>> kept.distances(torch.tensor([[1.0], [2.0]]), outputs=3).tolist()
    [[1.0, nan, 9.0], [2.0, nan, 8.0]]
    """

    positions: Tensor
    """[kept, directions]"""
    labels: Tensor

    def distances(self, positions: Tensor, outputs: int) -> Tensor:
        """Return [rows, outputs]: the mean distance to the nearest rows of each class; NaN where there are none.

        A kept row that is the same as the one in question does not count: a row that is kept would be its own
        neighbour, and what is fitted to such rows would not hold for others.
        """
        middle = self.positions.mean(0)  # far from zero, distances would be lost to rounding
        rows, kept = positions - middle, self.positions - middle
        lengths = rows.square().sum(1)[:, None] + kept.square().sum(1)
        squares = (lengths - 2 * rows @ kept.T).clamp_min_(0)
        squares[squares <= SAME * lengths] = torch.inf
        found = positions.new_full((len(positions), outputs), torch.nan)
        for label in set(self.labels.tolist()):
            own = squares[:, self.labels == label]
            nearest = own.topk(min(NEIGHBOURS, own.shape[1]), largest=False, sorted=False).values.sqrt_()
            found[:, label] = torch.where(nearest.isinf(), torch.nan, nearest).nanmean(1)
        return found
