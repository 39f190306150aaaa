"""Cost of making a batch, compared with training on it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hge.bench.measure import now
from hge.core.randomness import Keys
from hge.experiments.build import build_pool, build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment

WARM_UP, TRAINED = 3, 12


def bench_data(device: str, data: Path | None) -> dict[str, Any]:
    """Compare the time that a CIFAR-10 stream takes to make a batch with that of a training step on it."""
    keys = Keys(0)
    config = replace(build_config("cif10"), device=device)
    started = time.perf_counter()
    scenario = build_scenario(config, keys, data)
    load_seconds = time.perf_counter() - started
    pool = build_pool(config, scenario, keys)
    pool.create(0)
    batches, making = [], []
    stream = scenario.stream(config.batch_size, 1, keys)
    while True:
        started = now(device)
        item = next(stream, None)
        if item is None:
            break
        making.append(now(device) - started)
        batches.append(item[1])
    training = []
    for step, batch in enumerate(batches[: WARM_UP + TRAINED]):
        started = now(device)
        pool.train(0, batch, step)
        training.append(now(device) - started)
    batch_ms, step_ms = 1e3 * float(np.median(making)), 1e3 * float(np.median(training[WARM_UP:]))
    return {
        "images": int(sum(len(batch) for batch in batches)),
        "load_seconds": round(load_seconds, 3),
        "batch_ms": round(batch_ms, 4),
        "training_step_ms": round(step_ms, 3),
        "data_share_percent": round(100 * batch_ms / step_ms, 3),
        "protocol": {"scenario": "cif10", "net": config.net, "score": config.score.name, "device": device}
        | environment(),
    }
