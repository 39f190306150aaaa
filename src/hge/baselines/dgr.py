"""Deep generative replay: rows drawn from a generator, labelled by an earlier classifier, stand in for stored ones.

Sources: Shin et al. 2017; settings of van de Ven's code for Split MNIST. At a boundary generator and classifier are
copied. From then on every step draws as many rows as the batch has from the copy of the generator, and the copy of the
classifier labels them (its best class, of those seen by then). Both networks are trained on L_now / t +
(1 - 1 / t) L_replay, t being the number of tasks so far. The generator is a variational autoencoder: 100 latents, two
hidden layers of 400 units, cross-entropy of pixels, Adam 1e-3.

Departures: classifier, its optimiser, batches and epochs are GE's (theirs: 2 000 steps a task). Rows that are no pixels
are standardised, and their likelihood is Gaussian with variance 1. Two forward passes of the classifier, one for each
kind of rows. After regular or detected consolidations (`baseline.consolidate`) t counts these.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import isfinite, nan

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from hge.baselines.consolidation import consolidating
from hge.baselines.lwf import Teacher
from hge.baselines.memory import SeenClasses
from hge.baselines.network import Forward
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.baselines.scaling import FlatInputs
from hge.baselines.trained import Trained
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

LATENTS = 100
HIDDEN = 400


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(DeepGenerativeReplay(setting), setting)


class DeepGenerativeReplay(NetworkRule):
    """Trains the network and a generator on the batch and on rows of the copied generator."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.keys = setting.keys
        self.inputs = FlatInputs(setting.spec, setting.device)
        self.generator = Generator(self.inputs, setting.keys, setting.device)
        self.teacher = Teacher(self.network.net, setting.spec.outputs, setting.device)
        self.classes = SeenClasses(setting.spec.outputs, setting.device)
        self.parts |= {"inputs": self.inputs, "generator": self.generator}
        self.parts |= {"teacher": self.teacher, "classes": self.classes}

    def learn(self, batch: Batch, step: int) -> float:
        """Train both networks; return the cross-entropy of the batch."""
        self.inputs.see(batch.x)
        share = 1 / self.generator.tasks
        parts = [(share, batch)] if share == 1 else [(share, batch), (1 - share, self.replay(len(batch), step))]
        current: list[float] = []

        def loss(net: Forward) -> Tensor:
            losses = [cross_entropy(net(rows.x), rows.y) for _, rows in parts]
            current.append(float(losses[0].detach()))
            return torch.stack([weight * own for (weight, _), own in zip(parts, losses, strict=True)]).sum()

        elbo = [weight * self.generator.loss(rows.x, step, number) for number, (weight, rows) in enumerate(parts)]
        gradients = self.generator.gradient(torch.stack(elbo).sum())
        if not all(gradient.isfinite().all() for gradient in gradients):
            return nan
        if not isfinite(self.network.step(loss, step)):
            return nan
        self.generator.update(gradients)
        self.classes.add(batch.y)
        return current[0]

    @torch.no_grad()
    def replay(self, rows: int, step: int) -> Batch:
        """Return rows of the copied generator with labels of the copied classifier."""
        x = self.generator.draw(rows, step)
        return Batch(x, self.teacher.logits(x).masked_fill(~self.teacher.classes, -torch.inf).argmax(dim=1))

    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch."""
        return self.network.loss(batch)

    def consolidate(self) -> None:
        """Copy both networks."""
        self.teacher.copy(self.network.net, self.classes.seen)
        self.generator.copy()


class Generator(Trained):
    """A variational autoencoder, and its copy at the last consolidation."""

    def __init__(self, inputs: FlatInputs, keys: Keys, device: torch.device) -> None:
        self.inputs, self.keys, self.device = inputs, keys, device
        with keys.seeded("weights", 0, 1, device=device):
            self.vae = VAE(inputs.size).to(device)
        super().__init__(self.vae)
        self.parameters = 0
        self.old = deepcopy(self.vae).requires_grad_(False)
        self.tasks = 1

    def loss(self, x: Tensor, step: int, number: int) -> Tensor:
        """Return -ELBO of inputs, a mean over rows and their features."""
        rows = self.inputs(x)
        noise = self._normal(len(rows), step, number)
        mean, log_variance = self.vae.encoder(rows).chunk(2, dim=1)
        decoded = self.vae.decoder(mean + noise * (0.5 * log_variance).exp())
        if self.inputs.bounded:
            apart = binary_cross_entropy_with_logits(decoded, rows, reduction="none")
        else:
            apart = 0.5 * (decoded - rows).square()
        divergence = 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance)
        loss: Tensor = (apart.sum(1) + divergence.sum(1)).mean() / self.inputs.size
        return loss

    def draw(self, rows: int, step: int) -> Tensor:
        """Return inputs drawn from the copy."""
        decoded = self.old.decoder(self._normal(rows, step, 2))
        return self.inputs.original(decoded.sigmoid() if self.inputs.bounded else decoded)

    def copy(self) -> None:
        """Copy the autoencoder: another task begins."""
        self.old.load_state_dict(self.vae.state_dict())
        self.tasks += 1

    def _normal(self, rows: int, step: int, number: int) -> Tensor:
        generator = self.keys.generator("latent", step, number, device=self.device)
        return torch.randn(rows, LATENTS, generator=generator, device=self.device)

    def state(self) -> dict[str, Tensor]:
        """Return copies of both autoencoders, and the number of tasks."""
        old = {f"old.{name}": tensor for name, tensor in self.old.state_dict().items()}
        return super().state() | copy_tensors(old | {"tasks": torch.tensor(self.tasks)}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        super().load_state(tensors)
        self.old.load_state_dict({n.removeprefix("old."): t for n, t in tensors.items() if n.startswith("old.")})
        self.tasks = int(tensors["tasks"])


class VAE(nn.Module):
    """An encoder to mean and log-variance of the latents, and a decoder."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.encoder, self.decoder = _two_hidden(size, 2 * LATENTS), _two_hidden(LATENTS, size)


def _two_hidden(inputs: int, outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, outputs))
