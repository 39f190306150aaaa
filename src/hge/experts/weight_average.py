"""Weights for prediction: a moving average of the trained weights.

A stream has no known end towards which a learning rate could decay, so the trained weights keep fluctuating. Their
average does not (Polyak and Juditsky, 1992). The losses that detect task switches are still those of the trained ones.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

from hge.experts.optim import state_of

WARM_UP = 9.0
"""The n-th update has weight WARM_UP / (WARM_UP + n) while that exceeds 1 - decay: the random start soon fades."""


class WeightAverage:
    """Moving average of a network's weights and running statistics.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = net.weight.data.fill_(0.0)
    >>> average = WeightAverage(net, decay=0.5)
    >>> _ = net.weight.data.fill_(8.0)
    >>> average.update(skip=torch.tensor(0.0)); average.update(skip=torch.tensor(1.0))  # the second one is skipped
    >>> average.net.weight.item(), average.updates.item()
    (7.2..., 1.0)
    """

    def __init__(self, net: nn.Module, decay: float) -> None:
        self.decay = decay
        self.net = deepcopy(net).requires_grad_(False).eval()
        trained = [*net.parameters(), *net.buffers()]
        self.tensors = [*self.net.parameters(), *self.net.buffers()]
        self.updates = torch.zeros((), device=trained[0].device)
        self._own, self._trained = ([t for t in side if t.is_floating_point()] for side in (self.tensors, trained))
        self._counters = [(a, b) for a, b in zip(self.tensors, trained, strict=True) if not a.is_floating_point()]

    @torch.no_grad()
    def update(self, skip: Tensor) -> None:
        """Update with the network's current weights, unless `skip` is 1; the network must be unchanged in that case."""
        weight = (WARM_UP / (WARM_UP + 1 + self.updates)).clamp_min(1 - self.decay) * (1 - skip)
        steps = torch._foreach_sub(self._trained, self._own)
        torch._foreach_mul_(steps, weight)
        torch._foreach_add_(self._own, steps)
        self.updates += 1 - skip
        for counter, now in self._counters:
            counter.copy_(now)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors by name."""
        return state_of(self.net, None, "average") | {"average.updates": self.updates}
