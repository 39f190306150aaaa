"""All that answers beside an expert's network, and the weighing of the network against it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hge.experts.companions.linear import LinearModel
from hge.experts.companions.nearest import FloatArray, FloatRows, Labels, NearestRows
from hge.experts.companions.opinions import OpinionPool

ROWS_KEPT = 256
"""Rows of a call up to which opinions are kept."""


class Companion:
    """The nearest rows and the linear model of one expert, pooled with its network."""

    def __init__(self, inputs: int, memory_rows: int) -> None:
        self.nearest = NearestRows(memory_rows)
        self.linear = LinearModel(inputs)
        self.pool = OpinionPool(models=3)
        self._last: tuple[int, bytes, list[FloatArray]] | None = None
        """Number of classes, rows, and what nearest rows and linear model said of them, until they learn."""

    def probabilities(self, x: FloatRows, network: FloatArray) -> FloatArray:
        """Return [rows, classes], given those of the network; the network's own before any row was learned."""
        return self.pool.probabilities(self._opinions(x, network)) if len(self.nearest) else network

    def learn(self, x: FloatRows, y: Labels, network: FloatArray) -> int:
        """Learn a batch, given the network's probabilities before it was trained on it; return how many rows are far.

        Far rows are clipped by all that learn from them.
        """
        if len(self.nearest):
            self.pool.learn(self._opinions(x, network), y)
        self.nearest.add(x, y)
        self._last = None
        return self.linear.learn(x, y)

    def state(self) -> dict[str, Tensor]:
        """Return all tensors, by name."""
        parts = {"nearest": self.nearest.state(), "linear": self.linear.state()}
        own = {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}
        return own | {"weights": torch.from_numpy(self.pool.weights.copy())}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for part, owner in (("nearest", self.nearest), ("linear", self.linear)):
            prefix = f"{part}."
            owner.load_state({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
        self.pool.weights = tensors["weights"].numpy().copy()
        self._last = None

    def _opinions(self, x: FloatRows, network: FloatArray) -> list[FloatArray]:
        """Return the probabilities of the network, the nearest rows and the linear model.

        The last two are kept for rows of one batch: often it is predicted first, and then learned.
        """
        classes = network.shape[1]
        if len(x) > ROWS_KEPT:
            return [network, *self._others(x, classes)]
        rows = x.tobytes()
        if self._last is None or self._last[:2] != (classes, rows):
            self._last = classes, rows, self._others(x, classes)
        return [network, *self._last[2]]

    def _others(self, x: FloatRows, classes: int) -> list[FloatArray]:
        return [self.nearest.probabilities(x, classes), self.linear.probabilities(x, classes)]


def flat(x: Tensor) -> FloatRows:
    """Return rows as flat arrays on the host."""
    rows: FloatRows = np.ascontiguousarray(x.flatten(1).float().cpu().numpy())
    return rows
