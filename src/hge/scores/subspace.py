"""The library's score: mean, principal directions and isotropic noise, learned from the stream in closed form.

Probabilistic PCA (Tipping and Bishop, 1999). One pass, no gradient, no stored data: the state is the running mean,
the running covariance, and the basis that was last drawn from them.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor, nn

MOST_COMPONENTS = 64
REFRESH_GROWTH = 1.2
"""The basis is drawn anew when the expert has seen this many times the rows it had seen the last time."""
POWER_ITERATIONS = 3
OVERSAMPLING = 8
PRIOR_ROWS = 4.0
"""The covariance is shrunk towards an isotropic one as if that had been seen in so many rows."""
SMALLEST_VARIANCE = 1e-6


class SubspaceScore(nn.Module):
    """Negative log-likelihood under the expert's probabilistic PCA.

    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> score = SubspaceScore(shape=(8,))
    >>> score.learn(x, torch.zeros(256), torch.Generator())
    >>> own, far = score.score(x, batch_statistics=False).mean(), score.score(x + 9, batch_statistics=False).mean()
    >>> bool(own < far)
    True
    """

    mean: Tensor
    covariance: Tensor
    rows: Tensor
    rows_at_refresh: Tensor
    basis: Tensor
    variances: Tensor
    noise: Tensor

    def __init__(self, shape: tuple[int, ...], components: int = 0) -> None:
        super().__init__()
        inputs = prod(shape)
        k = min(components or min(MOST_COMPONENTS, inputs // 4), inputs - 1)
        width = min(k + OVERSAMPLING, inputs)
        self.components = k
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("covariance", torch.zeros(inputs, inputs))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.register_buffer("rows_at_refresh", torch.zeros((), dtype=torch.int64))
        # A random start: unit vectors would be stuck where the first inputs are constant, as an image's border is.
        self.register_buffer("basis", torch.linalg.qr(torch.randn(inputs, width))[0])
        self.register_buffer("variances", torch.ones(k))
        self.register_buffer("noise", torch.ones(()))

    @torch.no_grad()
    def learn(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Merge the batch's mean and covariance into the running ones (Chan et al.'s update, free of cancellation)."""
        x = x.flatten(1)
        old, new = int(self.rows), len(x)
        share = new / (old + new)
        mean = x.mean(0)
        centred = x - mean
        shift = mean - self.mean
        # Running averages, not sums: they neither overflow nor lose digits as the stream goes on.
        self.covariance.addmm_(centred.T, centred, beta=1 - share, alpha=share / new)
        self.covariance.addr_(shift, shift, alpha=share * (1 - share))
        self.mean += share * shift
        self.rows += new
        if int(self.rows) >= REFRESH_GROWTH * int(self.rows_at_refresh):
            self._refresh()

    @torch.no_grad()
    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the negative log-likelihood of each row, up to a constant that all experts share."""
        centred = x.flatten(1) - self.mean
        coordinates = centred @ self.basis[:, : self.components]
        outside = (centred.square().sum(1) - coordinates.square().sum(1)).clamp_min(0)
        inside = (coordinates.square() / self.variances).sum(1)
        volume = self.variances.log().sum() + (len(self.mean) - self.components) * self.noise.log()
        return (outside / self.noise + inside + volume) / 2

    def parts(self, x: Tensor) -> Tensor:
        """Return [rows, 1]: the score."""
        return self.score(x, batch_statistics=False)[:, None]

    def _refresh(self) -> None:
        """Draw the principal directions from the covariance: a few power iterations from the last basis."""
        basis = self.basis
        for _ in range(POWER_ITERATIONS):
            basis, _ = torch.linalg.qr(self.covariance @ basis)
        small = basis.T @ self.covariance @ basis
        # In double, since in single it may fail to converge where eigenvalues span many orders of magnitude.
        values, vectors = torch.linalg.eigh((small + small.T).double() / 2)
        self.basis = basis @ vectors.flip(1).to(basis.dtype)
        top = values.flip(0)[: self.components].clamp_min(0).to(basis.dtype)
        inputs, total = len(self.mean), self.covariance.trace()
        weight = PRIOR_ROWS / (int(self.rows) + PRIOR_ROWS)
        prior = weight * total / inputs
        noise = (1 - weight) * (total - top.sum()).clamp_min(0) / (inputs - self.components) + prior
        self.noise = noise.clamp_min(SMALLEST_VARIANCE)
        self.variances = torch.maximum((1 - weight) * top + prior, self.noise)
        self.rows_at_refresh = self.rows.clone()
