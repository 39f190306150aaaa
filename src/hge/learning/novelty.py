"""Does any expert fit? A score that is high for rows unlike all that was learned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hge.gating.tree import FloatArray, IntArray


def surprise(scores: FloatArray, chosen: IntArray, usual: Mapping[int, FloatArray]) -> FloatArray:
    """Return [rows]: by how many spreads the chosen expert's score exceeds what is usual on its replay.

    >>> surprise(np.array([3.0, 7.0]), np.array([0, 1]), {0: np.array([0.0, 2.0]), 1: np.array([4.0, 8.0])})
    array([2. , 0.5])
    """
    mean, spread = ({e: f(own) for e, own in usual.items()} for f in (np.mean, np.std))
    expected = np.array([mean[int(e)] for e in chosen])
    result: FloatArray = (scores - expected) / np.array([max(float(spread[int(e)]), 1e-12) for e in chosen])
    return result


def unknown(surprise: FloatArray, doubt: FloatArray, usual_doubt: float) -> FloatArray:
    """Return [rows]: how little a row is like anything that was learned; higher is stranger.

    `surprise`: by how many spreads the chosen expert's score exceeds what is usual on its replay. It tells rows of
    another kind. `doubt`: -log P(chosen expert). It tells rows between the experts. Neither is enough by itself
    (results/choices/joint_prototype.json), and a row that fits better than usual is not more known for it.

    >>> unknown(np.array([-3.0, 0.0, 6.0]), np.array([0.0, 0.7, 0.0]), usual_doubt=0.7)
    array([0., 1., 6.])
    """
    return np.maximum(surprise, 0.0) + doubt / max(usual_doubt, 1e-9)
