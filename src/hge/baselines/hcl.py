"""HCL: a normalising flow models all classes of all tasks, detects switches and replays what it draws from a copy.

Source: Kirichenko et al. 2021; no code is public, so this is our reading, and the settings are guesses. The flow maps a
row to a latent; class y of task t is N(μ_ty, I) there, with a mean drawn once. Loss: -log p(x, y | t), the normal
density of the latent and the log-determinant of the flow. Three statistics of a batch (log p(x | t), log p of its
latents given t, and the log-determinant, each a mean over rows) are kept for each task. A batch whose statistics are
all further than λ = 3 deviations from their mean, for every task, begins a new task; otherwise it is of the task in
use, or else of the first one that it fits. When a task begins the flow is copied; each step then draws as many rows
as the batch has from the copy. HCL-GR (`baseline.functional` false) adds their -log p(x, y | t), HCL-FR
α ‖f(x) - f₀(x)‖², α = 1. Prediction: the class with the highest sum over tasks.

Guesses: means and deviations are those of the last 100 batches of a task, and nothing is detected before the 20th.
Flow: six couplings with two hidden layers of 256, on flat rows, plus noise of deviation 0.1 in training (theirs: a
convolutional flow). Adam 1e-3. In few dimensions the means are drawn further apart, so that classes can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from math import log, nan, pi, sqrt

import torch
from torch import Tensor

from hge.baselines.flow import Flow
from hge.baselines.rule import Part, RuleLearner
from hge.baselines.scaling import FlatInputs
from hge.baselines.trained import Trained
from hge.core.randomness import Keys, Purpose
from hge.core.types import Batch
from hge.experts.optim import multiply_adds
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

NOISE = 0.1
WINDOW = 100
"""Batches of a task whose statistics are usual."""
WARM_UP = 20
DEVIATIONS = 3.0
"""λ."""
FAR_APART = 12.0
"""Least root of the mean squared distance of two means."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(HCL(setting), setting)


