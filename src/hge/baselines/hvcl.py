"""HVCL: layers of several variational experts, one of which a gate chooses for each row; the posterior becomes a prior.

Source: Hihn and Braun 2023 and their code for layers (that of their experiments with classes is not public, so this
is our reading). Each linear layer has two experts and a linear softmax gate on its inputs, by which the expert of a
row is drawn in training. An expert's weights are normal: a mean for each, and a deviation softplus(ρ) for each unit,
ρ = -2.6 at first; Flipout gives every row weights of its own. Loss: cross-entropy + β KL(experts ‖ prior) + 0.5 KL(gate
‖ prior gate) + 0.02 (H(mean gate) + E H(gate) - det exp(-W₂² / 10)), each a mean over rows, weights and layers; W₂ are
the distances of the experts of a layer, β = 1 (`baseline.penalty`). At a consolidation prior ← posterior. Predictions:
mean weights and the gate's best expert. Both entropies are made small, as in that code.

Departures: GE's network, optimiser, batches and epochs, so MLPs only; one head for all classes. No replay, with which
their published figures were reached. Guesses: the mean over weights in the KL divergence (a sum, divided by the rows
of a task, would be several times as strong), W₂ as a mean over weights, and how the gate learns by what it drew
(its probability is a factor of the output, of value 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, softplus

from hge.baselines.consolidation import consolidating
from hge.baselines.mlp import with_layers
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting

EXPERTS = 2
FIRST_RHO = -2.6
GATE_PENALTY = 0.5
"""β_g."""
DIVERSITY = 0.02
"""d."""
LENGTH = 10.0
"""Of the kernel of distances."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(HVCL(with_layers(setting, variational)), setting)


def variational(layers: Sequence[nn.Module]) -> nn.Module:
    """Return the network with variational linear layers."""
    return nn.Sequential(*(VariationalExperts(own) if isinstance(own, nn.Linear) else own for own in layers))


class HVCL(NetworkRule):
    """Cross-entropy of the batch, and the distance from the prior."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.factor = setting.config.baseline.penalty
        self.layers = [own for own in self.network.net.modules() if isinstance(own, VariationalExperts)]

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch; return its cross-entropy, at a draw of the weights."""
        current: list[float] = []

        def loss(net: Forward) -> Tensor:
            own = cross_entropy(net(batch.x), batch.y)
            current.append(float(own.detach()))
            return own + torch.stack([layer.penalty(self.factor) for layer in self.layers]).mean()

        return current[0] if isfinite(self.network.step(loss, step)) else nan

    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch with the mean weights."""
        return float(cross_entropy(self.logits(batch.x), batch.y))

    def consolidate(self) -> None:
        """Make the posterior the prior."""
        for layer in self.layers:
            layer.consolidate()


class VariationalExperts(nn.Module):
    """A linear layer with several experts, and their prior."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        others = [nn.Linear(layer.in_features, layer.out_features) for _ in range(EXPERTS - 1)]
        experts = [layer, *others]
        self.mean = nn.Parameter(torch.stack([expert.weight.detach() for expert in experts]))
        bias = [torch.zeros(layer.out_features) if expert.bias is None else expert.bias.detach() for expert in experts]
        self.bias = nn.Parameter(torch.stack(bias))
        self.rho = nn.Parameter(torch.full((EXPERTS, layer.out_features, 1), FIRST_RHO))
        self.gate = nn.Linear(layer.in_features, EXPERTS)
        for name, tensor in self._posterior().items():
            self.register_buffer(f"prior_{name}", tensor.detach().clone())
        self._found = (torch.zeros(1, EXPERTS), torch.zeros(1, EXPERTS))

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of each row's expert: one that is drawn, with drawn weights, in training."""
        logits = self.gate(x)
        outputs = torch.einsum("ri,eoi->reo", x, self.mean) + self.bias
        if not self.training:
            return _of(outputs, logits.argmax(1))
        self._found = logits.log_softmax(1), self._prior_gate(x).log_softmax(1)
        chosen = torch.multinomial(logits.detach().softmax(1), 1)
        # A draw has no gradient: the gate learns by the probability of what it drew, a factor of 1.
        probability = logits.softmax(1).gather(1, chosen)
        drawn: Tensor = _of(outputs + self._flipout(x), chosen[:, 0]) * (probability / probability.detach())
        return drawn

    def penalty(self, factor: float) -> Tensor:
        """Return what is added to the loss for the rows of the last forward pass in training."""
        log_p, log_prior = self._found
        p, deviation, prior = log_p.exp(), softplus(self.rho), softplus(self.get_buffer("prior_rho"))
        apart = (self.mean - self.get_buffer("prior_mean")).square()
        weights = (prior / deviation).log() + (deviation.square() + apart) / (2 * prior.square()) - 0.5
        gate = (p * (log_p - log_prior)).sum(1).mean()
        entropies = _entropy(p.mean(0)) + _entropy(p).mean()
        spread = entropies - torch.linalg.det((-self.distances() / LENGTH).exp())
        total: Tensor = factor * weights.mean() + GATE_PENALTY * gate + DIVERSITY * spread
        return total

    def distances(self) -> Tensor:
        """Return [experts, experts]: the squared Wasserstein distances, as means over weights."""
        deviation = softplus(self.rho).expand_as(self.mean)
        own = torch.stack([self.mean, deviation], dim=1).flatten(1)
        found: Tensor = (own[:, None] - own[None]).square().sum(2) / self.mean[0].numel()
        return found

    @torch.no_grad()
    def consolidate(self) -> None:
        """Make the posterior the prior."""
        for name, tensor in self._posterior().items():
            self.get_buffer(f"prior_{name}").copy_(tensor)

    def _posterior(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "rho": self.rho, "gate": self.gate.weight, "gate_bias": self.gate.bias}

    def _prior_gate(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.get_buffer("prior_gate"), self.get_buffer("prior_gate_bias"))

    def _flipout(self, x: Tensor) -> Tensor:
        """Return what noisy weights add to the outputs [rows, experts, units]: one draw, with signs of each row."""
        noise = softplus(self.rho) * torch.randn_like(self.mean)
        inputs, units = (torch.randint(0, 2, (len(x), n), device=x.device) * 2.0 - 1 for n in self.mean.shape[:0:-1])
        return torch.einsum("ri,eoi->reo", x * inputs, noise) * units[:, None]


def _of(outputs: Tensor, chosen: Tensor) -> Tensor:
    """Return each row's own output, of [rows, experts, units]."""
    return outputs[torch.arange(len(outputs), device=outputs.device), chosen]


def _entropy(p: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(p).sum(dim=-1)
    return found
