"""Learning without Forgetting: the network at the last consolidation teaches the present one on new rows.

Source: Li and Hoiem 2016; settings of mammoth's `lwf`: α times the cross-entropy of softmax(old / T) and
softmax(new / T) over the classes seen before the consolidation, on the rows of the batch, T = 2, α = 1 (Split MNIST).

Departures: one head for all classes; no warm-up of a new head.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import isfinite

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hge.baselines.consolidation import consolidating
from hge.baselines.memory import SeenClasses
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch, as_float
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

TEMPERATURE = 2.0


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(LearningWithoutForgetting(setting), setting)


class LearningWithoutForgetting(NetworkRule):
    """Cross-entropy of the batch, and that with the answers of the teacher."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.factor = setting.config.baseline.penalty
        self.classes = SeenClasses(setting.spec.outputs, setting.device)
        self.teacher = Teacher(self.network.net, setting.spec.outputs, setting.device)
        self.parts |= {"classes": self.classes, "teacher": self.teacher}

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch."""
        known = self.teacher.classes

        def loss(net: Forward) -> Tensor:
            logits = net(batch.x)
            own = cross_entropy(logits, batch.y)
            if not known.any():
                return own
            targets = (self.teacher.logits(batch.x)[:, known] / TEMPERATURE).softmax(1)
            return own + self.factor * cross_entropy(logits[:, known] / TEMPERATURE, targets)

        value = self.network.step(loss, step)
        if isfinite(value):
            self.classes.add(batch.y)
        return value

    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch."""
        return self.network.loss(batch)

    def consolidate(self) -> None:
        """Make the present network the teacher of the classes seen so far."""
        self.teacher.copy(self.network.net, self.classes.seen)


class Teacher:
    """A frozen copy of the network, and the classes that it knows."""

    rows_kept = 0

    def __init__(self, net: nn.Module, outputs: int, device: torch.device) -> None:
        self.net = deepcopy(net).requires_grad_(False).eval()
        self.classes = torch.zeros(outputs, dtype=torch.bool, device=device)
        self.parameters = 0
        """It is not used for predictions."""

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits with running statistics."""
        out: Tensor = self.net(as_float(x))
        return out

    def copy(self, net: nn.Module, classes: Tensor) -> None:
        """Take over the weights of a network."""
        self.net.load_state_dict(net.state_dict())
        self.classes.copy_(classes)

    def state(self) -> dict[str, Tensor]:
        """Return copies of weights and classes."""
        return copy_tensors(self._tensors(), on_host=True)

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])

    def _tensors(self) -> dict[str, Tensor]:
        return {**self.net.state_dict(), "classes": self.classes}
