"""Forward and backward passes of small networks on a CPU, by the kernels that autograd runs, without its bookkeeping.

For a few rows the bookkeeping of modules, autograd and optimisers takes several times as long as the arithmetic. The
results are the same, bit by bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hge.experts.inputs import Standardise, Statistics

aten = torch.ops.aten
MEAN, NO_LABEL = 1, -100
"""How aten names a mean over rows, and a label that does not count: the defaults of `cross_entropy`."""


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
        self.layers: list[tuple[Tensor, Tensor]] = []
        self.rectified: list[bool] = []
        """Whether a ReLU follows each layer."""
        self.one = torch.ones(())
        for module in leaves:
            if isinstance(module, nn.Linear):
                self.layers.append((module.weight.detach(), module.bias.detach()))
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
        for (weight, bias), rectified in zip(self.layers, self.rectified, strict=True):
            outputs = torch.addmm(bias, passed[-1], weight.t())
            passed.append(outputs.relu_() if rectified else outputs)
        return passed


def _standardised(x: Tensor, statistics: Statistics | None) -> Tensor:
    return x if statistics is None else torch.from_numpy(statistics.standardised(x.numpy())).float()
