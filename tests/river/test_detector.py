"""The detector: exact places on seeded streams, no alarm without a change, none when the loss falls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("river", reason="hge[river] is not installed")
from river.checks import yield_checks

from hge.river import LossSwitchDetector

CHECKS = [check for check in yield_checks(LossSwitchDetector()) if check.__name__ != "check_tags"]
"""River's own detectors have no tags either."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_checks_of_river(check: Callable[[LossSwitchDetector], None]) -> None:
    check(LossSwitchDetector())


def alarms(values: np.ndarray, detector: LossSwitchDetector) -> list[int]:
    found = []
    for step, value in enumerate(values):
        detector.update(value)
        if detector.drift_detected:
            found.append(step)
    return found


@pytest.mark.parametrize("seed", range(100, 105))
def test_every_rise_of_the_error_is_found_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors = np.concatenate([rng.random(2000) < rate for rate in (0.05, 0.4, 0.9)])
    found = alarms(errors, LossSwitchDetector())
    assert [step // 2000 for step in found] == [1, 2]
    assert all(step % 2000 < 600 for step in found)


@pytest.mark.parametrize("seed", range(100, 105))
def test_a_falling_loss_is_no_drift(seed: int) -> None:
    rng = np.random.default_rng(seed)
    errors = rng.random(5000) < np.linspace(0.6, 0.1, 5000)
    assert alarms(errors, LossSwitchDetector()) == []


def test_losses_of_batches_are_used_as_they_are() -> None:
    losses = np.array([1.0, 1.2, 0.9, 1.1] * 5 + [9.0, 9.5, 9.2] + [9.1] * 10)
    assert alarms(losses, LossSwitchDetector(batch=1)) == [22]


def test_a_single_outlier_is_no_drift() -> None:
    losses = np.array([1.0, 1.2, 0.9, 1.1] * 5 + [50.0] + [1.0, 1.1] * 10)
    assert alarms(losses, LossSwitchDetector(batch=1)) == []
    assert LossSwitchDetector(batch=1).bound == np.inf


def test_a_loss_that_is_no_number_is_refused_and_changes_nothing() -> None:
    losses = np.array([1.0, 1.2, 0.9, 1.1] * 5 + [9.0, 9.5, 9.2] + [9.1] * 10)
    detector = LossSwitchDetector(batch=1)
    with pytest.raises(ValueError, match="x: got nan, expected a finite loss"):
        detector.update(np.nan)
    assert alarms(losses, detector) == [22]


@pytest.mark.parametrize(
    ("name", "value"), [("batch", 0), ("recent", 0), ("replay", 1), ("alpha", 1.0), ("alpha", 0.0)]
)
def test_settings_with_which_nothing_would_be_found_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: got {value}"):
        LossSwitchDetector(**{name: value})  # type: ignore[arg-type]
