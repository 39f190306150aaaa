"""Pooling of several models' class probabilities, by weights that follow how right each model has been lately."""

from __future__ import annotations

import numpy as np

from hge.experts.companions.nearest import FloatArray, Labels

DOUBT = 0.05
"""Share of a uniform distribution in every opinion, so that no model can rule a class out."""
RATE = 0.1
"""Step of the weights for a batch."""
HIGHEST = 3.0
"""Upper limit of a weight."""


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


def softmax(logits: FloatArray) -> FloatArray:
    """Return the probabilities [rows, classes] of logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: FloatArray = powers / powers.sum(axis=1, keepdims=True)
    return shares


def _logarithms(opinions: list[FloatArray]) -> FloatArray:
    """Return [models, rows, classes]."""
    stacked = np.array(opinions)
    logarithms: FloatArray = np.log((1 - DOUBT) * stacked + DOUBT / stacked.shape[2])
    return logarithms
