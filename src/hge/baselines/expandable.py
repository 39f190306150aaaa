"""Dynamically Expandable Representation: a new feature extractor for each task, beside the frozen ones.

Source: Yan et al. 2021 and their code. At a boundary the extractor is frozen and a new one begins with its weights; a
newly drawn linear head sees the features of all. Loss, on new rows and on remembered ones: the cross-entropy of the
head over all classes, and that of an auxiliary head on the new features alone, over the new classes and one class
"old".

Departures: an extractor is GE's network with 64 outputs, through a ReLU; GE's optimiser, batches and epochs; no warm-
up, and no second training of the head on balanced classes, which would need the end of a task. A reservoir, of which
as many rows are drawn as the batch has, instead of herding. No channel masks and no pruning, as in the published
code. At detected switches (`baseline.consolidate`) it needs no boundaries: that form is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import nan

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hge.baselines.consolidation import consolidating
from hge.baselines.memory import Reservoir, SeenClasses
from hge.baselines.rule import Part, RuleLearner
from hge.core.types import Batch, as_float
from hge.experts.inputs import flip_and_crop
from hge.experts.optim import build_optimiser, clipping, gradient_norm, masked_step, multiply_adds, state_of
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

FEATURES = 64
"""Of each extractor."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return consolidating(ExpandableRepresentation(setting), setting)


class ExpandableRepresentation:
    """Trains the newest extractor and both heads on new and remembered rows."""

    def __init__(self, setting: Setting) -> None:
        self.representation = Representation(setting)
        self.memory = Reservoir(setting.memory, setting.keys, setting.device)
        self.seen = SeenClasses(setting.spec.outputs, setting.device)
        self.old = SeenClasses(setting.spec.outputs, setting.device)
        """Classes of the extractors that are frozen."""
        self.parts: dict[str, Part] = {
            "representation": self.representation,
            "memory": self.memory,
            "seen": self.seen,
            "old": self.old,
        }

    @property
    def multiply_adds(self) -> float:
        """Every extractor and the head."""
        return self.representation.multiply_adds

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch and remembered rows, then offer it to the memory; return the loss of the batch alone."""
        x, y = batch.x, batch.y
        if self.memory.rows_kept:
            drawn = self.memory.draw(len(batch), step)
            x, y = torch.cat([x, drawn["x"]]), torch.cat([y, drawn["y"]])
        auxiliary = y.masked_fill(self.old.seen[y], len(self.old.seen)) if self.representation.frozen else None
        logits = self.representation.step(x, y, auxiliary, step)
        if logits is None:
            return nan
        self.seen.add(batch.y)
        self.memory.add(step, x=batch.x, y=batch.y)
        return float(cross_entropy(logits[: len(batch)], batch.y))

    @torch.no_grad()
    def probe(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch."""
        return float(cross_entropy(self.logits(batch.x), batch.y))

    def consolidate(self) -> None:
        """Freeze the extractor, and begin a new one."""
        self.representation.expand()
        self.old.seen |= self.seen.seen

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits of the head."""
        found: Tensor = self.representation.head(self.representation.features(as_float(x)))
        return found


class Representation:
    """Frozen extractors, the newest one, both heads, and the optimiser of what is not frozen."""

    rows_kept = 0

    def __init__(self, setting: Setting) -> None:
        self.spec, self.keys, self.device = setting.spec, setting.keys, setting.device
        self.frozen: list[nn.Module] = []
        self.newest = self._extractor()
        self._draw_heads()

    @property
    def parameters(self) -> int:
        """Number of weights behind predictions: the auxiliary head is for training only."""
        nets = (*self.frozen, self.newest, self.head)
        return sum(weight.numel() for net in nets for weight in net.parameters())

    @property
    def multiply_adds(self) -> float:
        """Every extractor and the head."""
        one = multiply_adds(self.newest, torch.zeros(1, *self.spec.shape, device=self.device))
        return one * (len(self.frozen) + 1) + self.head.weight.numel()

    def features(self, x: Tensor) -> Tensor:
        """Return the features of all extractors; the newest ones are last."""
        return torch.cat([net(x).relu() for net in (*self.frozen, self.newest)], dim=1)

    def step(self, x: Tensor, y: Tensor, auxiliary: Tensor | None, step: int) -> Tensor | None:
        """Take a step; return the logits before it, or None, with nothing changed, if its gradient is not finite."""
        buffers = [(buffer, buffer.clone()) for buffer in self.newest.buffers()]
        changes = self.spec.draw_augmentation(self.keys, len(self.frozen), step, len(x), self.device)
        self.newest.train()
        features = self.features(flip_and_crop(as_float(x), changes))
        self.newest.eval()
        logits: Tensor = self.head(features)
        loss = cross_entropy(logits, y)
        if auxiliary is not None:
            loss = loss + cross_entropy(self.auxiliary(features[:, -FEATURES:]), auxiliary)
        gradients = list(torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True))
        norm = gradient_norm(gradients)
        if not norm.isfinite():
            for buffer, before in buffers:
                buffer.copy_(before)
            return None
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        masked_step(self.optimiser, torch.zeros_like(norm), clipping(norm))
        return logits.detach()

    def expand(self) -> None:
        """Freeze the newest extractor; the next one begins with its weights."""
        last = self.newest.requires_grad_(False)
        self.frozen.append(last)
        self.newest = self._extractor()
        self.newest.load_state_dict(last.state_dict())
        self._draw_heads()

    def _extractor(self) -> nn.Module:
        return replace(self.spec, outputs=FEATURES).build_net(self.keys, len(self.frozen), self.device)

    def _draw_heads(self) -> None:
        with self.keys.seeded("weights", len(self.frozen), 1, device=self.device):
            self.head = nn.Linear(FEATURES * (len(self.frozen) + 1), self.spec.outputs).to(self.device)
            self.auxiliary = nn.Linear(FEATURES, self.spec.outputs + 1).to(self.device)
        self.trained = nn.ModuleList([self.newest, self.head, self.auxiliary])
        self.weights = list(self.trained.parameters())
        self.optimiser = build_optimiser(self.spec.optimiser, self.weights)

    def state(self) -> dict[str, Tensor]:
        """Return copies of all tensors."""
        return copy_tensors(self._tensors() | {"extractors": torch.tensor(len(self.frozen) + 1)}, on_host=True)

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        while len(self.frozen) + 1 < int(tensors["extractors"]):
            self.expand()
        for name, tensor in self._tensors().items():
            tensor.copy_(tensors[name])

    def _tensors(self) -> dict[str, Tensor]:
        found = state_of(self.trained, self.optimiser, "trained")
        for number, net in enumerate(self.frozen):
            found |= state_of(net, None, f"frozen.{number}")
        return found
