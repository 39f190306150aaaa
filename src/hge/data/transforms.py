"""Transforms of a data set's rows to a task's inputs, applied on the device to each batch; the dtype is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AsIs:
    """The rows unchanged."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return x."""
        return x


@dataclass(frozen=True)
class Flatten:
    """Images as vectors."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return [rows, inputs]."""
        return x.flatten(1)


@dataclass(frozen=True)
class Permute:
    """Images as vectors, with one permutation of the pixels for all."""

    order: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return [rows, inputs]."""
        return x.flatten(1)[:, self.order]


@dataclass(frozen=True)
class Invert:
    """Images with inverted colours.

    >>> import torch
    >>> Invert()(torch.tensor([[0, 200]], dtype=torch.uint8))
    tensor([[255,  55]], dtype=torch.uint8)
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return the negative images."""
        return 255 - x


@dataclass(frozen=True)
class ToColour:
    """Grey images as RGB, with three equal channels."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return [rows, 3, height, width]."""
        return x.expand(-1, 3, -1, -1)


def resize(images: Tensor, size: int) -> Tensor:
    """Return uint8 images [n, channels, size, size], resized bilinearly (antialiased) and rounded, in chunks."""
    if images.shape[2:] == (size, size):
        return images
    import torch  # only needed here; listing the scenarios works without it

    parts = [
        torch.nn.functional.interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        for part in torch.split(images, 10_000)
    ]
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])
