"""A plain MLP with Adam and reservoir replay: the method of comparison for a network without experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from hge.core.randomness import Keys
from hge.experts.networks import NETS

CAPACITY = 1000
"""Rows in the reservoir."""
LEARNING_RATE = 1e-3
CPU = torch.device("cpu")


class ReplayMLP:
    """The network of hge's experts, trained on each batch and as many rows drawn from a reservoir of earlier ones."""

    def __init__(self, features: int, classes: npt.NDArray[Any], seed: int = 0) -> None:
        self.keys, self.classes = Keys(seed), classes
        with self.keys.seeded("weights", device=CPU):
            self.net = NETS["mlp"]((features,), len(classes))
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=LEARNING_RATE)
        self.x, self.y = torch.empty(CAPACITY, features), torch.empty(CAPACITY, dtype=torch.long)
        self.seen = self.steps = 0

    def learn(self, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> None:
        """Take one step on the rows and as many replayed ones; then put the rows into the reservoir."""
        x, outputs = _tensor(X), torch.from_numpy(np.searchsorted(self.classes, y))
        rng = self.keys.rng("replay", self.steps)
        kept = min(self.seen, CAPACITY)
        drawn = torch.from_numpy(rng.permutation(kept)[: len(x)])
        logits = self.net(torch.cat([x, self.x[drawn]]))
        self.optimiser.zero_grad()
        nn.functional.cross_entropy(logits, torch.cat([outputs, self.y[drawn]])).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self._remember(x, outputs, rng)
        self.steps += 1

    def predict(self, X: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the most probable label of each row."""
        with torch.no_grad():
            labels: npt.NDArray[Any] = self.classes[self.net(_tensor(X)).argmax(dim=1).numpy()]
        return labels

    @property
    def rows_kept(self) -> int:
        """Rows in the reservoir."""
        return min(self.seen, CAPACITY)

    def _remember(self, x: torch.Tensor, y: torch.Tensor, rng: np.random.Generator) -> None:
        """Reservoir sampling: every row seen so far is in the reservoir with the same probability."""
        for row, output in zip(x, y, strict=True):
            place = self.seen if self.seen < CAPACITY else int(rng.integers(self.seen + 1))
            if place < CAPACITY:
                self.x[place], self.y[place] = row, output
            self.seen += 1


def _tensor(X: npt.NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(X.astype(np.float32))
