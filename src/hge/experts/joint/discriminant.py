"""Linear discriminant analysis of all rows: sums that forget nothing, whatever the order of the rows; none is stored.

Features of a pretrained backbone are such that one linear model of all classes is as good as experts are. Its opinion
completes the joint score, which is fitted to the few rows of the replay alone (docs/paper.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor

from hge.core.types import Batch, as_float
from hge.experts.inputs import shortened
from hge.experts.pool import ExpertPool
from hge.experts.pool_spec import copy_tensors
from hge.gating.tree import FloatArray

WIDEST = 2048
"""Most features: memory grows with their square, the time to solve with their cube."""
WEIGHT = 0.5
"""Of the discriminant's log-probabilities beside those of the joint score."""
LEAST = 1e-9


@dataclass(frozen=True)
class LinearScores:
    """A score for each class: x·weights[class] + offsets[class]."""

    weights: Tensor
    offsets: Tensor


class ClassSums:
    """Number and sum of each class's features, and the sum of their outer products, in double precision.

    >>> sums = ClassSums(outputs=2, size=1, device=torch.device("cpu"))
    >>> sums.add(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    >>> sums.means.tolist(), sums.products.tolist(), sums.covariance.tolist()
    ([[2.0], [5.0]], [[35.0]], [[0.6666666666666666]])
    """

    rows_kept = 0

    def __init__(self, outputs: int, size: int, device: torch.device) -> None:
        self.counts = torch.zeros(outputs, dtype=torch.float64, device=device)
        self.sums = torch.zeros(outputs, size, dtype=torch.float64, device=device)
        self.products = torch.zeros(size, size, dtype=torch.float64, device=device)

    @property
    def parameters(self) -> int:
        """Number of values."""
        return sum(tensor.numel() for tensor in self.state().values())

    @property
    def means(self) -> Tensor:
        """Mean of each class; 0 for those that were not seen."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    @property
    def covariance(self) -> Tensor:
        """Covariance within classes, which they share."""
        between = self.sums.T @ self.means
        return (self.products - between) / self.counts.sum()

    def add(self, features: Tensor, y: Tensor, times: int = 1) -> None:
        """Add rows; `times=-1` takes them away."""
        rows = features.double()
        self.counts += times * torch.bincount(y, minlength=len(self.counts))
        self.sums.index_add_(0, y, rows, alpha=times)
        self.products.addmm_(rows.T, rows, alpha=times)

    def state(self) -> dict[str, Tensor]:
        """Return copies of the sums."""
        own = {"counts": self.counts, "sums": self.sums, "products": self.products}
        return copy_tensors(own, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name in ("counts", "sums", "products"):
            getattr(self, name).copy_(tensors[name])


def discriminant(sums: ClassSums, shrinkage: float) -> LinearScores:
    """Return the scores of linear discriminant analysis, the covariance shrunk towards a multiple of the identity.

    Equal priors: x·S⁻¹μ - ½ μ·S⁻¹μ with S = (1 - s) Σ + s tr(Σ)/d I.
    """
    covariance = sums.covariance
    size = len(covariance)
    scale = (covariance.trace() / size).clamp_min(1e-12)
    shrunk = (1 - shrinkage) * covariance + shrinkage * scale * torch.eye(
        size, dtype=torch.float64, device=scale.device
    )
    weights = torch.linalg.solve(shrunk, sums.means.T).T
    return LinearScores(weights, -0.5 * (weights * sums.means).sum(1))


class Discriminant:
    """A linear discriminant analysis of all rows that any expert was trained on, solved when the joint score is fitted.

    >>> own = Discriminant(outputs=3, size=1, device=torch.device("cpu"))
    >>> own.add(Batch(torch.tensor([[0.0], [1.0], [9.0], [10.0]]), torch.tensor([0, 0, 1, 1])))
    >>> own.solve()
    >>> row, unsure = torch.tensor([[9.5]]), np.array([[0.5, 0.4, 0.1]])
    >>> own.with_opinion(unsure, row).argmax(axis=1)
    array([1])
    """

    def __init__(self, outputs: int, size: int, device: torch.device) -> None:
        self.sums = ClassSums(outputs, size, device)
        self.known = torch.zeros(outputs, dtype=torch.bool, device=device)
        """Classes that were seen when it was solved last."""
        self.scores = LinearScores(self.sums.sums.clone(), self.sums.counts.clone())

    @classmethod
    def of(cls, pool: ExpertPool) -> Discriminant:
        """Return one for the rows of a pool's experts."""
        size = prod(pool.spec.shape)
        if size > WIDEST:
            raise ValueError(f"discriminant: got rows of {size} features, expected at most {WIDEST}")
        return cls(pool.spec.outputs, size, pool.device)

    def add(self, batch: Batch) -> None:
        """Add a batch on which an expert was trained."""
        self.sums.add(_rows(batch.x), batch.y)

    def remove(self, batch: Batch) -> None:
        """Take away a batch whose training was undone."""
        self.sums.add(_rows(batch.x), batch.y, times=-1)

    def solve(self) -> None:
        """Solve for the scores; the prior of an isotropic covariance is worth as many rows as there are inputs."""
        size, rows = self.sums.sums.shape[1], float(self.sums.counts.sum())
        self.known = self.sums.counts > 0
        self.scores = discriminant(self.sums, size / (size + rows))

    @property
    def parameters(self) -> int:
        """Number of values that predictions are computed from."""
        return self.scores.weights.numel() + self.scores.offsets.numel()

    def with_opinion(self, probabilities: FloatArray, x: Tensor) -> FloatArray:
        """Return class probabilities [rows, outputs] after its opinion, which says nothing of classes new to it."""
        outputs = probabilities.shape[1]
        known = self.known[:outputs]
        if not known.any():
            return probabilities
        scores = (
            as_float(x).to(known.device).flatten(1).double() @ self.scores.weights[:outputs].T
            + self.scores.offsets[:outputs]
        )
        opinion = scores.masked_fill(~known, -torch.inf).log_softmax(dim=1)
        opinion[:, ~known] = -float(np.log(outputs))
        logs = np.log(np.maximum(probabilities, LEAST)) + WEIGHT * opinion.cpu().numpy()
        found = np.exp(logs - logs.max(axis=1, keepdims=True))
        normalised: FloatArray = found / found.sum(axis=1, keepdims=True)
        return normalised

    def state(self) -> dict[str, Tensor]:
        """Return copies of the sums, and of what was solved from them."""
        own = {"known": self.known, "weights": self.scores.weights, "offsets": self.scores.offsets}
        return self.sums.state() | copy_tensors(own, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.sums.load_state(tensors)
        device = self.known.device
        self.known.copy_(tensors["known"])
        self.scores = LinearScores(*(tensors[name].to(device, copy=True) for name in ("weights", "offsets")))


def _rows(x: Tensor) -> Tensor:
    """Return a batch's rows, those far beyond the others shortened: one would spoil the covariance for ever."""
    return shortened(as_float(x).flatten(1))[0]
