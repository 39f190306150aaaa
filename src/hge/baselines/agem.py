"""A-GEM: a step that would raise the loss of remembered rows is turned until it does not.

Source: Chaudhry et al. 2019 ("Efficient lifelong learning with A-GEM"). g is the gradient of the batch, r that of rows
drawn from a memory. If g · r < 0, the step follows g - (g · r / r · r) r, which is orthogonal to r.

Departures: the memory is a reservoir, where theirs has as many rows of each task, so that task ids are not needed. GE's
network, optimiser, batches and epochs: with momentum, the steps before have a say as well. A BatchNorm sees the batch
and the remembered rows one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hge.baselines.memory import Reservoir
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(AveragedGradientEpisodicMemory(setting), setting)


class AveragedGradientEpisodicMemory(NetworkRule):
    """Cross-entropy of the batch, under the constraint that of remembered rows does not rise."""

    def __init__(self, setting: Setting) -> None:
        self.memory = Reservoir(setting.memory, setting.keys, setting.device)
        super().__init__(setting, memory=self.memory)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch, then offer it to the memory."""
        loss, gradients = self.network.gradient(lambda net: cross_entropy(net(batch.x), batch.y), step)
        if isfinite(loss) and self.memory.rows_kept:
            old = self.memory.draw(len(batch), step)
            _, reference = self.network.gradient(lambda net: cross_entropy(net(old["x"]), old["y"]), step)
            gradients = projected(gradients, reference)
        if not self.network.update(gradients):
            return nan
        self.memory.add(step, x=batch.x, y=batch.y)
        return loss


def projected(gradients: Sequence[Tensor], reference: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradients without their part against the reference.

    >>> projected([torch.tensor([1.0, -1.0])], [torch.tensor([0.0, 2.0])])
    [tensor([1., 0.])]
    >>> projected([torch.tensor([1.0, 1.0])], [torch.tensor([0.0, 2.0])])
    [tensor([1., 1.])]
    """
    against = _dot(gradients, reference)
    if not against < 0:
        return list(gradients)
    factor = against / _dot(reference, reference)
    return [g - factor * r for g, r in zip(gradients, reference, strict=True)]


def _dot(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    return torch.stack([(a * b).sum() for a, b in zip(left, right, strict=True)]).sum()
