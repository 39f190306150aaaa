"""SNCL: sparse units by variational gates, and replay that keeps the logits and hidden activations of stored rows.

Source: Yan et al. 2022. No code is public, and the settings are guesses: this is our reading. Each hidden unit is
multiplied by a gate N(μ, σ²), drawn for each row in training and μ in predictions, with the penalty of an ARD prior,
0.5 log(1 + μ² / σ²). Loss: cross-entropy of the batch + α (squared distance of remembered rows to their logits and to
their hidden activations, each a mean over entries) + β cross-entropy of remembered rows + λ times the penalty, a mean
over units. Rows are kept with odds in proportion to their loss when they came.

Departures: GE's network, optimiser, batches and epochs, so MLPs only. Guesses: α 0.2 and β 0.5 (those of DER++ here),
λ 0.01 (`baseline.penalty`), μ = 1 and σ = 0.1 at first; logits and activations are stored without the noise of the
gates; the odds are those of weighted reservoir sampling (Efraimidis and Spirakis 2006).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus

from hge.baselines.memory import Reservoir
from hge.baselines.mlp import with_layers
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch, as_float
from hge.learning.online import Setting

FIRST_RHO = -2.25
"""softplus(-2.25) = 0.1."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(SNCL(with_layers(setting, GatedUnits)), setting)


class SNCL(NetworkRule):
    """Cross-entropy of the batch, what remembered rows had, and the penalty of the gates."""

    def __init__(self, setting: Setting) -> None:
        self.config = setting.config.baseline
        self.memory = ByLoss(setting.memory, setting.keys, setting.device)
        super().__init__(setting, memory=self.memory)
        (self.gated,) = (own for own in self.network.net.modules() if isinstance(own, GatedUnits))

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and remembered rows; then offer the batch, as it is answered now, to the memory."""
        current: list[float] = []

        def loss(net: Forward) -> Tensor:
            own = cross_entropy(net(batch.x), batch.y)
            current.append(float(own.detach()))
            total = own + self.config.penalty * self.gated.penalty()
            if self.memory.rows_kept:
                old = self.memory.draw(len(batch), step)
                logits = net(old["x"])
                match = mse_loss(logits, old["logits"]) + mse_loss(self.gated.hidden, old["hidden"])
                total = total + self.config.logit_weight * match
                total = total + self.config.label_weight * cross_entropy(logits, old["y"])
            return total

        if not isfinite(self.network.step(loss, step)):
            return nan
        with torch.no_grad():
            logits = self.network.net(as_float(batch.x))
            losses = cross_entropy(logits, batch.y, reduction="none")
        self.memory.offer(step, losses, x=batch.x, y=batch.y, logits=logits, hidden=self.gated.hidden)
        return current[0]


class GatedUnits(nn.Module):
    """An MLP whose hidden units are multiplied by gates; it keeps the activations of its last forward pass."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        widths = [layer.out_features for layer in layers if isinstance(layer, nn.Linear)]
        self.widths = widths[: sum(isinstance(layer, nn.ReLU) for layer in layers)]
        if not self.widths:
            raise ValueError("net: got a network without hidden units, expected an MLP with some, as net=mlp")
        self.mean = nn.Parameter(torch.ones(sum(self.widths)))
        self.rho = nn.Parameter(torch.full((sum(self.widths),), FIRST_RHO))
        self.hidden = torch.zeros(0)
        """[rows, units]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        gates = self.mean.expand(len(x), -1)
        if self.training:
            gates = gates + softplus(self.rho) * torch.randn_like(gates)
        left, hidden = list(torch.split(gates, self.widths, dim=1)), []
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.ReLU):
                x = x * left.pop(0)
                hidden.append(x)
        self.hidden = torch.cat(hidden, dim=1)
        return x

    def penalty(self) -> Tensor:
        """Return 0.5 log(1 + μ² / σ²), a mean over units: small gates, and uncertain ones, cost little."""
        return 0.5 * (1 + (self.mean / softplus(self.rho)).square()).log().mean()


class ByLoss(Reservoir):
    """Rows kept with odds in proportion to a weight: those with the largest u^(1 / weight), u uniform."""

    def offer(self, step: int, weights: Tensor, **columns: Tensor) -> None:
        """Offer rows with their weights."""
        drawn = torch.from_numpy(self.keys.rng("replay", step).random(len(weights))).to(weights.device)
        offered = columns | {"chance": drawn.log() / weights.double().clamp_min(1e-12)}
        self.seen += len(weights)
        if self.columns:
            offered = {name: torch.cat([self.columns[name], values]) for name, values in offered.items()}
        best = offered["chance"].topk(self.rows_kept).indices
        self.columns = {name: values[best] for name, values in offered.items()}
