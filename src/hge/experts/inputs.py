"""What becomes of an expert's inputs: standardised in any units, shortened if far from all others, flipped, cropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hge.experts.networks import Shape

MAX_DEVIATIONS = 10.0
"""Standard deviations: values farther from the mean are clipped, for the network and for the statistics."""
MIN_RELATIVE_DEVIATION = 1e-6
"""Least standard deviation, relative to the mean: below it an input counts as constant."""
SMALLEST_DEVIATION = 1e-60
"""Least standard deviation of all: below the smallest number of 32 bits, so that only constants have it."""
MAX_LENGTH = 10.0
"""Longest row, in median lengths of the rows in its batch."""
PADDING = 4
"""Maximum shift of an image by a crop, in pixels, in either direction."""


class Statistics(NamedTuple):
    """Number, means and variances of rows in double precision: arrays or, on a GPU, tensors.

    For few rows arrays are faster than tensors.
    """

    rows: Any
    mean: Any
    variance: Any

    @classmethod
    def of(cls, *tensors: Tensor) -> Statistics:
        """Return statistics in the memory of these tensors."""
        return cls(*(tensor if tensor.is_cuda else tensor.numpy() for tensor in tensors))

    @classmethod
    def none(cls, *size: int) -> Statistics:
        """Return statistics of no rows, as arrays."""
        return cls(np.zeros(()), np.zeros(size), np.zeros(size))

    def standardised(self, x: Any) -> Any:
        """Return inputs in standard deviations from the mean, in double precision."""
        library = np if isinstance(x, np.ndarray) else torch
        scaled = (x - self.mean) / self._deviation(library)
        return library.clip(scaled, -MAX_DEVIATIONS, MAX_DEVIATIONS, out=scaled)

    def including(self, x: Any) -> Statistics:
        """Return the statistics of these rows and the others together; one row cannot move them far."""
        library = np if isinstance(x, np.ndarray) else torch
        apart = x - self.mean
        limit = self._limit(apart, library)
        apart = library.minimum(library.maximum(apart, -limit), limit)
        dims, size = (0, *range(2, x.ndim)), self.mean.shape
        shift = _mean(apart, dims).reshape(size)
        spread = _mean(library.square(apart - shift), dims).reshape(size)
        rows = self.rows + len(x)
        share = len(x) / rows
        variance = self.variance + share * (spread - self.variance + (1 - share) * shift * shift)
        return Statistics(rows, self.mean + share * shift, variance)

    def copy_to(self, others: Statistics) -> None:
        """Replace the values of others by these."""
        for own, other in zip(self, others, strict=True):
            other[...] = own

    def _limit(self, apart: Any, library: Any) -> Any:
        """Return how far from the mean a value may count, given the batch's values minus the mean.

        The deviation of an input that was constant so far is unknown. The other rows of the batch that differ stand in
        for it, so that a single one does not set the scale; the farthest is left out.
        Of two rows neither is the usual one.
        """
        known = MAX_DEVIATIONS * self._deviation(library)
        if library is np and self.variance.all():
            return known
        farthest = abs(apart) if apart.ndim == 2 else library.amax(abs(apart), tuple(range(2, apart.ndim)))
        others = library.clip((farthest > 0).sum(0) - 1, 1, None)
        usual = library.clip(farthest.sum(0) - library.amax(farthest, 0), 0, None) / others
        unknown = MAX_DEVIATIONS * usual.reshape(self.mean.shape) if len(apart) > 2 else np.inf
        return library.where(self.variance > 0, known, unknown)

    def _deviation(self, library: Any) -> Any:
        """Return the standard deviations, not below what rounding makes of a constant."""
        return library.maximum(
            library.sqrt(self.variance), MIN_RELATIVE_DEVIATION * abs(self.mean) + SMALLEST_DEVIATION
        )


def _mean(x: Any, dims: tuple[int, ...]) -> Any:
    """Return the means over some dimensions; for a few rows numpy's own `mean` takes twice as long."""
    if not isinstance(x, np.ndarray):
        return x.mean(dims)
    total = np.add.reduce(x, axis=dims)
    return total / (x.size / total.size)


class Standardise(nn.Module):
    """Shift and scale inputs to mean 0 and variance 1, by running statistics of the training rows.

    Rows have statistics for each feature, images for each channel. They are cumulative, so they settle as the expert is
    trained, and they belong to the expert: training another one does not change them.

    >>> scale = Standardise(shape=(2,))
    >>> rows = torch.tensor([[0.0, 5e6], [2.0, 5e6]])
    >>> scale.train()(rows).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    >>> scale.eval()(torch.tensor([[1e30, 5e6]])).tolist()
    [[10.0, 0.0]]
    """

    rows: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size = (shape[0], *(1 for _ in shape[1:]))
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros(size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs in standard deviations from the mean; in training mode, after including them in both."""
        rows = x.detach() if x.is_cuda else x.detach().numpy()
        if self.training:
            self.statistics.including(rows).copy_to(self.statistics)
        return torch.as_tensor(self.statistics.standardised(rows), dtype=x.dtype)

    @property
    def statistics(self) -> Statistics:
        """The statistics, not copied."""
        return Statistics.of(self.rows, self.mean, self.variance)


@contextmanager
def frozen_scaling(net: nn.Module) -> Iterator[None]:
    """Leave the statistics of a network in training as they are inside the block: its rows were counted before."""
    own = [module for module in net.modules() if isinstance(module, Standardise) and module.training]
    for module in own:
        module.eval()
    try:
        yield
    finally:
        for module in own:
            module.train()


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
