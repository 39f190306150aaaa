"""One network and its optimiser, trained on any loss: what the methods without experts have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan

import torch
from torch import Tensor, nn

from hge.core.types import Batch, as_float
from hge.experts.inputs import flip_and_crop
from hge.experts.optim import (
    arithmetic,
    autocast,
    build_optimiser,
    check_state,
    follow,
    gradient_norm,
    multiply_adds,
    network_mode,
    state_of,
)
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

Forward = Callable[[Tensor], Tensor]
"""Inputs -> logits, in training mode; images are augmented if the settings say so."""
Loss = Callable[[Forward], Tensor]


class Network:
    """The network of an expert, with the same initial weights and the same optimiser, under a loss of any kind."""

    rows_kept = 0

    def __init__(self, setting: Setting, number: int = 0) -> None:
        self.spec, self.keys, self.device = setting.spec, setting.keys, setting.device
        self.number = number
        self.net = self.spec.build_net(self.keys, number, self.device)
        self.weights = list(self.net.parameters())
        self.optimiser = build_optimiser(self.spec.optimiser, self.weights)
        self.average = self.spec.build_average(self.net)

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.weights)

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of one forward pass for one row."""
        return multiply_adds(self.net, torch.zeros(1, *self.spec.shape, device=self.device))

    def step(self, loss: Loss, step: int) -> float:
        """Take one optimiser step; return the loss before it, or NaN, without a step, if its gradient is not finite."""
        value, gradients = self.gradient(loss, step)
        return value if self.update(gradients) else nan

    def gradient(self, loss: Loss, step: int) -> tuple[float, list[Tensor]]:
        """Return a loss and its gradient; running statistics keep what they saw, if it is finite."""
        before = [(buffer, buffer.clone()) for buffer in self.net.buffers()]
        with (
            arithmetic(self.spec.precision, self.device),
            self.keys.seeded("dropout", step, self.number, device=self.device),
            network_mode(self.net, training=True, rows=2),
        ):
            with autocast(self.spec.precision, self.device):
                value = loss(self._forward(step))
            gradients = list(torch.autograd.grad(value, self.weights, allow_unused=True, materialize_grads=True))
        if not gradient_norm(gradients).isfinite():
            for buffer, old in before:
                buffer.copy_(old)
        return float(value.detach()), gradients

    def update(self, gradients: Sequence[Tensor]) -> bool:
        """Let the optimiser follow a gradient, clipped as an expert's is; return False if it is not finite."""
        if not follow(self.optimiser, self.weights, gradients):
            return False
        if self.average is not None:
            self.average.update(skip=torch.zeros((), device=self.device))
        return True

    @torch.no_grad()
    def loss(self, batch: Batch) -> float:
        """Return the cross-entropy of a batch as training would see it, without augmentation; nothing is learned."""
        with (
            arithmetic(self.spec.precision, self.device),
            network_mode(self.net, training=False, rows=len(batch), batch_statistics=True),
            autocast(self.spec.precision, self.device),
        ):
            return float(nn.functional.cross_entropy(self.net(as_float(batch.x)), batch.y))

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return the logits with running statistics."""
        net = self.net if self.average is None else self.average.net
        with arithmetic(self.spec.precision, self.device), autocast(self.spec.precision, self.device):
            out: Tensor = net(as_float(x))
        return out.float().nan_to_num()

    def state(self) -> dict[str, Tensor]:
        """Return copies of all tensors that training changes, by name."""
        return copy_tensors(self._tensors(), on_host=True)

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        own = self._tensors()
        check_state(tensors, own)
        for name, tensor in own.items():
            tensor.copy_(tensors[name])

    def _tensors(self) -> dict[str, Tensor]:
        return state_of(self.net, self.optimiser, "net") | ({} if self.average is None else self.average.state())

    def _forward(self, step: int) -> Forward:
        """Return the forward pass; the images of each call are augmented by draws of its own."""
        calls = 0

        def forward(x: Tensor) -> Tensor:
            nonlocal calls
            drawn = self.spec.draw_augmentation(self.keys, calls, step, len(x), self.device)
            calls += 1
            out: Tensor = self.net(flip_and_crop(as_float(x), drawn))
            return out

        return forward


def fit(network: Network, x: Tensor, y: Tensor, batch_size: int, steps: int) -> None:
    """Train on rows in shuffled epochs, until that many steps were taken."""
    done, epoch = 0, 0
    while done < steps:
        order = torch.from_numpy(network.keys.rng("shuffle", network.number, epoch).permutation(len(x))).to(x.device)
        for rows in torch.split(order, batch_size)[: steps - done]:
            network.step(lambda net, rows=rows: nn.functional.cross_entropy(net(x[rows]), y[rows]), done)  # type: ignore[misc]
            done += 1
        epoch += 1
