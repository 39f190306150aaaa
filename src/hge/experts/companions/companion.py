"""All that answers beside an expert's network, and the weighing of the network against it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hge.experts.companions.linear import LinearModel, softmax
from hge.experts.companions.nearest import FloatArray, FloatRows, Labels, NearestRows

ROWS_KEPT = 256
"""Rows of a call up to which opinions are kept."""
DOUBT = 0.05
"""Share of a uniform distribution in every opinion, so that no model can rule a class out."""
RATE = 0.1
"""Step of the weights for a batch."""
HIGHEST = 3.0
"""Upper limit of a weight."""


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

    def learn(self, x: FloatRows, y: Labels, network: FloatArray, others: FloatRows | None = None) -> int:
        """Learn a batch, given the network's probabilities before it was trained on it; return how many rows are far.

        Far rows are clipped by all that learn from them. `others`: rows of other experts, while there is no scale yet.
        """
        if len(self.nearest):
            self.pool.learn(self._opinions(x, network), y)
        self.nearest.add(x, y, others)
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


class OpinionPool:
    """Logarithmic opinion pool: the product of the models' probabilities, each to the power of its weight.

    The weights are trained by gradient steps on the logarithmic loss of every batch before it is learned, so they
    measure predictions of new rows. A weight above 1 corrects a model that is right more often than it claims.

    >>> pool = OpinionPool(models=2)
    >>> right, wrong = np.array([[0.8, 0.2]]), np.array([[0.4, 0.6]])
    >>> for _ in range(20):
    ...     pool.learn([right, wrong], np.array([0]))
    >>> bool(pool.weights[0] > 0.7 > 0.4 > pool.weights[1])
    True
    """

    def __init__(self, models: int) -> None:
        self.weights: FloatArray = np.full(models, 0.5)

    def probabilities(self, opinions: list[FloatArray]) -> FloatArray:
        """Return [rows, classes]: the normalised product."""
        return self._pooled(_logarithms(opinions))

    def learn(self, opinions: list[FloatArray], y: Labels) -> None:
        """Raise the weights of the models that gave the labels a higher probability than the pool expected."""
        logarithms = _logarithms(opinions)
        expected = (logarithms * self._pooled(logarithms)).sum(axis=2)
        gain = (logarithms[:, np.arange(len(y)), y] - expected).mean(axis=1)
        self.weights = np.clip(self.weights + RATE * gain, 0.0, HIGHEST)

    def _pooled(self, logarithms: FloatArray) -> FloatArray:
        models, rows, classes = logarithms.shape
        return softmax((self.weights @ logarithms.reshape(models, -1)).reshape(rows, classes))


def _logarithms(opinions: list[FloatArray]) -> FloatArray:
    """Return [models, rows, classes]."""
    stacked = np.array(opinions)
    logarithms: FloatArray = np.log((1 - DOUBT) * stacked + DOUBT / stacked.shape[2])
    return logarithms
