"""GDumb: keep a class-balanced memory, and train a network on nothing else when the stream ends.

Source: Prabhu et al. 2020. A row of a class that has fewer rows in the memory than the largest class replaces a random
row of the largest one. The network is trained from scratch, for as many steps as the stream had.

Departures: neither cutmix nor the paper's learning rate schedule; GE's network and optimiser. The paper trains at
every query; here only at the end of the stream, so it cannot be tested before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from hge.baselines.network import fit
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    rule = GDumb(setting)
    return RuleLearner(rule, setting, at_end=rule.fit)


class GDumb(NetworkRule):
    """A balanced memory, and a network that is trained on it at the end."""

    def __init__(self, setting: Setting) -> None:
        self.batch_size = setting.config.batch_size
        self.memory = BalancedMemory(setting.memory, setting.keys, setting.device)
        super().__init__(setting, memory=self.memory)

    def learn(self, batch: Batch, step: int) -> float:
        """Offer the batch to the memory; there is no loss yet."""
        self.memory.add(step, batch)
        return 0.0

    def fit(self) -> None:
        """Train the network on the memory."""
        x, y = self.memory.rows()
        fit(self.network, x, y, self.batch_size, self.memory.batches)


class BalancedMemory:
    """Rows of which the largest class gives way to smaller ones.

    >>> memory = BalancedMemory(4, Keys(seed=0), torch.device("cpu"))
    >>> memory.add(0, Batch(torch.zeros(6, 1), torch.tensor([0, 0, 0, 0, 0, 0])))
    >>> memory.add(1, Batch(torch.zeros(3, 1), torch.tensor([1, 1, 1])))
    >>> sorted(memory.rows()[1].tolist())
    [0, 0, 1, 1]
    """

    parameters = 0

    def __init__(self, capacity: int, keys: Keys, device: torch.device) -> None:
        self.capacity, self.keys, self.device = capacity, keys, device
        self.batches = 0
        self.x: list[Tensor] = []
        self.y: list[int] = []

    @property
    def rows_kept(self) -> int:
        """Number of rows in it."""
        return len(self.y)

    def rows(self) -> tuple[Tensor, Tensor]:
        """Return all rows and their labels."""
        return torch.stack(self.x), torch.tensor(self.y, device=self.device)

    def add(self, step: int, batch: Batch) -> None:
        """Offer rows."""
        self.batches += 1
        sizes = Counter(self.y)
        rng = self.keys.rng("replay", step)
        for x, y in zip(batch.x, batch.y.tolist(), strict=True):
            if len(self.y) < self.capacity:
                self.x.append(x)
                self.y.append(y)
                sizes[y] += 1
                continue
            largest, size = max(sizes.items(), key=lambda item: (item[1], -item[0]))
            if sizes[y] < size:
                places = [place for place, label in enumerate(self.y) if label == largest]
                place = places[int(rng.integers(len(places)))]
                self.x[place], self.y[place] = x, y
                sizes[largest] -= 1
                sizes[y] += 1

    def state(self) -> dict[str, Tensor]:
        """Return copies of the rows, and the number of batches seen."""
        found = {"batches": torch.tensor(self.batches)}
        return found | ({"x": torch.stack(self.x).cpu(), "y": torch.tensor(self.y)} if self.y else {})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.batches = int(tensors["batches"])
        if "y" in tensors:
            self.x, self.y = list(tensors["x"].to(self.device)), tensors["y"].tolist()
