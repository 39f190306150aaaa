"""Random flips and crops of images. The random numbers are drawn separately, so the result is reproducible."""

from __future__ import annotations

import torch
from torch import Tensor

PADDING = 4
"""Maximum shift of an image by a crop, in pixels, in either direction."""


def draw_augmentation(rows: int, generator: torch.Generator) -> Tensor:
    """Return [rows, 3] integers that specify the change of each image: flip, vertical offset, horizontal offset."""
    limits = torch.tensor([2, 2 * PADDING + 1, 2 * PADDING + 1], device=generator.device)
    uniform = torch.rand(rows, 3, generator=generator, device=generator.device)
    return (uniform * limits).long().clamp_max(limits - 1)


def flip_and_crop(x: Tensor, augmentation: Tensor | None) -> Tensor:
    """Return the images [rows, channels, height, width], flipped and shifted, with zero padding.

    If `augmentation` is None, the input is returned unchanged.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> flip_and_crop(image, torch.tensor([[1, PADDING, PADDING]]))[0, 0].tolist()  # flipped, not moved
    [[2.0, 1.0], [4.0, 3.0]]
    >>> flip_and_crop(image, torch.tensor([[0, PADDING + 1, PADDING]]))[0, 0].tolist()  # moved up by one
    [[3.0, 4.0], [0.0, 0.0]]
    """
    if augmentation is None:
        return x
    rows, _, height, width = x.shape
    flipped = torch.where(augmentation[:, :1, None, None] == 1, x.flip(3), x)
    padded = torch.nn.functional.pad(flipped, [PADDING] * 4).permute(0, 2, 3, 1)
    down = augmentation[:, 1:2] + torch.arange(height, device=x.device)
    right = augmentation[:, 2:3] + torch.arange(width, device=x.device)
    cropped = padded[torch.arange(rows, device=x.device)[:, None, None], down[:, :, None], right[:, None, :]]
    return cropped.permute(0, 3, 1, 2)
