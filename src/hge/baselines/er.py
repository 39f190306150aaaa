"""Experience replay: every step also trains on rows drawn from a reservoir.

Sources: Chaudhry et al. 2019 ("On tiny episodic memories"), Riemer et al. 2019; the step of mammoth's `er`: the rows of
the batch and as many from the memory in one forward pass, so that a BatchNorm sees both.

Departures: network, optimiser, batches and epochs are those of GE here, not those of the papers.
"""

from __future__ import annotations

from math import isfinite

import torch
from torch.nn.functional import cross_entropy

from hge.baselines.memory import Reservoir
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(ExperienceReplay(setting), setting)


class ExperienceReplay(NetworkRule):
    """Cross-entropy of the batch and of as many remembered rows."""

    def __init__(self, setting: Setting) -> None:
        self.memory = Reservoir(setting.memory, setting.keys, setting.device)
        super().__init__(setting, memory=self.memory)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and on remembered rows; then offer the batch to the memory."""
        x, y = batch.x, batch.y
        if self.memory.rows_kept:
            old = self.memory.draw(len(batch), step)
            x, y = torch.cat([x, old["x"]]), torch.cat([y, old["y"]])
        loss = self.network.step(lambda net: cross_entropy(net(x), y), step)
        if isfinite(loss):
            self.memory.add(step, x=batch.x, y=batch.y)
        return loss
