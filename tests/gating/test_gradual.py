"""Whether a change was at once or little by little: rare false alarms, whatever the shares, and none missed."""

from __future__ import annotations

import numpy as np
import pytest

from hge.estimator.advice import FADING, FEWEST_FOLLOWED, FOLLOWED
from hge.gating.gradual import evidence_of_fading

TRIALS = 1000


def drawn(rng: np.random.Generator, shares: np.ndarray, rows: int) -> float:
    return evidence_of_fading(rng.binomial(rows, shares).astype(float), np.full(len(shares), float(rows)))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 8, 32, 200])
def test_a_change_at_once_is_seldom_taken_for_a_gradual_one(rows: int) -> None:
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(TRIALS):
        batches = rng.integers(FEWEST_FOLLOWED, FOLLOWED + 1)
        first, last = rng.random(2)
        shares = np.where(np.arange(batches) < rng.integers(0, batches + 1), first, last)
        alarms += drawn(rng, shares, rows) > FADING
    assert alarms <= 0.005 * TRIALS


@pytest.mark.parametrize("batches", [12, FOLLOWED])
def test_a_share_that_falls_steadily_is_gradual(batches: int) -> None:
    rng = np.random.default_rng(1)
    shares = np.linspace(0.8, 0.0, batches)
    assert np.mean([drawn(rng, shares, 32) > FADING for _ in range(100)]) > 0.95


def test_a_share_that_rises_is_not() -> None:
    assert drawn(np.random.default_rng(2), np.linspace(0.0, 0.8, FOLLOWED), 32) < 0
