"""Routing of consecutive rows under a prior that the stream seldom changes. It depends on the order of the rows."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from hge.gating.tree import FloatArray

CHANGE = 0.01
"""Probability that a row belongs to another expert than the row before it."""


def follow(scores: FloatArray, change: float = CHANGE) -> FloatArray:
    """Return [experts, rows]: -log P(expert | this row and those before it), from -log P(expert | this row).

    The forward pass of a hidden Markov model: later rows are not used. If consecutive rows are unrelated, this is worse
    than routing each row by itself, so it is not the default.

    >>> doubtful = np.array([[0.1, 0.9, 0.1], [2.0, 0.6, 2.0]])  # the second row alone would go to expert 1
    >>> follow(doubtful).argmin(axis=0)
    array([0, 0, 0])
    """
    experts = len(scores)
    if experts == 1:
        return np.zeros_like(scores)
    result = np.empty_like(scores)
    before = np.full(experts, 1 / experts)
    move = change / (experts - 1)
    for row, likelihood in enumerate(-scores.T):
        # from each other expert with probability `move`, from the same one with the rest
        arrived = move + (1 - experts * move) * before
        now = np.log(arrived) + likelihood
        now -= logsumexp(now)
        before, result[:, row] = np.exp(now), -now
    return result
