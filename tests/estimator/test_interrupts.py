"""A Ctrl-C anywhere inside a call leaves a model that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

import numpy as np
import pytest

from helpers.digits import digits
from hge import GatedExperts

LOCK = "hge.estimator.fair_lock"


def interrupted_at(call: Callable[[], Any], line: int) -> bool:
    """Call, and raise a KeyboardInterrupt at the given line that the library executes; return whether it came so far.

    The lock is left out: a Python lock cannot be safe from interrupts at its own first line.
    """
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        name = frame.f_globals.get("__name__", "")
        if not name.startswith("hge.") or name == LOCK:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def two_tasks() -> GatedExperts:
    model = GatedExperts(memory_rows=200)
    for low in (True, False):
        X, y = digits(low=low)
        model.partial_fit(X[:640], y[:640])
    assert model.n_experts_ == 2
    return model


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["stream", "sample"])
def test_an_interrupt_inside_predict_changes_nothing(routing: str) -> None:
    model = two_tasks().set_params(routing=routing)
    X = np.concatenate([digits(low=low)[0][-10:] for low in (True, False)])
    expected = model.predict_proba(X)
    for line in count(1):
        if not interrupted_at(lambda: model.predict(X), line):
            break
        np.testing.assert_array_equal(model.predict_proba(X), expected)
    assert line > 100


@pytest.mark.slow
def test_an_interrupt_inside_partial_fit_leaves_a_model_that_learns_on() -> None:
    model, tasks = two_tasks(), [digits(low=low) for low in (True, False)]
    for line in range(1, 4000, 61):
        X, y = tasks[line % 2]
        interrupted_at(lambda: model.partial_fit(X[:64], y[:64]), line)  # noqa: B023
    for X, y in tasks:
        for _ in range(2):
            model.partial_fit(X[:640], y[:640])
    # The same few rows came again and again, so the gate seems better than it is: to "stream", its errors are rows of
    # the other task. What the experts have learned is asked here.
    model.set_params(routing="batch")
    assert min(model.score(X[640:], y[640:]) for X, y in tasks) > 0.93
    assert len(model.learner_.recent) <= model.learner_.config.recent_capacity
