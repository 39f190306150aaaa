from __future__ import annotations

import numpy as np
import pytest

from hge.gating.mistakes import SUSPICIOUS, YOUNG, Suspicion, evidence_of_change, usual_mistakes
from hge.gating.switch_detection import LossStats

USUAL = LossStats(count=50, mean=0.2, deviation=0.05)


def test_the_evidence_by_hand() -> None:
    """The spread is that of 32 rows, 0.0707, above that of the shares, 0.0627; the change is 0.15, 2.12 spreads."""
    spread = np.sqrt(0.2 * 0.8 / 32)
    change = 0.15 / spread
    assert evidence_of_change(USUAL, 0.5, guessing=0.5, rows=32) == pytest.approx(change * (0.3 / spread - change / 2))
    assert evidence_of_change(USUAL, 0.2 + 0.15 / 2, guessing=0.5, rows=32) == pytest.approx(0)


def test_shares_that_vary_more_than_rows_drawn_at_random_say_less() -> None:
    bursts = LossStats(count=50, mean=0.2, deviation=0.1)
    assert evidence_of_change(bursts, 0.5, 0.5, 32) < evidence_of_change(USUAL, 0.5, 0.5, 32) / 2


@pytest.mark.parametrize(
    ("usual", "guessing"),
    [
        (LossStats(count=YOUNG - 1, mean=0.2, deviation=0.05), 0.5),
        (LossStats(count=50, mean=0.45, deviation=0.05), 0.5),
        (LossStats(count=50, mean=0.2, deviation=0.05), 0.0),
    ],
    ids=["young", "no better than guessing", "one class"],
)
def test_nothing_is_known_of(usual: LossStats, guessing: float) -> None:
    assert evidence_of_change(usual, 1.0, guessing, rows=32) == 0


def test_an_expert_that_is_never_wrong_is_not_suspected_for_one_row() -> None:
    never = LossStats(count=50)
    assert evidence_of_change(never, 1 / 32, 0.5, 32) < 0 < evidence_of_change(never, 0.5, 0.5, 32)


def test_the_usual_share_reaches_back_over_a_burst() -> None:
    usual = usual_mistakes()
    for share in [0.1, 0.2] * 50 + [0.4] * 5:
        usual.update(share, rising=True)
    assert 0.15 < usual.mean < 0.2


def test_what_is_suspicious_stays_so_until_it_is_refuted() -> None:
    suspicion = Suspicion()
    assert not suspicion.refuses(SUSPICIOUS)
    suspicion.add(SUSPICIOUS + 1)
    assert suspicion.refuses(-SUSPICIOUS)
    suspicion.add(-SUSPICIOUS)
    assert suspicion.level == pytest.approx(1)
    assert not suspicion.refuses(0.5)
    suspicion.add(-100)
    assert suspicion.level == 0


def test_it_is_certain_at_the_error_rate() -> None:
    assert Suspicion(-np.log(1e-4) + 0.01).is_certain(1e-4)
    assert not Suspicion(-np.log(1e-4) - 0.01).is_certain(1e-4)
    assert not Suspicion(1e9).is_certain(0.0)


def test_in_batches_of_one_task_a_switch_is_seen_about_as_seldom_as_the_error_rate_says() -> None:
    rng, alarms = np.random.default_rng(0), 0
    usual, suspicion = usual_mistakes(), Suspicion()
    for _ in range(20_000):
        share = rng.binomial(32, 0.2) / 32
        suspicion.add(evidence_of_change(usual, share, guessing=0.5, rows=32))
        usual.update(share, rising=True)
        if suspicion.is_certain(1e-3):
            alarms, suspicion = alarms + 1, Suspicion()
    assert 0 < alarms <= 30


@pytest.mark.parametrize("seed", range(20))
def test_a_switch_is_seen_within_a_few_batches(seed: int) -> None:
    rng, usual, suspicion = np.random.default_rng(seed), usual_mistakes(), Suspicion()
    for _ in range(50):
        usual.update(rng.binomial(32, 0.2) / 32, rising=True)
    for _ in range(6):
        suspicion.add(evidence_of_change(usual, rng.binomial(32, 0.5) / 32, guessing=0.5, rows=32))
    assert suspicion.is_certain(1e-4)
