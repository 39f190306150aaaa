"""Batches of the stream."""

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
    """Inputs, rows first: float32, or uint8 that represents 0 to 1 in 255 steps."""
    y: Tensor
    """Class of each row as an output index of the experts' heads, int64."""

    def __len__(self) -> int:
        return self.y.shape[0]  # faster than the tensor's own len

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        if self.x.device == device == self.y.device:
            return self
        return Batch(self.x.to(device), self.y.to(device))


def as_float(x: Tensor) -> Tensor:
    """Return inputs in the form that the networks expect: uint8 scaled to 0 to 1, floats unchanged.

    >>> as_float(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return x.float().div_(255) if x.dtype == torch.uint8 else x
