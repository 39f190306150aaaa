"""Synaptic Intelligence: weights whose movement reduced the loss are pulled back to where they were.

Source: Zenke et al. 2017. ω += -g·Δθ at each step, g the gradient of the batch's loss without the penalty and Δθ what
the optimiser made of both; at a consolidation Ω += ω / ((θ - θ*)² + ξ); penalty c Σ Ω (θ - θ*)². c = 1 and ξ = 1:
mammoth's for Split MNIST.

Departures: a negative ω counts as 0, as in van de Ven's code: a negative Ω would push weights away. Steps are proximal
in the penalty (`QuadraticPenalty`), so that a large Ω cannot make them diverge.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hge.baselines.consolidation import QuadraticPenalty, consolidating
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

DAMPING = 1.0
"""ξ."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(SynapticIntelligence(setting), setting)


class SynapticIntelligence(NetworkRule):
    """Cross-entropy of the batch, and the penalty."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.factor = setting.config.baseline.penalty
        self.penalty = QuadraticPenalty(self.network.weights, setting.spec.optimiser.lr)
        self.paths = Paths(self.network.weights)
        self.parts |= {"penalty": self.penalty, "paths": self.paths}

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch, and note by how much each weight reduced its loss."""
        loss, gradients = self.network.gradient(lambda net: cross_entropy(net(batch.x), batch.y), step)
        before = [weight.detach().clone() for weight in self.network.weights]
        total = self.penalty.direction(gradients, self.factor)
        if not (isfinite(loss) and self.network.update(total)):
            return nan
        with torch.no_grad():
            for path, g, weight, old in zip(self.paths.sums, gradients, self.network.weights, before, strict=True):
                path -= g * (weight - old)
        return loss

    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch."""
        return self.network.loss(batch)

    @torch.no_grad()
    def consolidate(self) -> None:
        """Protect the weights by the paths that they took since the last time."""
        moved = zip(self.paths.sums, self.penalty.weights, self.penalty.anchor, strict=True)
        found = [path.clamp_min(0) / ((weight - anchor).square() + DAMPING) for path, weight, anchor in moved]
        self.penalty.consolidate(found)
        for path in self.paths.sums:
            path.zero_()


class Paths:
    """ω: by how much each weight reduced the loss since the last consolidation."""

    rows_kept = 0
    parameters = 0

    def __init__(self, weights: list[torch.nn.Parameter]) -> None:
        self.sums = [torch.zeros_like(weight, requires_grad=False) for weight in weights]

    def state(self) -> dict[str, Tensor]:
        """Return copies."""
        return copy_tensors({str(number): tensor for number, tensor in enumerate(self.sums)}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for number, tensor in enumerate(self.sums):
            tensor.copy_(tensors[str(number)])
