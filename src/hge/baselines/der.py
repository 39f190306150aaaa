"""Dark Experience Replay, DER and DER++: remembered rows are trained towards the logits that they once had.

Source: Buzzega et al. 2020 and mammoth's `der` and `derpp`: L = CE(x, y) + α ‖f(x′) - z′‖² (mean over entries), and for
DER++ + β CE(f(x″), y″), with two draws x′, x″ and a forward pass for each. The logits are those of the training step in
which a row was stored. α = 0.5 for DER, α = 0.2 and β = 0.5 for DER++: mammoth's for Split MNIST with 5 120 rows.

The logits of classes that had not been seen when a row was stored are matched, too, as in the paper: they say nothing
about the row, but without labels only they keep new classes from taking over the old rows. Without them DER forgets
like a plain network.
"""

from __future__ import annotations

from math import isfinite

from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from hge.baselines.memory import Reservoir
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
        super().__init__(setting, memory=self.memory)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and on remembered rows; then offer the batch, with its logits, to the memory."""
        current: list[Tensor] = []

        def loss(net: Forward) -> Tensor:
            logits = net(batch.x)
            current.append(logits.detach().float())
            total = cross_entropy(logits, batch.y)
            if self.memory.rows_kept:
                old = self.memory.draw(len(batch), step, number=0)
                total = total + self.config.logit_weight * mse_loss(net(old["x"]), old["logits"])
                if self.config.label_weight:
                    other = self.memory.draw(len(batch), step, number=1)
                    total = total + self.config.label_weight * cross_entropy(net(other["x"]), other["y"])
            return total

        value = self.network.step(loss, step)
        if isfinite(value):
            self.memory.add(step, x=batch.x, y=batch.y, logits=current[0])
        return value
