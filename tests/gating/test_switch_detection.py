from __future__ import annotations

from collections.abc import Callable
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hge.gating.switch_detection import (
    LabelCounts,
    LossStats,
    OutlierRate,
    RecentBuffer,
    RecentEntry,
    robust_z_score,
    z_score,
)

losses = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(losses)
def test_mean_stays_among_the_losses_and_the_bound_above_the_mean(values: list[float]) -> None:
    stats = LossStats()
    for value in values:
        stats.update(value)
    assert min(values) - 1e-6 <= stats.mean <= max(values) + 1e-6
    assert stats.deviation >= 0
    assert stats.bound(4) >= stats.mean


@given(losses)
def test_stats_follow_the_papers_recursion(values: list[float]) -> None:
    stats, mean, deviation = LossStats(alpha=0.9), 0.0, 0.0
    for n, value in enumerate(values, start=1):
        stats.update(value)
        if n == 1:
            mean = value
            continue
        deviation = abs(value - mean) if n == 2 else 0.9 * deviation + 0.1 * abs(value - mean)
        mean = 0.9 * mean + 0.1 * value
    np.testing.assert_allclose([stats.mean, stats.deviation], [mean, deviation], rtol=1e-9, atol=1e-6)


def test_no_bound_before_two_losses() -> None:
    stats = LossStats()
    assert stats.bound(4) == inf
    stats.update(1.0)
    assert stats.bound(4) == inf
    stats.update(1.5)
    assert stats.bound(4) == pytest.approx(1.05 + 4 * 0.5)


def test_rising_weights_forget_how_an_expert_began() -> None:
    """After 20 batches the bound must be far below that of constant weights, and the same after many."""
    rng, rising, paper = np.random.default_rng(0), LossStats(), LossStats()
    losses = [4.2, 2.0, *rng.uniform(0.1, 0.3, 300)]
    for number, loss in enumerate(losses, 1):
        rising.update(loss, rising=True)
        paper.update(loss)
        if number == 20:
            assert rising.bound(4) < paper.bound(4) / 2
    assert rising.bound(4) == pytest.approx(paper.bound(4))


def test_signed_deviation_lets_the_bound_sink_below_a_falling_loss() -> None:
    """Reading 2 of docs/paper.md: the formula as printed refuses the expert's own data."""
    signed, absolute = LossStats(signed=True), LossStats()
    for n in range(30):
        signed.update(3 * 0.9**n)
        absolute.update(3 * 0.9**n)
    next_loss = 3 * 0.9**30
    assert signed.bound(4) < next_loss < absolute.bound(4)


def test_recent_buffer_remembers_the_expert_before_the_oldest_batch() -> None:
    recent = RecentBuffer[str](capacity=3)
    for step, expert in enumerate((4, None, 5)):
        recent.append(RecentEntry(step, "batch", expert))
    assert recent.full
    assert not recent.all_high_loss
    recent.popleft()
    assert recent.previous_expert == 4
    with pytest.raises(AssertionError, match="only after an expert was trained"):
        recent.popleft()


@given(st.lists(st.floats(0, 100), min_size=2, max_size=10), st.floats(0, 100))
def test_z_score_is_zero_for_the_same_mean_and_grows_with_distance(replay: list[float], distance: float) -> None:
    mean = float(np.mean(replay))
    assert z_score(replay, [mean]) == pytest.approx(0, abs=1e-3)
    assert z_score(replay, [mean + 2 * distance]) >= z_score(replay, [mean + distance]) - 1e-3


def test_z_score_of_equal_losses_is_finite() -> None:
    assert np.isfinite(z_score([1.0, 1.0], [2.0]))
    assert z_score([1.0, 1.0], [2.0]) > 1e6


@pytest.mark.parametrize("strays", range(5))
def test_stray_batches_in_the_replay_hide_no_other_task_from_the_median(strays: int) -> None:
    rng = np.random.default_rng(strays)
    replay = [*rng.normal(0.3, 0.1, 10 - strays), *[14.0] * strays]
    assert robust_z_score(replay, list(rng.normal(13.8, 0.3, 19))) > 20
    assert robust_z_score(replay, list(rng.normal(0.32, 0.1, 19))) < 20
    assert (z_score(replay, list(rng.normal(13.8, 0.3, 19))) > 20) == (strays == 0)


def test_robust_score_knows_unstable_training_by_its_replay() -> None:
    """The losses of all that it remembers have risen."""
    rng = np.random.default_rng(0)
    assert robust_z_score(list(rng.normal(14, 0.5, 10)), list(rng.normal(14, 0.5, 19))) < 20


@pytest.mark.parametrize("foreign", [1, 5, 9, 18])
def test_recent_batches_of_another_task_count_however_few(foreign: int) -> None:
    """R may hold the end of one task and the beginning of the next."""
    rng = np.random.default_rng(foreign)
    replay, own = list(rng.normal(0.05, 0.01, 10)), list(rng.normal(0.06, 0.01, 19 - foreign))
    assert robust_z_score(replay, own) < 20
    assert robust_z_score(replay, [*own, *[14.0] * foreign]) > 20


@pytest.mark.parametrize("test", [z_score, robust_z_score])
def test_losses_that_are_no_numbers_differ_from_all_others(test: Callable[..., float]) -> None:
    assert test([1.0, 2.0, nan], [1.5]) == inf
    assert test([1.0, 2.0], [inf, 1.5]) == inf


def test_new_labels_count_against_an_expert_that_knows_its_own() -> None:
    counts = LabelCounts([1, 2] * 100)
    assert counts.admits([1, 2, 2, 1] * 8)
    assert counts.admits([1] * 31 + [3])  # one stray label
    assert not counts.admits([1] * 20 + [3] * 12)  # a boundary inside the batch
    assert not counts.admits([3] * 32)


def test_many_classes_are_learned_as_they_come() -> None:
    """Forty classes in random order: half of the labels of the second batch are new, which is expected."""
    for seed in range(20):
        labels = np.random.default_rng(seed).integers(0, 40, (20, 32)).tolist()
        counts = LabelCounts()
        for batch in labels:
            assert counts.admits(batch)
            counts.update(batch)


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_are_little_evidence(rows: int) -> None:
    assert LabelCounts([1, 2] * 4).admits([3] * rows)


def test_an_expert_without_labels_admits_any() -> None:
    assert LabelCounts().admits([1, 2, 3])


def test_as_improbable_as_the_error_rate_is_enough() -> None:
    rate = OutlierRate()
    assert (rate.chance(1, batches=0), rate.chance(2, batches=30)) == pytest.approx((1 / 20, 1 / 50**2))
    assert rate.chance(2, batches=0) == 0.05**2
    assert rate.enough(2, batches=0, error_rate=0.05**2)
    assert not rate.enough(2, batches=0, error_rate=0.05**2 - 1e-9)
    assert not rate.enough(82, batches=10_000, error_rate=0.0), "even where the probability is rounded to 0"
