"""Whether one task gave way to the next at once, or little by little. Numbers only."""

from __future__ import annotations

import numpy as np
from sklearn.isotonic import isotonic_regression

from hge.gating.tree import FloatArray

LEAST_SHARE = 0.01
"""Shares are kept this far from 0 and 1: a single mislabelled row must not decide."""


def evidence_of_fading(right: FloatArray, rows: FloatArray) -> float:
    """Return by how much a share that falls little by little explains counts better than one that changes at once.

    `right`: [batches] of so many `rows`, those that an expert predicts rightly after it was replaced by another. The
    result is a difference of log-likelihoods: that of the best shares that never rise, less that of the best two
    constant shares, one before and one after any batch. If the change was at once, it is a few units at most.

    >>> rows = np.full(8, 32.0)
    >>> round(evidence_of_fading(np.array([32.0, 32, 31, 5, 4, 4, 3, 2]), rows), 1)
    1.3
    >>> round(evidence_of_fading(np.array([29.0, 24, 20, 15, 10, 7, 3, 0]), rows), 1)
    16.8
    """
    falling = isotonic_regression(right / rows, sample_weight=rows, increasing=False)
    steps = [_two_levels(right, rows, place) for place in range(len(rows))]
    return _log_likelihood(right, rows, falling) - max(_log_likelihood(right, rows, step) for step in steps)


def _two_levels(right: FloatArray, rows: FloatArray, place: int) -> FloatArray:
    """Return the shares of each batch, if they are equal before a place, and from it on."""
    first = right[:place].sum() / max(rows[:place].sum(), 1)
    shares: FloatArray = np.where(np.arange(len(rows)) < place, first, right[place:].sum() / rows[place:].sum())
    return shares


def _log_likelihood(right: FloatArray, rows: FloatArray, shares: FloatArray) -> float:
    p = np.clip(shares, LEAST_SHARE, 1 - LEAST_SHARE)
    return float((right * np.log(p) + (rows - right) * np.log(1 - p)).sum())
