"""A linear classifier that follows the stream closely: softmax regression by normalised steps on a few rows each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hge.experts.companions.nearest import FloatArray, FloatRows, Labels
from hge.experts.companions.opinions import softmax

ROWS_PER_STEP = 4
FARTHEST = 10.0
"""Standard deviations from the mean at which inputs are clipped."""


class LinearModel:
    """Softmax regression on standardised inputs; a step is divided by the squared length of its row.

    With steps normalised in this way the learning rate needs no tuning: one step nearly corrects the row's own error.

    >>> model = LinearModel(inputs=1)
    >>> for _ in range(10):
    ...     model.learn(np.array([[0.0], [1000.0]], np.float32), np.array([0, 1]))
    >>> model.probabilities(np.array([[900.0]], np.float32), classes=2).round().tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, inputs: int) -> None:
        self.rows = 0
        self.mean, self.variance = np.zeros(inputs), np.zeros(inputs)
        self.weights = np.zeros((1 + inputs, 0))
        """[1 + inputs, classes seen]; the first is the intercept."""

    def learn(self, x: FloatRows, y: Labels) -> None:
        """Take one pass over the rows, in order."""
        missing = int(y.max()) + 1 - self.weights.shape[1]
        if missing > 0:
            self.weights = np.pad(self.weights, ((0, 0), (0, missing)))
        self._measure(x)
        rows = self._standardised(x)
        rate = 1 / np.einsum("ij,ij->i", rows, rows)[:, None]
        for start in range(0, len(x), ROWS_PER_STEP):
            part = slice(start, start + ROWS_PER_STEP)
            error = softmax(rows[part] @ self.weights)
            error[np.arange(len(error)), y[part]] -= 1
            self.weights -= rows[part].T @ (error * rate[part])

    def probabilities(self, x: FloatRows, classes: int) -> FloatArray:
        """Return [rows, classes]; classes that it has not seen have probability 0."""
        found = np.zeros((len(x), classes))
        seen = min(classes, self.weights.shape[1])
        found[:, :seen] = softmax(self._standardised(x) @ self.weights[:, :seen])
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the statistics of the inputs and the weights."""
        arrays = {"mean": self.mean, "variance": self.variance, "weights": self.weights, "rows": np.array(self.rows)}
        return {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.mean, self.variance, self.weights = (
            tensors[name].numpy().copy() for name in ("mean", "variance", "weights")
        )
        self.rows = int(tensors["rows"])

    def _measure(self, x: FloatRows) -> None:
        """Include rows in mean and variance; far ones count as near ones, so that none can move them far."""
        rows = x.astype(np.float64)
        far = np.where(self.variance > 0, FARTHEST * self._deviation, np.inf)  # a constant input may take any value
        rows = np.clip(rows, self.mean - far, self.mean + far)
        share = len(rows) / (self.rows + len(rows))
        apart = rows.mean(axis=0) - self.mean
        self.variance += share * (rows.var(axis=0) - self.variance) + share * (1 - share) * apart**2
        self.mean += share * apart
        self.rows += len(rows)

    @property
    def _deviation(self) -> FloatArray:
        deviation: FloatArray = np.maximum(np.sqrt(self.variance), 1e-6 * np.abs(self.mean) + 1e-30)
        return deviation

    def _standardised(self, x: FloatRows) -> FloatArray:
        rows = np.ones((len(x), len(self.weights)))
        rows[:, 1:] = np.clip((x - self.mean) / self._deviation, -FARTHEST, FARTHEST)
        return rows
