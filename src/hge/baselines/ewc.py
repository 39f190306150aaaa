"""Online EWC: weights to which earlier labels were sensitive are pulled back to where they were.

Sources: Kirkpatrick et al. 2017, Schwarz et al. 2018; penalty and settings (λ = 90, γ = 1: Split MNIST) of mammoth's
`ewc_on`: λ Σ F (θ - θ*)², F ← γF + mean over rows of (∂ log p(y|x))².

Departures: F is of the rows of the last batches before the consolidation (`learner.replay_capacity` of them), which are
kept for it, not of another pass over the task; squared gradients are not weighted by p(y|x). λ depends on both. Steps
are proximal in the penalty (`QuadraticPenalty`): the sum of F over many consolidations is too steep for plain ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from copy import deepcopy
from math import isfinite, nan

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from hge.baselines.consolidation import QuadraticPenalty, consolidating
from hge.baselines.network import Network
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch, as_float
from hge.experts.inputs import Standardise
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

ROWS_AT_ONCE = 32
"""Rows whose gradients are in memory at the same time, each as large as the network."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(OnlineEWC(setting), setting)


class OnlineEWC(NetworkRule):
    """Cross-entropy of the batch, and the penalty."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.factor = setting.config.baseline.penalty
        self.penalty = QuadraticPenalty(self.network.weights, setting.spec.optimiser.lr)
        self.last = LastBatches(setting.config.learner.replay_capacity, setting.device)
        self.parts |= {"penalty": self.penalty, "last": self.last}

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch."""
        loss, gradients = self.network.gradient(lambda net: cross_entropy(net(batch.x), batch.y), step)
        if not (isfinite(loss) and self.network.update(self.penalty.direction(gradients, self.factor))):
            return nan
        self.last.batches.append(batch)
        return loss

    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch."""
        return self.network.loss(batch)

    def consolidate(self) -> None:
        """Protect the weights by the Fisher information of the last rows."""
        if self.last.batches:
            x = torch.cat([batch.x for batch in self.last.batches])
            y = torch.cat([batch.y for batch in self.last.batches])
            self.penalty.consolidate(fisher(self.network, x, y))
            self.last.batches.clear()


def fisher(network: Network, x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the mean, over rows, of the squared gradient of log p(y|x), for each weight."""
    net, x = network.net, as_float(x)
    if isinstance(net, nn.Sequential) and isinstance(net[0], Standardise):  # which has no weights, and takes no vmap
        x, net = deepcopy(net[0]).eval()(x), net[1:]
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    buffers = dict(net.named_buffers())

    def loss(weights: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(net, (weights, buffers), (row[None],))
        return cross_entropy(logits, label[None])

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))
    found = [torch.zeros_like(weight) for weight in weights.values()]
    for rows, labels in zip(torch.split(x, ROWS_AT_ONCE), torch.split(y, ROWS_AT_ONCE), strict=True):
        for total, gradient in zip(found, gradients(weights, rows, labels).values(), strict=True):
            total += gradient.square().sum(0)
    return [total / len(x) for total in found]


class LastBatches:
    """The last batches of the stream."""

    parameters = 0

    def __init__(self, capacity: int, device: torch.device) -> None:
        self.batches, self.device = deque[Batch](maxlen=capacity), device

    @property
    def rows_kept(self) -> int:
        """Number of rows."""
        return sum(map(len, self.batches))

    def state(self) -> dict[str, Tensor]:
        """Return copies of the batches."""
        own = {f"{n}.{k}": t for n, batch in enumerate(self.batches) for k, t in (("x", batch.x), ("y", batch.y))}
        return copy_tensors(own, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.batches.clear()
        for n in range(len(tensors) // 2):
            self.batches.append(Batch(tensors[f"{n}.x"], tensors[f"{n}.y"]).to(self.device))
