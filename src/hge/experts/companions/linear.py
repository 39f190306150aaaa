"""A linear classifier that follows the stream closely: softmax regression by normalised steps on a few rows each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hge.experts.companions.nearest import FloatArray, FloatRows, Labels
from hge.experts.inputs import MAX_DEVIATIONS, Statistics

ROWS_PER_STEP = 4


class LinearModel:
    """Softmax regression on standardised inputs; a step is divided by the squared length of its row.

    With steps normalised in this way the learning rate needs no tuning: one step nearly corrects the row's own error.

    >>> model = LinearModel(inputs=1)
    >>> for _ in range(10):
    ...     _ = model.learn(np.array([[0.0], [1000.0]], np.float32), np.array([0, 1]))
    >>> model.probabilities(np.array([[900.0]], np.float32), classes=2).round().tolist()
    [[0.0, 1.0]]
    """

    def __init__(self, inputs: int) -> None:
        self.statistics = Statistics.none(inputs)
        self.weights = np.zeros((1 + inputs, 0))
        """[1 + inputs, classes seen]; the first is the intercept."""

    def learn(self, x: FloatRows, y: Labels) -> int:
        """Take one pass over the rows, in order; return how many of them are too far from the mean as a whole."""
        missing = int(y.max()) + 1 - self.weights.shape[1]
        if missing > 0:
            self.weights = np.pad(self.weights, ((0, 0), (0, missing)))
        far = self._count_far(x)
        self.statistics = self.statistics.including(x)
        rows = self._standardised(x)
        steps = (rows / np.square(rows).sum(axis=1, keepdims=True)).T
        for start in range(0, len(x), ROWS_PER_STEP):
            part = slice(start, start + ROWS_PER_STEP)
            wrong = softmax(rows[part] @ self.weights)
            wrong[np.arange(len(wrong)), y[part]] -= 1.0
            self.weights -= steps[:, part] @ wrong
        return far

    def probabilities(self, x: FloatRows, classes: int) -> FloatArray:
        """Return [rows, classes]; classes that it has not seen have probability 0."""
        found = np.zeros((len(x), classes))
        seen = min(classes, self.weights.shape[1])
        found[:, :seen] = softmax(self._standardised(x) @ self.weights[:, :seen])
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the statistics of the inputs and the weights."""
        arrays = self.statistics._asdict() | {"weights": self.weights}
        return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        arrays = {name: tensors[name].numpy().copy() for name in (*Statistics._fields, "weights")}
        self.weights = arrays.pop("weights")
        self.statistics = Statistics(**arrays)

    def _standardised(self, x: FloatRows) -> FloatArray:
        rows = np.ones((len(x), len(self.weights)))
        rows[:, 1:] = self.statistics.standardised(x)
        return rows

    def _count_far(self, x: FloatRows) -> int:
        """Return how many rows are too far from the mean in all inputs together, those left out that were constant."""
        _, mean, variance = self.statistics
        varies = variance > 0
        apart = np.where(varies, np.square(x - mean) / np.where(varies, variance, 1.0), 0.0).sum(axis=1)
        return int((apart > MAX_DEVIATIONS**2 * max(1, varies.sum())).sum())


def softmax(logits: FloatArray) -> FloatArray:
    """Return the probabilities [rows, classes] of logits."""
    # The ufuncs themselves, in place: for a few rows everything around them takes longer than they do.
    shares: FloatArray = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    np.exp(shares, out=shares)
    shares /= np.add.reduce(shares, axis=1, keepdims=True)
    return shares
