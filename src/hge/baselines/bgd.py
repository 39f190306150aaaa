"""Bayesian Gradient Descent: every weight has a mean and a deviation; certain weights hardly move.

Source: Zeno et al. 2018 and their code. K = 10 times: ε ~ N(0, 1), θ = μ + σε, g the gradient of the *summed* loss.
With ḡ = E[g] and s = E[gε]: μ ← μ - ησ²ḡ; σ ← σ √(1 + (σs/2)²) - σ²s/2. Predictions with θ = μ. η = 1, σ₀ = 0.05:
theirs for an MLP of two layers of 400. Labels trick (`baseline.labels_trick`): the cross-entropy is over the labels in
the batch only, which reveals much of the task.

Departures: GE's network and its initial weights; of a BatchNorm, the statistics of the last of the K passes are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite, nan

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

SAMPLES = 10
"""K."""
LEARNING_RATE = 1.0
"""η."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(BayesianGradientDescent(setting), setting)


class BayesianGradientDescent(NetworkRule):
    """The network's weights are the means."""

    def __init__(self, setting: Setting) -> None:
        # Predictions use the means themselves, not a moving average of weights, which the updates below do not feed.
        optimiser = replace(setting.spec.optimiser, average=0.0)
        super().__init__(replace(setting, spec=replace(setting.spec, optimiser=optimiser)))
        self.keys, self.labels_trick = setting.keys, setting.config.baseline.labels_trick
        self.deviations = Deviations(self.network.weights, setting.config.baseline.deviation)
        self.parts |= {"deviations": self.deviations}

    def learn(self, batch: Batch, step: int) -> float:
        """Move means and deviations by the gradients at samples of the weights."""
        weights, sigmas = self.network.weights, self.deviations.sigmas
        means = [weight.detach().clone() for weight in weights]
        mean_gradient = [torch.zeros_like(mean) for mean in means]
        noisy_gradient = [torch.zeros_like(mean) for mean in means]
        losses = []
        for number in range(SAMPLES):
            noise = self._noise(means, step, number)
            _set(weights, [mean + sigma * e for mean, sigma, e in zip(means, sigmas, noise, strict=True)])
            loss, gradients = self.network.gradient(lambda net: self._loss(net, batch), step)
            losses.append(loss / len(batch))
            for total, noisy, g, e in zip(mean_gradient, noisy_gradient, gradients, noise, strict=True):
                total += g / SAMPLES
                noisy += g * e / SAMPLES
        _set(weights, means)
        if not all(gradient.isfinite().all() for gradient in mean_gradient) or not all(map(isfinite, losses)):
            return nan
        for weight, sigma, g, s in zip(weights, sigmas, mean_gradient, noisy_gradient, strict=True):
            weight.data -= LEARNING_RATE * sigma.square() * g
            sigma.copy_(sigma * (1 + (sigma * s / 2).square()).sqrt() - sigma.square() * s / 2)
        return sum(losses) / SAMPLES

    def _loss(self, net: Forward, batch: Batch) -> Tensor:
        logits = net(batch.x)
        if self.labels_trick:
            absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
            absent[batch.y] = False
            logits = logits.masked_fill(absent, -inf)
        return cross_entropy(logits, batch.y, reduction="sum")

    def _noise(self, means: list[Tensor], step: int, number: int) -> list[Tensor]:
        generator = self.keys.generator("noise", step, number, device=means[0].device)
        return [torch.randn(mean.shape, generator=generator, device=mean.device) for mean in means]


def _set(weights: list[torch.nn.Parameter], values: list[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.data.copy_(value)


class Deviations:
    """σ of each weight."""

    rows_kept = 0

    def __init__(self, weights: list[torch.nn.Parameter], start: float) -> None:
        self.sigmas = [torch.full_like(weight, start, requires_grad=False) for weight in weights]

    @property
    def parameters(self) -> int:
        """As many as there are weights."""
        return sum(sigma.numel() for sigma in self.sigmas)

    def state(self) -> dict[str, Tensor]:
        """Return copies."""
        return copy_tensors({str(number): sigma for number, sigma in enumerate(self.sigmas)}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for number, sigma in enumerate(self.sigmas):
            sigma.copy_(tensors[str(number)])
