"""From a data set's rows to a task's inputs: small steps on the device, batch by batch, bytes stay bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AsIs:
    """The rows themselves."""

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
    """Images as vectors, their pixels in another order, the same for all."""

    order: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return [rows, inputs]."""
        return x.flatten(1)[:, self.order]


@dataclass(frozen=True)
class Invert:
    """The colour of every pixel inverted.

    >>> import torch
    >>> Invert()(torch.tensor([[0, 200]], dtype=torch.uint8))
    tensor([[255,  55]], dtype=torch.uint8)
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Return the negative images."""
        return 255 - x


@dataclass(frozen=True)
class ToColour:
    """Grey images as RGB, the three channels alike."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return [rows, 3, height, width]."""
        return x.expand(-1, 3, -1, -1)


def resize(images: Tensor, size: int) -> Tensor:
    """Return uint8 images [n, channels, size, size], resized bilinearly (antialiased) and rounded, part by part."""
    if images.shape[2:] == (size, size):
        return images
    import torch  # only this needs it; the list of scenarios does without

    parts = [
        torch.nn.functional.interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        for part in torch.split(images, 10_000)
    ]
    return torch.cat([part.round().clamp(0, 255).to(torch.uint8) for part in parts])