class HCL:
    """Trains the flow on the batch as rows of a task that it finds, and on rows of the copied flow."""

    def __init__(self, setting: Setting) -> None:
        self.keys, self.config, self.device = setting.keys, setting.config.baseline, setting.device
        self.inputs = FlatInputs(setting.spec, setting.device)
        with self.keys.seeded("weights", 0, device=self.device):
            self.flow = Flow(self.inputs.size).to(self.device)
        self.trained = Trained(self.flow)
        self.old = deepcopy(self.flow).requires_grad_(False)
        self.tasks = Tasks(self.inputs.size, setting.spec.outputs, setting.keys, setting.device)
        self.parts: dict[str, Part] = {
            "inputs": self.inputs,
            "flow": self.trained,
            "old": Copy(self.old),
            "tasks": self.tasks,
        }
        row = torch.zeros(1, self.inputs.size, device=self.device)
        self.multiply_adds = multiply_adds(self.flow, row)

    def learn(self, batch: Batch, step: int) -> float:
        """Find the task of a batch, which may be a new one; train."""
        self.inputs.see(batch.x)
        rows = self.inputs(batch.x)
        rows = rows + NOISE * self._normal(rows.shape, "noise", step)
        if not len(self.tasks.seen):
            self.flow.start(rows)
            self.old.load_state_dict(self.flow.state_dict())
        z, log_determinant = self.flow(rows)
        found = self.tasks.statistics(z.detach(), log_determinant.detach())
        task = self.tasks.which(found)
        y, fresh = batch.y, task == len(self.tasks.seen)
        means = self.tasks.means(task)[y]
        value = -(log_normal(z, means) + log_determinant).mean()
        replayed = self._replay(len(batch), step, copying=fresh)
        loss = (value if replayed is None else value + replayed) / self.inputs.size
        gradients = self.trained.gradient(loss)
        if not all(gradient.isfinite().all() for gradient in gradients):
            return nan
        if fresh:
            self.old.load_state_dict(self.flow.state_dict())
            self.tasks.add()
        self.trained.update(gradients)
        self.tasks.count(task, y, z.detach(), log_determinant.detach())
        return float(value.detach()) / self.inputs.size

    def _replay(self, rows: int, step: int, *, copying: bool) -> Tensor | None:
        """Return the loss of rows of the copied flow, or of the present one if that is about to be copied."""
        known = self.tasks.seen if copying else self.tasks.replayed
        pairs = known.nonzero()
        if not len(pairs):
            return None
        chosen = pairs[self.keys.rng("rehearsal", step).integers(0, len(pairs), rows)]
        every = torch.stack([self.tasks.means(task) for task in range(len(known))])
        means = every[chosen[:, 0], chosen[:, 1]]
        drawn = means + self._normal(means.shape, "latent", step)
        with torch.no_grad():
            x = (self.flow if copying else self.old).inverse(drawn)
        z, log_determinant = self.flow(x)
        if self.config.functional:
            apart: Tensor = self.config.penalty * (z - drawn).square().sum(dim=1).mean()
            return apart
        likely: Tensor = (log_normal(z, means) + log_determinant).mean()
        return -likely

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return log Σ_t p(z | t, y), up to a constant; all classes alike while nothing was learned."""
        z, _ = self.flow(self.inputs(x))
        found: Tensor = z.new_zeros(1, len(z), self.tasks.classes)
        return (self.tasks.log_densities(z) if len(self.tasks.seen) else found).logsumexp(dim=0)

    def _normal(self, shape: torch.Size, purpose: Purpose, step: int) -> Tensor:
        generator = self.keys.generator(purpose, step, device=self.device)
        return torch.randn(shape, generator=generator, device=self.device)


class Tasks:
    """The classes of each task, their means, and the usual statistics of its batches."""

    rows_kept = 0
    parameters = 0

    def __init__(self, size: int, classes: int, keys: Keys, device: torch.device) -> None:
        self.size, self.classes, self.keys, self.device = size, classes, keys, device
        self.seen = torch.zeros(0, classes, dtype=torch.bool, device=device)
        """[tasks, classes]."""
        self.replayed = self.seen
        """Those of the copied flow."""
        self.usual: list[Tensor] = []
        """For each task [batches, 3]."""
        self.active = 0
        self._means: list[Tensor] = []

    def means(self, task: int) -> Tensor:
        """Return μ of all classes of a task."""
        while len(self._means) <= task:
            generator = self.keys.generator("directions", len(self._means), device=self.device)
            drawn = torch.randn(self.classes, self.size, generator=generator, device=self.device)
            self._means.append(drawn * max(1.0, FAR_APART / sqrt(2 * self.size)))
        return self._means[task]

    def log_densities(self, z: Tensor) -> Tensor:
        """Return [tasks, rows, classes]: log N(z; μ_ty, I), -inf for classes that are not of the task."""
        found = [log_normal(z[:, None], self.means(task)) for task in range(len(self.seen))]
        return torch.stack(found).masked_fill(~self.seen[:, None], -torch.inf)

    def statistics(self, z: Tensor, log_determinant: Tensor) -> Tensor:
        """Return [tasks, 3]: log p(x | t), log p(z | t) and the log-determinant, each a mean over rows."""
        if not len(self.seen):
            return z.new_zeros(0, 3)
        classes = self.seen.sum(dim=1).log()
        latent = self.log_densities(z).logsumexp(dim=2).mean(dim=1) - classes
        volume = log_determinant.mean().expand(len(latent))
        return torch.stack([latent + volume, latent, volume], dim=1)

    def which(self, found: Tensor) -> int:
        """Return the task that a batch with these statistics is of: the active one, an earlier one, or the next."""
        order = sorted(range(len(self.usual)), key=lambda task: task != self.active)
        return next((task for task in order if self._fits(task, found[task])), len(self.usual))

    def _fits(self, task: int, found: Tensor) -> bool:
        usual = self.usual[task]
        if len(usual) < WARM_UP:
            return True
        deviation, mean = torch.std_mean(usual, dim=0)
        return not bool(((found - mean).abs() > DEVIATIONS * deviation).all())

    def add(self) -> None:
        """Add a task; the classes of the others are those of the copied flow."""
        self.replayed = self.seen.clone()
        self.seen = torch.cat([self.seen, self.seen.new_zeros(1, self.classes)])
        self.usual.append(torch.zeros(0, 3, device=self.device))

    def count(self, task: int, y: Tensor, z: Tensor, log_determinant: Tensor) -> None:
        """Count a batch that was learned as one of a task."""
        self.active = task
        self.seen[task, y] = True
        found = self.statistics(z, log_determinant)[task]
        self.usual[task] = torch.cat([self.usual[task], found[None]])[-WINDOW:]

    def state(self) -> dict[str, Tensor]:
        """Return copies of classes and statistics."""
        own = {"seen": self.seen, "replayed": self.replayed, "active": torch.tensor(self.active)}
        own |= {f"usual.{task}": usual for task, usual in enumerate(self.usual)}
        return copy_tensors(own, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        own = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
        self.seen, self.replayed, self.active = own["seen"], own["replayed"], int(own["active"])
        self.usual = [own[f"usual.{task}"] for task in range(len(self.seen))]


class Copy:
    """A copied module: not used for predictions."""

    rows_kept = 0
    parameters = 0

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net

    def state(self) -> dict[str, Tensor]:
        """Return copies."""
        return copy_tensors(self.net.state_dict(), on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.net.load_state_dict(dict(tensors))


def log_normal(z: Tensor, mean: Tensor) -> Tensor:
    """Return log N(z; mean, I) of each row."""
    return -0.5 * (z - mean).square().sum(dim=-1) - 0.5 * z.shape[-1] * log(2 * pi)
