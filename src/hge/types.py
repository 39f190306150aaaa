"""What flows through the system: batches of the stream."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """A "sample (x_i, y_i)" of the paper: a few rows that arrived together (docs/paper.md, reading 1).

    >>> batch = Batch(torch.zeros(32, 64), torch.zeros(32, dtype=torch.long))
    >>> len(batch)
    32
    """

    x: Tensor
    """Inputs, float32, rows first."""
    y: Tensor
    """Class of each row as an output index of the experts' heads, int64."""

    def __len__(self) -> int:
        return len(self.y)

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        return Batch(self.x.to(device), self.y.to(device))
