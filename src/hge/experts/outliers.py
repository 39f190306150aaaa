"""Rows that are no data, such as one in other units or of codes for missing values: what they may do in training."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LENGTH = 10.0
"""Longest row, in median lengths of the rows in its batch."""


def far_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return [rows]: which rows of a batch are too long, and the factors that shorten them to the limit."""
    length = torch.linalg.vector_norm(x.flatten(1), dim=1)
    median = length.median()
    limit = torch.where(median > 0, MAX_LENGTH * median, torch.inf)
    return length > limit, limit / length


def shortened(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows, those that are too long shortened to the limit, and how many these are.

    Inputs that an expert does not standardise are of about the same length. A row of another scale would undo in one
    step what was learned.

    >>> x, count = shortened(torch.tensor([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0], [-999.0, 0.0]]))
    >>> x.tolist(), int(count)
    ([[3.0, 4.0], [0.0, 5.0], [0.0, 0.0], [-50.0, 0.0]], 1)
    """
    far, factor = far_rows(x)
    wide = (-1, *(1 for _ in x.shape[1:]))
    return torch.where(far.view(wide), x * factor.view(wide), x), far.sum().float()
