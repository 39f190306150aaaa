"""Values in the rows that an expert remembers which say little, or mislead: clipped ones, codes for missing values."""

from __future__ import annotations

import numpy as np

from hge.experts.inputs import MAX_DEVIATIONS
from hge.experts.replay import Expert
from hge.gating.tree import FloatArray
from hge.learning.learner import Learner

FEWEST_ROWS = 100
LEAST_SHARE, MOST_SHARE = 0.01, 0.5
"""Share of an input's values that a code for missing ones has; most values of an image's margin are equal, too."""
DISTINCT = 30
"""Fewest different values of an input beside a code."""


def clipped_share(learner: Learner) -> float:
    """Return the share of the rows in the replay of the expert in training that are clipped; 0 if unknown.

    Inputs that are equal in most rows, such as the margin of an image, are left out: clipping does not harm them.
    """
    kept, expert = learner.guard.kept.tensors, learner.guard.expert
    if expert is None or "net.0.variance" not in kept or kept["net.0.rows"] < FEWEST_ROWS:
        return 0.0  # the copy may be of a young expert
    rows = _remembered(expert)
    if len(rows) < FEWEST_ROWS:
        return 0.0
    shape = expert.replay.kept[0].batch.x.shape[1:]  # statistics are of each input or, of images, of each channel
    own = (kept[f"net.0.{name}"].cpu().numpy() for name in ("mean", "variance"))
    mean, variance = (np.broadcast_to(statistic, shape).ravel() for statistic in own)
    low, high = np.quantile(rows, [0.25, 0.75], axis=0)
    clipped = (np.abs(rows - mean) > MAX_DEVIATIONS * np.sqrt(variance)) & (high > low)
    return float(clipped.any(axis=1).mean())


def coded_input(expert: Expert) -> tuple[int, float, float] | None:
    """Return an input with a code for missing values, that value and its share; None if there is none.

    A code is a single value, in many rows, further from all others than these are from each other.
    """
    rows = _remembered(expert)
    if len(rows) < FEWEST_ROWS:
        return None
    for side in (np.min, np.max):
        extreme = side(rows, axis=0)
        at_extreme = rows == extreme
        share = at_extreme.mean(axis=0)
        others = np.ma.masked_array(rows, at_extreme)
        low, high = others.min(axis=0).filled(np.nan), others.max(axis=0).filled(np.nan)
        gap = low - extreme if side is np.min else extreme - high
        suspects = (share >= LEAST_SHARE) & (share <= MOST_SHARE) & (gap > high - low)
        for column in np.flatnonzero(suspects):
            if len(np.unique(others[:, column].compressed())) >= DISTINCT:
                return int(column), float(extreme[column]), float(share[column])
    return None


def _remembered(expert: Expert) -> FloatArray:
    """Return the rows of an expert's replay [rows, inputs]."""
    batches = [kept.batch.x.flatten(1).double().cpu().numpy() for kept in expert.replay.kept]
    return np.concatenate(batches) if batches else np.zeros((0, 0))
