"""The fast pool on a CPU, for networks of linear layers: a training step costs hardly more than its arithmetic.

Forward and backward passes run the kernels that autograd runs, without its bookkeeping: for a few rows that of modules,
autograd and optimisers takes several times as long as the arithmetic. The results are the same, bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.fast.pool import StackedPool
from hge.experts.inputs import Standardise, Statistics, flip_and_crop
from hge.experts.networks import MLP
from hge.experts.optim import MAX_GRADIENT_NORM, FusedStep, clipping, gradient_norm
from hge.experts.pool import train_one_by_one
from hge.experts.pool_spec import PoolSpec
from hge.gating.switch_detection import LossStats

aten = torch.ops.aten
MEAN, NO_LABEL = 1, -100
"""How aten names a mean over rows, and a label that does not count: the defaults of `cross_entropy`."""
ROWS_KEPT = 256
"""Rows of a call up to which their logits are kept."""


def build_fast_pool(spec: PoolSpec, keys: Keys, device: torch.device) -> StackedPool:
    """Return the fastest pool for these networks on this device."""
    factory = spec.net.func if isinstance(spec.net, partial) else spec.net
    on_host = factory is MLP and spec.views == 1 and device.type == "cpu"
    return (HostPool if on_host else StackedPool)(spec, keys, device)


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
        if kept is not None and kept.key == key and kept.x.dtype == x.dtype and torch.equal(kept.x, x):
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
        x, limited = self.store.prepare_for_training(batch.x)
        if self.spec.augment:
            x = flip_and_crop(x, self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device))
        return x, limited

    def _update(self, expert: int, passed: ForwardPass) -> bool:
        """Update the network in the slot and its average; return False, and change nothing, if it is not finite."""
        gradients = self.slot.gradients(passed)
        norm = gradient_norm(gradients)
        length = float(norm)
        if not isfinite(length):
            return False
        if length > MAX_GRADIENT_NORM:
            torch._foreach_div_(gradients, clipping(norm))
        self.step(gradients)
        if self.slot.statistics is not None and passed.statistics is not None:
            passed.statistics.copy_to(self.slot.statistics)
        if self.store.average is not None:
            self.store.average.update(torch.zeros(()))
        self.store.versions[expert] += 1
        return True


@dataclass(frozen=True)
class ForwardPass:
    """A forward pass in training, with what the backward pass needs."""

    inputs: list[Tensor]
    """The inputs of each layer, and the logits."""
    log_probabilities: Tensor
    y: Tensor
    rows: Tensor
    """Their number."""
    loss: Tensor
    statistics: Statistics | None
    """New statistics of the inputs, these rows included; None if they stay as they are."""


class LinearLayers:
    """A network that consists of linear layers and ReLUs, after a `Standardise` if there is one.

    It reads the module's tensors where they are, so it computes with whatever weights the module has.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    >>> x = torch.rand(5, 3)
    >>> bool((LinearLayers(net).logits(x) == net(x)).all())
    True
    """

    def __init__(self, net: nn.Module) -> None:
        leaves = [module for module in net.modules() if not list(module.children())]
        self.statistics = next((module.statistics for module in leaves if isinstance(module, Standardise)), None)
        self.layers: list[tuple[Tensor, Tensor, Tensor]] = []
        """Weights, the same transposed, and biases."""
        self.rectified: list[bool] = []
        """Whether a ReLU follows each layer."""
        self.one = torch.ones(())
        for module in leaves:
            if isinstance(module, nn.Linear):
                weight = module.weight.detach()
                self.layers.append((weight, weight.t(), module.bias.detach()))
                self.rectified.append(False)
            elif isinstance(module, nn.ReLU):
                self.rectified[-1] = True
            elif not isinstance(module, nn.Flatten | Standardise):
                raise TypeError(f"net: got a {type(module).__name__}, expected linear layers and ReLUs")

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits, as in evaluation mode."""
        return self._through(_standardised(x, self.statistics))[-1]

    def forward(self, x: Tensor, y: Tensor, *, include: bool) -> ForwardPass:
        """Return a forward pass; `include` the rows in the statistics of the inputs, as in training mode."""
        included = self.statistics.including(x.numpy()) if include and self.statistics is not None else None
        passed = self._through(_standardised(x, included or self.statistics))
        log_probabilities = torch.log_softmax(passed[-1], 1)
        loss, rows = aten.nll_loss_forward(log_probabilities, y, None, MEAN, NO_LABEL)
        return ForwardPass(passed, log_probabilities, y, rows, loss, included)

    def gradients(self, passed: ForwardPass) -> list[Tensor]:
        """Return the gradient of the loss, for each weight and bias in turn."""
        logs = passed.log_probabilities
        of_loss = aten.nll_loss_backward(self.one, logs, passed.y, None, MEAN, NO_LABEL, passed.rows)
        gradient = torch._log_softmax_backward_data(of_loss, logs, 1, logs.dtype)
        found: list[Tensor] = []
        for number in reversed(range(len(self.layers))):
            if self.rectified[number]:
                gradient = aten.threshold_backward(gradient, passed.inputs[number + 1], 0)
            found += gradient.sum(0), gradient.t() @ passed.inputs[number]
            if number:
                gradient = gradient @ self.layers[number][0]
        return found[::-1]

    def _through(self, x: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, and the outputs of the last."""
        passed = [x.flatten(1)]
        for (_, transposed, bias), rectified in zip(self.layers, self.rectified, strict=True):
            outputs = torch.addmm(bias, passed[-1], transposed)
            passed.append(outputs.relu_() if rectified else outputs)
        return passed


def _standardised(x: Tensor, statistics: Statistics | None) -> Tensor:
    return x if statistics is None else torch.from_numpy(statistics.standardised(x.numpy())).float()
