"""Flips and crops of images, by numbers that are drawn outside: the same numbers, the same images."""

from __future__ import annotations

import torch
from torch import Tensor

PADDING = 4
"""Pixels by which a crop may move an image, either way."""


def draw_changes(rows: int, generator: torch.Generator) -> Tensor:
    """Return [rows, 3] whole numbers that say how each image is changed: flipped or not, moved down, moved right."""
    most = torch.tensor([2, 2 * PADDING + 1, 2 * PADDING + 1], device=generator.device)
    uniform = torch.rand(rows, 3, generator=generator, device=generator.device)
    return (uniform * most).long().clamp_max(most - 1)


def flip_and_crop(x: Tensor, changes: Tensor | None) -> Tensor:
    """Return the images [rows, channels, height, width], flipped and moved; what comes in from outside is 0.

    Without changes, whatever it is stays as it is.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> flip_and_crop(image, torch.tensor([[1, PADDING, PADDING]]))[0, 0].tolist()  # flipped, not moved
    [[2.0, 1.0], [4.0, 3.0]]
    >>> flip_and_crop(image, torch.tensor([[0, PADDING + 1, PADDING]]))[0, 0].tolist()  # moved up by one
    [[3.0, 4.0], [0.0, 0.0]]
    """
    if changes is None:
        return x
    rows, _, height, width = x.shape
    flipped = torch.where(changes[:, :1, None, None] == 1, x.flip(3), x)
    padded = torch.nn.functional.pad(flipped, [PADDING] * 4).permute(0, 2, 3, 1)
    down = changes[:, 1:2] + torch.arange(height, device=x.device)
    right = changes[:, 2:3] + torch.arange(width, device=x.device)
    cropped = padded[torch.arange(rows, device=x.device)[:, None, None], down[:, :, None], right[:, None, :]]
    return cropped.permute(0, 3, 1, 2)
