"""ER-ACE: experience replay in which a new batch does not push the classes of earlier ones away.

Source: Caccia et al. 2022 ("New insights on reducing abrupt representation change"). In the loss of the batch, classes
that were seen but are absent from the batch have no logit; the loss of the remembered rows has all of them.

Departures: public implementations take every class above the largest one seen for unseen, which is right only if
classes arrive in numeric order; here unseen is what was not seen. The head is the network's own, not a cosine one.
"""

from __future__ import annotations

from math import inf, isfinite

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hge.baselines.memory import Reservoir, SeenClasses
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(AsymmetricReplay(setting), setting)


class AsymmetricReplay(NetworkRule):
    """Cross-entropy of the batch over its own and unseen classes, plus that of remembered rows over all classes."""

    def __init__(self, setting: Setting) -> None:
        self.memory = Reservoir(setting.memory, setting.keys, setting.device)
        self.classes = SeenClasses(setting.spec.outputs, setting.device)
        super().__init__(setting, memory=self.memory, classes=self.classes)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and on remembered rows; then offer the batch to the memory."""
        absent = self.classes.seen.clone()
        absent[batch.y] = False
        old = self.memory.draw(len(batch), step) if self.memory.rows_kept else {"x": batch.x[:0], "y": batch.y[:0]}

        def loss(net: Forward) -> Tensor:
            logits = net(torch.cat([batch.x, old["x"]]))
            new, remembered = logits[: len(batch)], logits[len(batch) :]
            own = cross_entropy(new.masked_fill(absent, -inf), batch.y)
            return own + cross_entropy(remembered, old["y"]) if len(remembered) else own

        value = self.network.step(loss, step)
        if isfinite(value):
            self.memory.add(step, x=batch.x, y=batch.y)
            self.classes.add(batch.y)
        return value
