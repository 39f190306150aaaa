"""Timing: contenders take turns, so that whatever slows the machine slows all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Plan:
    """Durations of a measurement."""

    warm_up: int
    """Batches that are learned before anything is timed: enough for CUDA graphs to be captured."""
    turn_seconds: float
    """Approximate length of one timed turn of training."""
    call_seconds: float
    """Approximate length of one timed turn of repeated calls, whose cost does not change."""
    repeats: int
    """Timed turns of each contender."""
    setup_seconds: float
    """Time limit for one growth of a population; larger populations are left out, and listed as such."""


SHORT = Plan(warm_up=20, turn_seconds=0.1, call_seconds=0.02, repeats=4, setup_seconds=10.0)
FULL = {
    "cpu": Plan(warm_up=60, turn_seconds=0.3, call_seconds=0.1, repeats=31, setup_seconds=40.0),
    "cuda": Plan(warm_up=100, turn_seconds=0.4, call_seconds=0.1, repeats=5, setup_seconds=60.0),
}


@dataclass(frozen=True)
class Spread:
    """The median of several measurements, and their range.

    >>> Spread.of([2.0, 1.0, 4.0])
    Spread(median=2.0, low=1.0, high=4.0)
    """

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise measurements, to four significant digits."""
        numbers = list(values)
        return cls(*(float(f"{f(numbers):.4g}") for f in (np.median, np.min, np.max)))


def time_turns(turns: Mapping[str, Callable[[], object]], repeats: int, device: str) -> dict[str, list[float]]:
    """Run the contenders in turns, A B A B; return the seconds of each contender's turns."""
    seconds: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(repeats):
        for name, turn in turns.items():
            started = now(device)
            turn()
            seconds[name].append(now(device) - started)
    return seconds


def time_calls(calls: Mapping[str, Callable[[], object]], plan: Plan, device: str) -> dict[str, list[float]]:
    """Time calls that are too short for a turn by repeating them; return the seconds per call of each one's turns."""
    times, turns = {}, {}
    for name, call in calls.items():
        call()  # compiles, captures, allocates
        once = time_turns({name: call}, 1, device)[name][0]
        times[name] = max(1, round(plan.call_seconds / once))
        turns[name] = _repeated(call, times[name])
    seconds = time_turns(turns, plan.repeats, device)
    return {name: [s / times[name] for s in own] for name, own in seconds.items()}


def now(device: str) -> float:
    """Return the time, after all pending work on the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _repeated(call: Callable[[], object], times: int) -> Callable[[], None]:
    def turn() -> None:
        for _ in range(times):
            call()

    return turn
