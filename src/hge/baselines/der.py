"""Dark Experience Replay, DER and DER++: remembered rows are trained towards the logits that they once had.

Source: Buzzega et al. 2020 and mammoth's `der` and `derpp`: L = CE(x, y) + α ‖f(x′) - z′‖² (mean over entries), and for
DER++ + β CE(f(x″), y″), with two draws x′, x″ and a forward pass for each. The logits are those of the training step in
which a row was stored. α = 0.5 for DER, α = 0.2 and β = 0.5 for DER++: mammoth's for Split MNIST with 5 120 rows.

Departure: logits of classes that had not been seen when a row was stored are not trained for; they say nothing, and
would hold new classes down.
"""

from __future__ import annotations

from math import isfinite, nan

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hge.baselines.memory import Reservoir, SeenClasses
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner; `baseline.label_weight` above 0 makes it DER++."""
    return RuleLearner(DarkReplay(setting), setting)


class DarkReplay(NetworkRule):
    """Cross-entropy of the batch, squared distance of remembered rows to their logits, and their cross-entropy."""

    def __init__(self, setting: Setting) -> None:
        self.config = setting.config.baseline
        self.memory = Reservoir(setting.memory, setting.keys, setting.device)
        self.classes = SeenClasses(setting.spec.outputs, setting.device)
        super().__init__(setting, memory=self.memory, classes=self.classes)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and on remembered rows; then offer the batch, with its logits, to the memory."""
        current: list[Tensor] = []

        def loss(net: Forward) -> Tensor:
            logits = net(batch.x)
            current.append(logits.detach().float())
            total = cross_entropy(logits, batch.y)
            if self.memory.rows_kept:
                old = self.memory.draw(len(batch), step, number=0)
                total = total + self.config.logit_weight * distance(net(old["x"]), old["logits"])
                if self.config.label_weight:
                    other = self.memory.draw(len(batch), step, number=1)
                    total = total + self.config.label_weight * cross_entropy(net(other["x"]), other["y"])
            return total

        value = self.network.step(loss, step)
        if isfinite(value):
            self.classes.add(batch.y)
            logits = torch.where(self.classes.seen, current[0], nan)
            self.memory.add(step, x=batch.x, y=batch.y, logits=logits)
        return value


def distance(logits: Tensor, stored: Tensor) -> Tensor:
    """Return the mean squared distance over the entries whose class had been seen when the row was stored.

    >>> logits, stored = torch.tensor([[1.0, 5.0], [3.0, 0.0]]), torch.tensor([[2.0, nan], [1.0, 1.0]])
    >>> float(distance(logits, stored))  # (1 + 4 + 1) / 3
    2.0
    """
    known = stored.isfinite()
    return (logits - stored)[known].square().mean()
