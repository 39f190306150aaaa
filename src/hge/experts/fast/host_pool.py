"""The fast pool on a CPU, for networks of linear layers: a training step costs hardly more than its arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from math import nan
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.fast.linear_layers import ForwardPass, LinearLayers
from hge.experts.fast.pool import StackedPool
from hge.experts.inputs import flip_and_crop
from hge.experts.networks import MLP
from hge.experts.optim import MAX_GRADIENT_NORM, FusedStep, clipping, gradient_norm
from hge.experts.pool import train_one_by_one
from hge.experts.pool_spec import PoolSpec
from hge.gating.switch_detection import LossStats

ROWS_KEPT = 256
"""Rows of a call up to which their logits are kept."""


def build_fast_pool(spec: PoolSpec, keys: Keys, device: torch.device) -> StackedPool:
    """Return the fastest pool for these networks on this device."""
    factory = spec.net.func if isinstance(spec.net, partial) else spec.net
    return (HostPool if factory is MLP and device.type == "cpu" else StackedPool)(spec, keys, device)


class Looked(NamedTuple):
    """The forward pass of a training step, and what it was computed for."""

    batch: Batch
    key: tuple[int, int, int]
    """Expert, its version, and the step."""
    passed: ForwardPass
    limited: Tensor
    """How many of the rows were too long."""


class Predicted(NamedTuple):
    """The logits of rows, and what they were computed for."""

    x: Tensor
    key: tuple[int, int]
    """Expert, and its version."""
    logits: Tensor


class HostPool(StackedPool):
    """Pool of MLPs on a CPU. Computing a loss before training on the same batch costs nothing extra."""

    looked: Looked | None
    predicted: Predicted | None

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        super().create(expert)
        if expert == 0:
            self._read_networks()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._read_networks()

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss; keep the forward pass, since training often follows."""
        return float(self._forward(expert, batch, step).passed.loss)

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and train its score."""
        if self.store.space.has_rows_of_another(expert):
            self.finish_deferred()
        self.store.space.owner = expert
        self.store.activate(expert)
        _, _, passed, limited = self._forward(expert, batch, step)
        if not self._update(expert, passed):
            return nan
        self.store.rows_limited += limited
        self.rows[expert] += len(batch)
        self._train_score(expert, step, batch)
        if self.store.score.refresh_due(self.rows[expert], self.rows_at_refresh[expert]):
            self._refresh(expert)
        return float(passed.loss)

    def rehearse(self, expert: int, batch: Batch, step: int) -> None:
        """Take one optimiser step on the network alone."""
        self.store.activate(expert)
        x, _ = self._inputs_of(expert, batch, step)
        self._update(expert, self.slot.forward(x, batch.y, include=False))

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        ordered_pairs: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Compute the loss of each batch before training on it."""
        return train_one_by_one(self, expert, items, losses, epsilon, ordered_pairs)

    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the logits; keep them, since rows that are predicted are often learned next."""
        key, kept = (expert, self.store.versions[expert]), self.predicted
        if kept is not None and kept.key == key and torch.equal(kept.x, x):
            return kept.logits
        logits = self._network(expert, for_prediction=True).logits(self.store.prepare(x)).nan_to_num_()
        if len(x) <= ROWS_KEPT:
            self.predicted = Predicted(x.clone(), key, logits)
        return logits

    def _read_networks(self) -> None:
        """Read the networks of the store, whose tensors stay where they are."""
        self.slot, self.copy = LinearLayers(self.store.net), LinearLayers(self.store.eval_net)
        self.step = FusedStep(self.store.optimiser)
        self.looked = self.predicted = None

    def _network(self, expert: int, *, for_prediction: bool) -> LinearLayers:
        """Return a network with this expert's weights: those for prediction, or those being trained."""
        averaged = for_prediction and self.store.average is not None
        if expert == self.store.active and not averaged:
            return self.slot
        self.store.load_eval_net(expert, for_prediction=for_prediction)
        return self.copy

    def _forward(self, expert: int, batch: Batch, step: int) -> Looked:
        """Return the forward pass of a training step: the last one, if it is the same."""
        looked, key = self.looked, (expert, self.store.versions[expert], step)
        if looked is None or looked.batch is not batch or looked.key != key:
            network, (x, limited) = self._network(expert, for_prediction=False), self._inputs_of(expert, batch, step)
            looked = self.looked = Looked(batch, key, network.forward(x, batch.y, include=True), limited)
        return looked

    def _inputs_of(self, expert: int, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs of a training step, and how many of them are too long."""
        augmentation = self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device)
        x, limited = self.store.prepare_for_training(batch.x)
        return flip_and_crop(x, augmentation), limited

    def _update(self, expert: int, passed: ForwardPass) -> bool:
        """Update the network in the slot and its average; return False, and change nothing, if it is not finite."""
        gradients = self.slot.gradients(passed)
        norm = gradient_norm(gradients)
        if not norm.isfinite():
            return False
        if norm > MAX_GRADIENT_NORM:
            torch._foreach_div_(gradients, clipping(norm))
        self.step(gradients)
        if self.slot.statistics is not None and passed.statistics is not None:
            passed.statistics.copy_to(self.slot.statistics)
        if self.store.average is not None:
            self.store.average.update(torch.zeros(()))
        self.store.versions[expert] += 1
        return True
