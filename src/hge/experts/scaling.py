"""Standardisation inside an expert: inputs in any units, scaled by what that expert has been trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hge.experts.networks import Shape

MAX_DEVIATIONS = 10.0
"""Standard deviations: values farther from the mean are clipped, for the network and for the statistics."""
MIN_RELATIVE_DEVIATION = 1e-6
"""Least standard deviation, relative to the mean: below it an input counts as constant."""


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
        self.reduced_dims = [0, *range(2, 1 + len(shape))]
        """Dimensions of a batch that share a statistic."""
        self.register_buffer("rows", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("variance", torch.zeros(size, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs in standard deviations from the mean; in training mode, after including them in both."""
        if self.training:
            self._update_statistics(x.detach())
        scaled = (x.double() - self.mean) / self._deviation
        return scaled.clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS).to(x.dtype)

    @property
    def _deviation(self) -> Tensor:
        smallest = (MIN_RELATIVE_DEVIATION * self.mean.abs()).clamp_min(1e-30)
        return self.variance.sqrt().maximum(smallest)

    @torch.no_grad()
    def _update_statistics(self, x: Tensor) -> None:
        """Update the statistics, in place; one row cannot move them far."""
        x = x.double()
        limit = MAX_DEVIATIONS * self._deviation
        known = self.variance > 0  # an input that was constant so far may take any value
        x = torch.where(known, x.clamp(self.mean - limit, self.mean + limit), x)
        share = len(x) / (self.rows + len(x))
        mean, variance = (
            part.view_as(self.mean) for part in (x.mean(self.reduced_dims), x.var(self.reduced_dims, correction=0))
        )
        shift = mean - self.mean
        self.variance += share * (variance - self.variance) + share * (1 - share) * shift.square()
        self.mean += share * shift
        self.rows += len(x)


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
