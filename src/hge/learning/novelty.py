"""Novelty score: high for rows that are unlike everything learned so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hge.gating.tree import FloatArray, IntArray


def surprise(scores: FloatArray, chosen: IntArray, usual: Mapping[int, FloatArray]) -> FloatArray:
    """Return [rows]: excess of the chosen expert's score over its mean on the replay, in standard deviations.

    >>> surprise(np.array([3.0, 7.0]), np.array([0, 1]), {0: np.array([0.0, 2.0]), 1: np.array([4.0, 8.0])})
    array([2. , 0.5])
    """
    mean, spread = ({e: f(own) for e, own in usual.items()} for f in (np.mean, np.std))
    expected = np.array([mean[int(e)] for e in chosen])
    result: FloatArray = (scores - expected) / np.array([max(float(spread[int(e)]), 1e-12) for e in chosen])
    return result


def unknown(surprise: FloatArray, doubt: FloatArray, usual_doubt: float) -> FloatArray:
    """Return [rows]: novelty of each row; higher means less like anything learned.

    `surprise`: excess of the chosen expert's score over its mean on the replay, in standard deviations; detects rows
    of a new kind. `doubt`: -log P(chosen expert); detects rows between experts. Neither suffices alone
    (results/choices/joint_prototype.json). A negative surprise (a better fit than usual) does not lower the novelty.

    >>> unknown(np.array([-3.0, 0.0, 6.0]), np.array([0.0, 0.7, 0.0]), usual_doubt=0.7)
    array([0., 1., 6.])
    """
    return np.maximum(surprise, 0.0) + doubt / max(usual_doubt, 1e-9)


def far_or_doubtful(far: FloatArray, doubt: FloatArray, usual_doubt: float) -> FloatArray:
    """Return [rows]: novelty of each row if rows are remembered; `far` is that among the remembered rows.

    The doubt is fitted to remembered rows, and lower for them than for new ones. Only its order of magnitude counts, or
    a threshold set by remembered rows would be too low for new ones (results/choices/novelty.json).

    >>> far_or_doubtful(np.array([-1.0, 3.0]), np.array([0.0, 0.7]), usual_doubt=0.7).round(2)
    array([-1.  ,  3.69])
    """
    return far + np.log1p(doubt / max(usual_doubt, 1e-9))
