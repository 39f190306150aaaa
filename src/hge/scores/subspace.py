"""The library's score: mean, principal directions and isotropic noise, learned from the stream in closed form.

Probabilistic PCA (Tipping and Bishop, 1999). One pass, no gradient, no stored data: what is learned are sums
over the rows and over their products; what is asked is the model that was last drawn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from hge.scores.base import Score

MOST_COMPONENTS = 64
REFRESH_GROWTH = 1.25
"""The model is drawn anew when the expert has seen this many times the rows it had seen the last time."""
POWER_ITERATIONS = 2
OVERSAMPLING = 8
PRIOR_ROWS = 4.0
"""The covariance is shrunk towards an isotropic one as if that had been seen in so many rows."""
SMALLEST_VARIANCE = 1e-6
SMALLEST_SHARE = 1e-6
"""Directions with less than this share of the variance are not told apart."""
MODEL = ("mean", "basis", "offset", "variances", "noise")


class SubspaceScore(Score):
    """Negative log-likelihood under the expert's probabilistic PCA.

    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> score = SubspaceScore(shape=(8,))
    >>> score.start(x)
    >>> score.study(x, torch.zeros(256), None)
    >>> score.learn(skip=torch.zeros(()))
    >>> score.refresh(rows=256)
    >>> own, far = score.score(x, batch_statistics=False).mean(), score.score(x + 9, batch_statistics=False).mean()
    >>> bool(own < far)
    True
    """

    mean: Tensor
    basis: Tensor
    offset: Tensor
    """The mean's own coordinates."""
    variances: Tensor
    noise: Tensor
    centre: Tensor
    total: Tensor
    products: Tensor
    """Sums over the rows and over their products, about the centre."""
    spare: Tensor
    """Directions beyond the basis, from which the next one is drawn, too."""

    def __init__(self, shape: tuple[int, ...], components: int = 0) -> None:
        super().__init__()
        inputs = prod(shape)
        k = min(components or min(MOST_COMPONENTS, inputs // 4), inputs - 1)
        width = min(k + OVERSAMPLING, inputs)
        self.components = k
        # A random start: unit vectors would be stuck where the first inputs are constant, as an image's border is.
        basis = torch.linalg.qr(torch.randn(inputs, width))[0].T.contiguous()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("basis", basis[:k].clone())
        self.register_buffer("offset", torch.zeros(k))
        self.register_buffer("variances", torch.ones(k))
        self.register_buffer("noise", torch.ones(()))
        self.register_buffer("centre", torch.zeros(inputs))
        self.register_buffer("total", torch.zeros(inputs))
        self.register_buffer("products", torch.zeros(inputs, inputs))
        self.register_buffer("spare", basis[k:].clone())

    def draw(self, rows: int, generator: torch.Generator) -> None:
        """Nothing is random."""

    @torch.no_grad()
    def start(self, x: Tensor) -> None:
        """Take the first batch's mean as the point about which all sums are kept, so that they lose no digits."""
        self.centre.copy_(x.flatten(1).mean(0).nan_to_num(0.0, 0.0, 0.0))

    @torch.no_grad()
    def study(self, x: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Centre the rows."""
        self.centred = x.flatten(1) - self.centre

    @torch.no_grad()
    def learn(self, skip: Tensor) -> None:
        """Add the rows that were studied to the sums."""
        centred = self.centred
        if skip.is_cuda:
            centred = torch.where(skip == 0, centred, 0.0)  # chosen, not multiplied: zero times NaN is NaN
        elif skip:
            return
        with torch.autocast(centred.device.type, enabled=False):
            self.products.addmm_(centred.T, centred)
        self.total.add_(centred.sum(0))

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Say whether the rows have grown by enough since the model was last drawn."""
        return rows >= REFRESH_GROWTH * at_refresh

    @torch.no_grad()
    def refresh(self, rows: int) -> None:
        """Draw the model from the sums: a few power iterations from the last directions."""
        shift = self.total / rows
        covariance = torch.addr(self.products / rows, shift, shift, alpha=-1.0)
        total = covariance.trace()
        basis = torch.cat([self.basis, self.spare]).T
        for _ in range(POWER_ITERATIONS):
            # With a little of what was there: the same directions, but never linearly dependent.
            basis = _orthonormal(covariance @ basis + (SMALLEST_SHARE * total).clamp_min(1e-12) * basis)
        small = basis.T @ covariance @ basis
        if not small.isfinite().all():
            return  # the sums have left the range of numbers; the model stays as it was
        self.mean.copy_(self.centre + shift)
        # In double, since in single it may fail to converge where eigenvalues span many orders of magnitude; and on
        # the CPU, where a matrix this small is decomposed sooner.
        values, vectors = torch.linalg.eigh((small + small.T).double().cpu() / 2)
        directions = (basis @ vectors.flip(1).to(basis)).T
        top = values.flip(0)[: self.components].clamp_min(0).to(basis)
        inputs = len(self.mean)
        weight = PRIOR_ROWS / (rows + PRIOR_ROWS)
        prior = weight * total / inputs
        noise = (1 - weight) * (total - top.sum()).clamp_min(0) / (inputs - self.components) + prior
        self.basis.copy_(directions[: self.components])
        self.spare.copy_(directions[self.components :])
        self.offset.copy_(self.basis @ self.mean)
        self.noise.copy_(noise.clamp_min(SMALLEST_VARIANCE))
        self.variances.copy_(torch.maximum((1 - weight) * top + prior, self.noise))

    @torch.no_grad()
    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the negative log-likelihood of each row, up to a constant that all experts share."""
        return self.stacked({name: t[None] for name, t in self.gate_tensors().items()}, x, batch_statistics=False)[0]

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return the model that was last drawn."""
        return {name: getattr(self, name) for name in MODEL}

    @torch.no_grad()
    def stacked(self, tensors: Mapping[str, Tensor], x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Compute all experts' likelihoods in one batched product."""
        mean, basis, offset, variances, noise = (tensors[name] for name in MODEL)
        return likelihoods(x.flatten(1), mean, basis, offset, variances, noise)


def likelihoods(x: Tensor, mean: Tensor, basis: Tensor, offset: Tensor, variances: Tensor, noise: Tensor) -> Tensor:
    """Return [models, rows]: negative log-likelihoods under probabilistic PCAs, up to a constant that all share.

    The bases are [models, components, inputs], the offsets the means' own coordinates.
    """
    with torch.autocast(x.device.type, enabled=False):  # never in half precision: it is about small differences
        coordinates = torch.matmul(basis, x.T) - offset[:, :, None]
        # Taken apart, so that nothing of [models, rows, inputs] is made; in double, since it is a difference.
        wide, centre = x.double(), mean.double()
        distance = wide.square().sum(1) - 2 * centre @ wide.T + centre.square().sum(1, keepdim=True)
    inside = coordinates.square_()
    outside = (distance.float() - inside.sum(1)).clamp_min(0)
    volume = variances.log().sum(1) + (mean.shape[1] - basis.shape[1]) * noise.log()
    return (outside / noise[:, None] + (inside / variances[:, :, None]).sum(1) + volume[:, None]) / 2


def _orthonormal(columns: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns: Cholesky's, in double, which a GPU does without the host."""
    wide = columns.double()
    lower, _ = torch.linalg.cholesky_ex(wide.T @ wide)
    basis: Tensor = torch.linalg.solve_triangular(lower, wide.T, upper=False).T
    return basis.to(columns.dtype)
