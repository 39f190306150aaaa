"""A long run without a task change: memory and file handles must not grow."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hge import GatedExperts

Log = Callable[[str], None]
BATCH_SIZE = 16
PER_CALL = 20
"""Batches in one call of `partial_fit`."""
WARM_UP = 0.1
"""Share of the batches after which memory must stay flat."""
MOST_GROWTH = 8 << 20
"""Largest allowed rise, in bytes, of a straight line fitted to the curve after the warm-up."""


def torture_soak(folder: Path, batches: int, every: int, seed: int, log: Log) -> dict[str, Any]:
    """Learn, save and predict; measure memory and file handles every `every` batches."""
    rng, model = np.random.default_rng(seed), GatedExperts(batch_size=BATCH_SIZE, class_capacity=4)
    curve, handles, started = [], [], time.monotonic()
    for learned in range(0, batches, PER_CALL):
        if learned % every == 0 and learned:
            model.save(folder)
            model.predict(_rows(rng)[0])
            curve.append((learned, _resident_bytes()))
            handles.append(len(os.listdir("/proc/self/fd")))
            if learned % (10 * every) == 0:
                log(f"soak: {learned} batches, {curve[-1][1] / 2**20:.1f} MiB, {handles[-1]} handles")
        model.partial_fit(*_rows(rng))
    curve.append((batches, _resident_bytes()))
    handles.append(len(os.listdir("/proc/self/fd")))
    growth = _growth(curve)
    return {
        "batches": model.learner_.steps,
        "rows_per_batch": BATCH_SIZE,
        "seed": seed,
        "experts": model.n_experts_,
        "seconds": round(time.monotonic() - started, 1),
        "curve": curve,
        "handles": handles,
        "growth_bytes": round(growth),
        "criterion": f"a line fitted after the first {WARM_UP:.0%} rises by less than {MOST_GROWTH >> 20} MiB in all, "
        "and no reading has more file handles than the first",
        "flat": growth < MOST_GROWTH and max(handles) <= handles[0],
    }


def _rows(rng: np.random.Generator) -> tuple[Any, Any]:
    """Return rows of the single task: four classes around four centres."""
    y = rng.integers(0, 4, BATCH_SIZE * PER_CALL)
    x = rng.normal(0, 0.25, (len(y), 8)).astype(np.float32)
    x[np.arange(len(y)), y] += 1
    return x, y


def _growth(curve: list[tuple[int, int]]) -> float:
    settled = np.array([point for point in curve if point[0] >= WARM_UP * curve[-1][0]], dtype=float)
    if len(settled) < 3:
        return 0.0
    slope = np.polyfit(settled[:, 0], settled[:, 1], 1)[0]
    return float(slope * (settled[-1, 0] - settled[0, 0]))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
