"""Classifiers in closed form: sums over the rows seen so far, in any order, from which linear scores are solved.

Nothing is forgotten and no row is stored. A row that recurs, as in several epochs, counts again, like every other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, nan, prod, sqrt
from typing import Protocol

import torch
from torch import Tensor

from hge.baselines.rule import Part
from hge.core.types import Batch, as_float
from hge.experts.joint.discriminant import ClassSums, LinearScores
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting


class Features(Part, Protocol):
    """A fixed map from inputs to features."""

    size: int
    multiply_adds: float

    def see(self, x: Tensor) -> None:
        """Look at rows that are about to be learned; the first ones may set a scale."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features [rows, size]."""


class LinearRule:
    """Adds each batch to sums; predicts by scores that are solved from them when they are needed."""

    def __init__(self, setting: Setting, features: Features, solve: Callable[[ClassSums], LinearScores]) -> None:
        self.features, self.solve = features, solve
        self.sums = ClassSums(setting.spec.outputs, features.size, setting.device)
        self.parts: dict[str, Part] = {"features": features, "sums": self.sums}
        self._solved: tuple[float, LinearScores] | None = None
        """Number of rows behind the scores that were solved last, and these."""

    @property
    def multiply_adds(self) -> float:
        """Features, and a product for each class."""
        return self.features.multiply_adds + self.features.size * len(self.sums.counts)

    def learn(self, batch: Batch, step: int) -> float:
        """Add a batch; there is no loss."""
        self.features.see(batch.x)
        features = self.features(batch.x)
        if not features.isfinite().all():
            return nan
        self.sums.add(features, batch.y)
        return 0.0

    def logits(self, x: Tensor) -> Tensor:
        """Return the scores; classes that were not seen have none."""
        rows = float(self.sums.counts.sum())
        if not rows:
            return torch.zeros(len(x), len(self.sums.counts), device=x.device)
        if self._solved is None or self._solved[0] != rows:
            self._solved = rows, self.solve(self.sums)
        scores = self._solved[1]
        logits = self.features(x).double() @ scores.weights.T + scores.offsets
        return logits.masked_fill(self.sums.counts == 0, -inf)


class Pixels:
    """The inputs themselves."""

    rows_kept = 0
    parameters = 0
    multiply_adds = 0.0

    def __init__(self, setting: Setting) -> None:
        self.size = prod(setting.spec.shape)

    def see(self, x: Tensor) -> None:
        """Do nothing."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the inputs as rows."""
        return as_float(x).flatten(1)

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Do nothing."""


class RandomFeatures:
    """Random projections of the inputs through a ReLU, or a cosine: random Fourier features of a Gaussian kernel.

    The projections are drawn by the run's seed and are no part of the state. The kernel's width is that of the first
    batch: one over the number of inputs times their variance.
    """

    rows_kept = 0

    def __init__(self, setting: Setting, *, fourier: bool) -> None:
        self.fourier, self.size = fourier, setting.config.baseline.features
        inputs = prod(setting.spec.shape)
        generator = setting.keys.generator("directions", device=setting.device)
        drawn = torch.randn(inputs + 1, self.size, generator=generator, device=setting.device)
        # A normal angle with a deviation of a full turn is as good as uniform.
        self.projection, self.phase = drawn[:-1] / sqrt(inputs), drawn[-1] * 2 * torch.pi
        self.deviation = torch.zeros((), device=setting.device)
        """Standard deviation of the first batch's values; 0 before it."""
        self.parameters = drawn.numel()
        self.multiply_adds = float(self.projection.numel())

    def see(self, x: Tensor) -> None:
        """Take the scale of the first batch."""
        if not self.deviation:
            self.deviation = as_float(x).std().clamp_min(1e-6)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the features."""
        projected = as_float(x).flatten(1) / self.deviation.clamp_min(1e-6) @ self.projection
        return (projected * sqrt(2) + self.phase).cos() if self.fourier else projected.relu()

    def state(self) -> dict[str, Tensor]:
        """Return the scale."""
        return copy_tensors({"deviation": self.deviation}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.deviation = tensors["deviation"].to(self.deviation.device, copy=True)
