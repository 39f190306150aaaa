"""A module of a method's own, trained by Adam: a generator, a flow, a hypernetwork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hge.core.config import OptimiserConfig
from hge.experts.optim import build_optimiser, follow, state_of
from hge.experts.pool_spec import copy_tensors


class Trained:
    """A module and its optimiser, as a part of a rule.

    >>> module = Trained(nn.Linear(1, 1, bias=False), lr=0.5)
    >>> before = module.net.weight.item()
    >>> module.update(module.gradient(module.net(torch.ones(1, 1)).sum()))
    True
    >>> round(before - module.net.weight.item(), 3)
    0.5
    """

    rows_kept = 0

    def __init__(self, net: nn.Module, lr: float = 1e-3) -> None:
        self.net = net
        self.weights = list(net.parameters())
        self.optimiser = build_optimiser(OptimiserConfig("adam", lr, weight_decay=0.0), self.weights)
        self.parameters = sum(weight.numel() for weight in self.weights)
        """Values that predictions are computed from; 0 for a module that only training needs."""

    def gradient(self, loss: Tensor) -> list[Tensor]:
        """Return the gradient of a loss; 0 for weights that it does not depend on."""
        return list(torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True))

    def update(self, gradients: Sequence[Tensor]) -> bool:
        """Let the optimiser follow a gradient; return False, with nothing changed, if it is not finite."""
        return follow(self.optimiser, self.weights, gradients)

    def state(self) -> dict[str, Tensor]:
        """Return copies of weights, buffers and the optimiser's state."""
        return copy_tensors(state_of(self.net, self.optimiser, "net"), on_host=True)

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned; further tensors are left to the caller."""
        for name, tensor in state_of(self.net, self.optimiser, "net").items():
            tensor.copy_(tensors[name])
