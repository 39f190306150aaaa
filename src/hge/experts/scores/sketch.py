"""The library's score: a Gaussian for each expert, or for each of its classes, in the space that all experts share.

Training accumulates sums of products of coordinates, exactly and in one pass; a constant coordinate of 1 makes counts
and means part of them. The score is the negative log-likelihood. It is linear in the same products, so all experts'
scores are one matrix product, and those of a whole batch only need the batch's own sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import TypeVar

import torch
from torch import Tensor

from hge.experts.scores.base import UNSUITABLE, Cost, Score
from hge.experts.scores.space import MAX_DISTANCE, TAIL, Space

REFRESH_GROWTH = 1.1
"""The model is recomputed when the number of rows seen has grown by this factor since the last time."""
PRIOR_ROWS, PRIOR_VARIANCE = 4.0, TAIL**-2
"""Variances are shrunk towards those of the stream's first rows, with a prior worth this many rows."""
Rows = TypeVar("Rows", float, Tensor)
MIN_CLASS_SHARE = 0.02
"""A class with fewer rows than this share of the most frequent class's is attributed to an outlier and ignored."""


class SketchScore(Score):
    """Negative log-likelihood under the expert's Gaussian, or under the mixture of its classes' Gaussians.

    >>> x = torch.randn(1200, 8, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(1200) % 2
    >>> score = SketchScore(Space(shape=(8,)), classes=2)
    >>> score.compute_update(score.preprocess(x + 9 * y[:, None]), y, None)  # a class around 0, another around 9
    >>> score.apply_update(skip=torch.zeros(()))
    >>> score.refresh(rows=1200)
    >>> own, between = (score.score(x + shift, batch_statistics=False).mean() for shift in (9, 4.5))
    >>> bool(own < between)
    True
    """

    moments: Tensor
    """[classes, width²] Sums of products over the rows of each class; the first product is 1, so it counts them."""
    weights: Tensor
    """[models, products] Computed from them: of all classes together and then, if there are several, of each."""

    def __init__(self, space: Space, classes: int = 1) -> None:
        super().__init__()
        self.space = space
        self.classes = classes
        self.register_buffer("moments", torch.zeros(classes, space.width**2, dtype=torch.float64))
        products = len(space.tril_rows)
        initial = torch.zeros(1 if classes == 1 else 1 + classes, products, dtype=torch.float64)
        initial[1:, 0] = UNSUITABLE
        self.register_buffer("weights", initial)

    @property
    def asynchronous(self) -> bool:
        """Whether the space is fixed; fixing it needs the host."""
        return self.space.fixed

    @property
    def capturable(self) -> bool:
        """Not with several classes: the host must look up which ones exist."""
        return self.space.fixed and self.classes == 1

    def draw_noise(self, rows: int, generator: torch.Generator) -> None:
        """Return None: no random numbers are needed."""

    def preprocess(self, x: Tensor) -> Tensor:
        """Return the rows in the shared space; until that is fixed, flattened only."""
        return self.space.project(x) if self.space.fixed else x.flatten(1)

    @torch.no_grad()
    def compute_update(self, inputs: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Sum the products of the rows, or of those of each class; keep the rows until the space is fixed."""
        if not self.space.fixed:
            self.pending_rows = inputs, y
            return
        inputs = without_far_rows(inputs)
        if self.classes == 1:
            self.update = (inputs.T @ inputs).view(1, -1)
        elif inputs.is_cuda:  # index_add_ is not deterministic there
            chosen = torch.nn.functional.one_hot(y, self.classes).to(inputs.dtype)
            self.update = chosen.T @ (inputs[:, :, None] * inputs[:, None]).flatten(1)
        else:
            products = (inputs[:, :, None] * inputs[:, None]).flatten(1)
            self.update = torch.zeros_like(self.moments).index_add_(0, y, products)

    @torch.no_grad()
    def apply_update(self, skip: Tensor) -> None:
        """Add the sums computed by `compute_update`; fix the space once there are enough rows."""
        if not self.space.fixed:
            if not skip:
                self.space.collect(*self.pending_rows)
                if self.space.has_enough_rows:
                    self.finish_deferred()
        elif skip.is_cuda:
            self.moments.addcmul_(self.update, (skip == 0).to(self.update.dtype))
        elif not skip:
            self.moments += self.update

    @torch.no_grad()
    def finish_deferred(self) -> None:
        """Fix the space with the first rows, which are this expert's; learn from those not needed for it."""
        if not self.space.first_rows:
            return
        x, y = self.space.fix()
        self.compute_update(self.preprocess(x), y, None)
        self.moments += self.update

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Return whether the number of rows has grown enough since the model was last computed."""
        return self.space.fixed and rows >= REFRESH_GROWTH * at_refresh

    @torch.no_grad()
    def refresh(self, rows: int) -> None:
        """Compute the models from the sums."""
        if self.classes == 1:
            self.weights.copy_(gaussians(self.moments, self.space))
            return
        counts = self.moments[:, 0]
        own = torch.nonzero(counts > MIN_CLASS_SHARE * counts.max()).flatten()
        self.weights[1:] = 0
        self.weights[1:, 0] = UNSUITABLE
        self.weights[0] = gaussians(self.moments.sum(0, keepdim=True), self.space)[0]
        self.weights[1 + own] = gaussians(self.moments[own], self.space)
        self.weights[1 + own, 0] -= (counts[own] / counts[own].sum()).log()

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return the models as last computed."""
        return {"weights": self.weights}

    def optimism(self, tensors: Mapping[str, Tensor], rows: int) -> float:
        """Return twice the excess of a model of its share of the rows: new rows are above the truth, its own below."""
        if not (self.space.fixed and rows):
            return 0.0
        models = 1 if self.classes == 1 else int((tensors["weights"][1:, 0] < UNSUITABLE / 2).sum())
        return 2 * average_excess(rows / max(1, models), self.space.width - 1)

    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the projection, the products, and a dot product for each model of an expert."""
        weights, products = tensors["weights"], len(self.space.tril_rows)
        models = 1.0 if self.classes == 1 else float((weights[:, 1:, 0] < UNSUITABLE / 2).sum()) / len(weights)
        each = models * products
        together, each_in_batch = (each, 0.0) if self.classes == 1 else (0.0, each)
        return Cost(self.space.directions.numel() + products, each, together, each_in_batch)

    @torch.no_grad()
    def stacked(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, batch_statistics: bool) -> Tensor:
        """Compute all experts' likelihoods in one product."""
        weights = tensors["weights"]
        if not self.space.fixed:
            return inputs.new_zeros(len(weights), len(inputs))
        products = self.space.products(inputs)
        if self.classes == 1:
            return weights[:, 0] @ products
        expert, own = torch.nonzero(weights[:, 1:, 0] < UNSUITABLE / 2, as_tuple=True)
        scores = products.new_full((len(weights), self.classes, len(inputs)), UNSUITABLE)
        scores[expert, own] = weights[expert, 1 + own] @ products
        return -torch.logsumexp(-scores, dim=1)

    @torch.no_grad()
    def together(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the scores [experts] of a batch as a whole; for a single Gaussian, from the batch's own sums."""
        if self.classes > 1 or not self.space.fixed:
            return super().together(tensors, inputs)
        rows = without_far_rows(inputs)
        mean = (rows.T @ rows).flatten() / rows[:, 0].sum()
        return tensors["weights"][:, 0] @ self.space.products_of_square(mean)

    @torch.no_grad()
    def parts(self, gates: Sequence[Mapping[str, Tensor]], x: Tensor) -> list[Tensor]:
        """Return [rows, models]: scores under all classes together, then each; NaN for classes it does not have."""
        if not self.space.fixed:
            return [x.new_zeros(len(x), len(self.weights)) for _ in gates]
        products = self.space.products(self.preprocess(x))
        parts = []
        for tensors in gates:
            own = torch.nonzero(tensors["weights"][:, 0] < UNSUITABLE / 2).flatten()
            of_all = products.new_full((len(self.weights), len(x)), torch.nan)
            of_all[own] = tensors["weights"][own] @ products
            parts.append(of_all.T)
        return parts


def without_far_rows(rows: Tensor) -> Tensor:
    """Return projected rows with zeros, which count for nothing, in place of those that are far from all others.

    Far is more than `MAX_DISTANCE` times the median distance from the centre in the batch, and of the first rows.

    >>> without_far_rows(torch.tensor([[1.0, 0.1], [1.0, -0.2], [1.0, 5.0]])).tolist()
    [[1.0, 0.1...], [1.0, -0.2...], [0.0, 0.0]]
    """
    length = rows[:, 1]
    far = length > length.median().clamp_min(0) + log(MAX_DISTANCE)
    return rows.masked_fill(far[:, None], 0.0)


def gaussians(moments: Tensor, space: Space) -> Tensor:
    """Return the weights [models, products] of the negative log-likelihoods, from sums of products.

    Few rows estimate variances better than correlations, so correlations are shrunk by as many uncorrelated prior rows
    as there are coordinates. A model of few rows also fits unseen rows worse than its own: the average excess is
    subtracted, otherwise groups would go to the experts that have seen the most rows (results/choices/sketch.json).

    >>> space = Space(shape=(1,))
    >>> rows = torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, 1.0]], dtype=torch.float64).repeat(5000, 1)
    >>> weights = gaussians((rows.T @ rows).view(1, -1), space)
    >>> near, far = weights[0] @ space.products(torch.tensor([[1, 0, 1.0], [1, 0, 3.0]]).double())
    >>> round(float(far - near), 2)  # half of 3² - 1²
    4.0
    """
    second = moments.view(len(moments), space.width, space.width)
    rows = second[:, :1, 0]  # [models, 1]
    width = second.shape[1] - 1
    mean = second[:, 1:, 0] / rows
    scatter = second[:, 1:, 1:] - rows[:, :, None] * mean[:, :, None] * mean[:, None, :]
    shrinkage = correlations_kept(rows, width)
    covariance = (shrinkage / rows)[:, :, None] * scatter
    variance = (scatter.diagonal(dim1=1, dim2=2).clamp_min(0) + PRIOR_ROWS * PRIOR_VARIANCE) / (rows + PRIOR_ROWS)
    covariance.diagonal(dim1=1, dim2=2).copy_(variance)
    lower, _ = torch.linalg.cholesky_ex(covariance)
    precision = torch.cholesky_inverse(lower)
    slope = (precision @ mean[:, :, None])[:, :, 0]
    log_determinant = 2 * lower.diagonal(dim1=1, dim2=2).log().sum(1)
    form = torch.empty_like(second)
    form[:, 1:, 1:] = precision
    form[:, 1:, 0] = form[:, 0, 1:] = -slope
    form[:, 0, 0] = (slope * mean).sum(1) + log_determinant - 2 * average_excess(rows, width)[:, 0]
    twice = torch.where(space.tril_rows == space.tril_columns, 0.5, 1.0)
    return form[:, space.tril_rows, space.tril_columns] * twice


def correlations_kept(rows: Rows, width: int) -> Rows:
    """Return the factor by which the correlations of models of so many rows are shrunk."""
    return rows / (rows + max(width, PRIOR_ROWS))


def average_excess(rows: Rows, width: int) -> Rows:
    """Return by how much unseen rows score above the truth under models of so many rows; the rows learned, below it."""
    return width / (rows + PRIOR_ROWS) + width * (width - 1) * correlations_kept(rows, width) ** 2 / (4 * rows)
