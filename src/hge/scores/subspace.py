"""The library's score: mean, principal directions and isotropic noise, learned from the stream in closed form.

Probabilistic PCA (Tipping and Bishop, 1999). One pass, no gradient, no stored data: what is learned is the running
mean and the running scatter; what is asked is the model that was last drawn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from hge.scores.base import Score

MOST_COMPONENTS = 64
REFRESH_GROWTH = 1.2
"""The model is drawn anew when the expert has seen this many times the rows it had seen the last time."""
POWER_ITERATIONS = 3
OVERSAMPLING = 8
PRIOR_ROWS = 4.0
"""The covariance is shrunk towards an isotropic one as if that had been seen in so many rows."""
SMALLEST_VARIANCE = 1e-6
MODEL = ("mean", "basis", "offset", "variances", "noise")


class SubspaceScore(Score):
    """Negative log-likelihood under the expert's probabilistic PCA.

    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> score = SubspaceScore(shape=(8,))
    >>> score.study(x, None)
    >>> score.learn(skip=torch.zeros(()))
    >>> score.refresh()
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
    running_mean: Tensor
    scatter: Tensor
    rows: Tensor
    spare: Tensor

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
        self.register_buffer("running_mean", torch.zeros(inputs))
        self.register_buffer("scatter", torch.zeros(inputs, inputs))
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))
        self.register_buffer("spare", basis[k:].clone())

    def draw(self, rows: int, generator: torch.Generator) -> None:
        """Nothing is random."""

    @torch.no_grad()
    def study(self, x: Tensor, noise: Tensor | None) -> None:
        """Compute what the batch adds to the running sums (Chan et al.'s update, free of cancellation).

        The scatter of old and new rows together is the sum of both and that of one row more, the shift of the mean.
        """
        x = x.flatten(1)
        self.new = len(x)
        share = self.new / (self.rows + self.new)
        mean = x.mean(0, keepdim=True)
        shift = mean - self.running_mean
        self.shift = shift * share
        self.deviations = torch.cat([x - mean, shift * (self.rows * share).sqrt()])

    @torch.no_grad()
    def learn(self, skip: Tensor) -> None:
        """Add what was studied to the running sums."""
        keep = skip == 0
        # Chosen, not multiplied: zero times NaN is NaN.
        deviations = torch.where(keep, self.deviations, 0.0)
        with torch.autocast(deviations.device.type, enabled=False):
            self.scatter.addmm_(deviations.T, deviations)
        self.running_mean += torch.where(keep, self.shift[0], 0.0)
        self.rows += keep * self.new

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Say whether the rows have grown by enough since the model was last drawn."""
        return rows >= REFRESH_GROWTH * at_refresh

    @torch.no_grad()
    def refresh(self) -> None:
        """Draw the model from the running sums: a few power iterations from the last directions."""
        basis = torch.cat([self.basis, self.spare]).T
        for _ in range(POWER_ITERATIONS):
            basis, _ = torch.linalg.qr(self.scatter @ basis)
        small = basis.T @ self.scatter @ basis
        # In double, since in single it may fail to converge where eigenvalues span many orders of magnitude; and on
        # the CPU, where a matrix this small is decomposed sooner.
        values, vectors = torch.linalg.eigh((small + small.T).double().cpu() / (2 * self.rows.cpu()))
        directions = (basis @ vectors.flip(1).to(basis)).T
        top = values.flip(0)[: self.components].clamp_min(0).to(basis)
        inputs, total = len(self.mean), self.scatter.trace() / self.rows.float()
        weight = (PRIOR_ROWS / (self.rows + PRIOR_ROWS)).float()
        prior = weight * total / inputs
        noise = (1 - weight) * (total - top.sum()).clamp_min(0) / (inputs - self.components) + prior
        self.mean.copy_(self.running_mean)
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
        x = x.flatten(1)
        with torch.autocast(x.device.type, enabled=False):
            coordinates = torch.matmul(basis, x.T) - offset[:, :, None]
            # Taken apart, so that nothing of [experts, rows, inputs] is made; in double, since it is a difference.
            wide, centre = x.double(), mean.double()
            distance = wide.square().sum(1) - 2 * centre @ wide.T + centre.square().sum(1, keepdim=True)
        inside = coordinates.square_()
        outside = (distance.float() - inside.sum(1)).clamp_min(0)
        volume = variances.log().sum(1) + (mean.shape[1] - self.components) * noise.log()
        return (outside / noise[:, None] + (inside / variances[:, :, None]).sum(1) + volume[:, None]) / 2
