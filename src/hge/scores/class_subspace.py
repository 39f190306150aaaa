"""A subspace for each class of the expert: the negative log-likelihood under the mixture of its classes.

Labels are known in training, so the mixture needs no search for its components. Each component is a probabilistic PCA
(Tipping and Bishop, 1999) that is merged with the rows of its class batch by batch (Ross et al., 2008). No covariance
is kept: at 3 072 inputs that is 0.5 MB for a class instead of 38 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hge.scores.base import Score
from hge.scores.subspace import OVERSAMPLING, PRIOR_ROWS, SMALLEST_VARIANCE, likelihoods

MOST_POOLED, MOST_PER_CLASS = 64, 32
"""Directions of all classes together, and of one class."""
OWN_SHARE = 0.02
"""A class with fewer rows than this share of the commonest one's came with an outlier: it is not the expert's own."""
EVERY_BATCH = 64
"""So many batches are all taken in; then, of each doubling of the stream, half as many."""


class ClassSubspaceScore(Score):
    """Negative log-likelihood under the mixture of the expert's classes.

    >>> x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    >>> y = torch.arange(256) % 2
    >>> score = ClassSubspaceScore(shape=(8,), outputs=10)
    >>> score.study(x + 9 * y[:, None], y, None)  # a class around 0, another around 9
    >>> score.learn(skip=torch.zeros(()))
    >>> between, own = (score.score(x + shift, batch_statistics=False).mean() for shift in (4.5, 9))
    >>> bool(own < between)
    True
    >>> score(x).shape, score.own.tolist()  # all classes together, then each by itself
    (torch.Size([256, 11]), [0, 1])
    """

    asynchronous = False  # which classes there are is for the host to see
    batches: Tensor

    def __init__(self, shape: tuple[int, ...], outputs: int, components: int = 0) -> None:
        super().__init__()
        inputs = prod(shape)
        self.pooled = StreamingSubspaces(1, inputs, components or min(MOST_POOLED, inputs // 4))
        self.classes = StreamingSubspaces(outputs, inputs, components or min(MOST_PER_CLASS, inputs // 8))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def draw(self, rows: int, generator: torch.Generator) -> None:
        """Nothing is random."""

    def study(self, x: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Keep the rows and their labels for `learn`."""
        self.studied = x.flatten(1), y

    @torch.no_grad()
    def learn(self, skip: Tensor) -> None:
        """Merge the rows of each class into its component.

        After many batches only some are taken in, each for those that are left out beside it.
        """
        if skip:
            return
        self.batches += 1
        every = 1 << ((int(self.batches) - 1) // EVERY_BATCH).bit_length()
        if int(self.batches) % every:
            return
        x, y = self.studied
        self.pooled.learn(0, x, every)
        for label in torch.unique(y).tolist():
            self.classes.learn(label, x[y == label], every)

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Nothing to refresh: `score` reads what is learned."""
        return False

    def refresh(self, rows: int) -> None:
        """Do nothing."""

    @property
    def own(self) -> Tensor:
        """The classes that the expert was really trained on."""
        rows = self.classes.rows
        return torch.nonzero(rows > OWN_SHARE * rows.max()).flatten()

    @torch.no_grad()
    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the negative log-likelihood of each row, up to a constant that all experts share."""
        return _mixed(self(x, pooled=False), self.classes.rows)

    @torch.no_grad()
    def forward(self, x: Tensor, *, pooled: bool = True) -> Tensor:
        """Return [rows, 1 + outputs]: under all classes together, then under each; NaN for those not its own.

        Without `pooled` the first is NaN, too, unless there is nothing else.
        """
        own, x = self.own, x.flatten(1)
        result = x.new_full((len(x), 1 + len(self.classes.rows)), torch.nan)
        if pooled or not len(own):
            result[:, :1] = self.pooled.score(x, own.new_zeros(1))
        result[:, 1 + own] = self.classes.score(x, own)
        return result

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return all there is."""
        return self.state_dict(keep_vars=True)

    def stacked(self, tensors: Mapping[str, Tensor], x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Ask one expert after the other: each has classes of its own."""
        experts = [{name: t[e] for name, t in tensors.items()} for e in range(len(tensors["batches"]))]
        parts = [functional_call(self, own, (x,), {"pooled": False}) for own in experts]
        return torch.stack([_mixed(p, own["classes.rows"]) for p, own in zip(parts, experts, strict=True)])

    def parts(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return [rows, 1 + outputs]: under all classes together, then under each; NaN for those not its own."""
        result: Tensor = functional_call(self, dict(tensors), (x,))
        return result


def _mixed(parts: Tensor, rows: Tensor) -> Tensor:
    """Return the negative log-likelihood under the classes' mixture; under all together, while no class is known."""
    own = ~parts[:, 1:].isnan().all(0)
    if not own.any():
        return parts[:, 0]
    prior = rows[own].double().log() - rows[own].sum().double().log()
    return -torch.logsumexp(prior.to(parts.dtype) - parts[:, 1:][:, own], dim=1)


class StreamingSubspaces(nn.Module):
    """Several probabilistic PCAs, each learned from the rows that it is given. State of fixed shape, changed in place.

    >>> pca = StreamingSubspaces(count=1, inputs=3, components=1)
    >>> line = torch.tensor([[-2.0, 0, 1], [0, 0, 1], [2, 0, 1]])
    >>> pca.learn(0, line[:2]); pca.learn(0, line[2:])
    >>> pca.mean[0].tolist(), pca.basis[0, :, 0].abs().round(decimals=3).tolist()
    ([0.0, 0.0, 1.0], [1.0, 0.0, 0.0])
    """

    mean: Tensor
    basis: Tensor
    variances: Tensor
    total: Tensor
    rows: Tensor

    def __init__(self, count: int, inputs: int, components: int) -> None:
        super().__init__()
        self.components = min(max(components, 1), inputs - 1)
        # A few more are kept than are used: what a merge cuts off is lost for the next one.
        kept = min(self.components + OVERSAMPLING, inputs)
        self.register_buffer("mean", torch.zeros(count, inputs))
        self.register_buffer("basis", torch.zeros(count, inputs, kept))
        self.register_buffer("variances", torch.zeros(count, kept))
        self.register_buffer("total", torch.zeros(count))
        self.register_buffer("rows", torch.zeros(count, dtype=torch.int64))

    @torch.no_grad()
    def learn(self, which: int, x: Tensor, weight: int = 1) -> None:
        """Merge rows, each counted `weight` times, with the directions known so far and the shift of the mean."""
        old, new = int(self.rows[which]), weight * len(x)
        count, centre = old + new, x.mean(0)
        shift, centred = centre - self.mean[which], x - centre
        stacked = torch.cat(
            [
                self.basis[which].T * (old / count * self.variances[which]).sqrt()[:, None],
                centred * (weight / count) ** 0.5,
                shift[None] * (old * new) ** 0.5 / count,
            ]
        )
        products = (stacked @ stacked.T).double().cpu()
        if not products.isfinite().all():
            return  # rows so far away that their squares are no numbers
        # In double, since in single it may fail to converge where eigenvalues span many orders of magnitude; and on
        # the CPU, where a matrix this small is decomposed sooner.
        values, vectors = (t.to(x.device) for t in torch.linalg.eigh(products))
        kept = self.variances.shape[1]
        top, left = values.flip(0)[:kept], vectors.flip(1)[:, :kept]
        found = top > 1e-12 * values[-1].clamp_min(1e-30)
        directions = stacked.T @ (left * torch.where(found, top, torch.inf).rsqrt()).to(x.dtype)
        self.total[which] = old / count * self.total[which] + stacked[-len(x) - 1 :].square().sum()
        self.mean[which] += new / count * shift
        self.basis[which] = directions
        self.variances[which] = torch.where(found, top, 0).to(x.dtype)
        self.rows[which] = count

    def score(self, x: Tensor, which: Tensor) -> Tensor:
        """Return [rows, which]: negative log-likelihoods up to a shared constant."""
        noise, variances = self._shrunk()
        mean, basis = self.mean[which], self.basis[which, :, : self.components].mT
        offset = (basis * mean[:, None]).sum(2)
        return likelihoods(x, mean, basis, offset, variances[which], noise[which]).T

    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """Return noise and variances, drawn towards an isotropic density as if that had been seen in a few rows."""
        inputs, k = self.mean.shape[1], self.components
        top = self.variances[:, :k]
        weight = (PRIOR_ROWS / (self.rows + PRIOR_ROWS)).to(self.total.dtype)
        prior = weight * self.total / inputs
        left = (self.total - top.sum(1)).clamp_min(0)
        noise = ((1 - weight) * left / (inputs - k) + prior).clamp_min(SMALLEST_VARIANCE)
        return noise, torch.maximum((1 - weight)[:, None] * top + prior[:, None], noise[:, None])
