"""Standardisation inside an expert: inputs in any units, scaled by what that expert has been trained on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hge.experts.networks import Shape

MAX_DEVIATIONS = 10.0
"""Standard deviations: values farther from the mean are clipped, for the network and for the statistics."""
MIN_RELATIVE_DEVIATION = 1e-6
"""Least standard deviation, relative to the mean: below it an input counts as constant."""


class Statistics(NamedTuple):
    """Number, means and variances of rows, in double precision."""

    rows: Tensor
    mean: Tensor
    variance: Tensor

    @property
    def deviation(self) -> Tensor:
        """The standard deviations, not below what rounding makes of a constant."""
        return self.variance.sqrt().maximum(self.mean.abs().mul_(MIN_RELATIVE_DEVIATION).clamp_min_(1e-30))

    def standardised(self, x: Tensor) -> Tensor:
        """Return inputs in standard deviations from the mean."""
        scaled = (x.double() - self.mean).div_(self.deviation)
        return scaled.clamp_(-MAX_DEVIATIONS, MAX_DEVIATIONS).to(x.dtype)

    @torch.no_grad()
    def including(self, x: Tensor) -> Statistics:
        """Return the statistics of these rows and others together; one row cannot move them far."""
        # An input that was constant so far may take any value.
        limit = (MAX_DEVIATIONS * self.deviation).masked_fill_(self.variance <= 0, torch.inf)
        x = x.double().clamp(self.mean - limit, self.mean + limit)
        variance, mean = torch.var_mean(x, [0, *range(2, x.ndim)], correction=0)
        shift, rows = mean.view_as(self.mean) - self.mean, self.rows + len(x)
        share = len(x) / rows
        between = (1 - share) * shift.square()
        return Statistics(
            rows,
            self.mean + share * shift,
            self.variance + share * (variance.view_as(self.mean) - self.variance + between),
        )


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
        if self.training:
            self.replace(self.statistics.including(x.detach()))
        return self.statistics.standardised(x)

    @property
    def statistics(self) -> Statistics:
        """The statistics, not copied."""
        return Statistics(self.rows, self.mean, self.variance)

    def replace(self, statistics: Statistics) -> None:
        """Replace the statistics, in place."""
        for own, new in zip(self.statistics, statistics, strict=True):
            own.copy_(new)


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
