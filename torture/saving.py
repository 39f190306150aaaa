"""Cost of checkpoints: the same stream learned with and without them, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hge.bench.measure import Spread
from hge.bench.population import Population, Subject
from hge.experiments.runner import CHECKPOINT_EVERY
from hge.learning.checkpoint import Checkpoints
from hge.learning.state import take_snapshot

Log = Callable[[str], None]
SUBJECT = Subject("mlp", "28x28", "sketch", "cpu")
EPOCH = 200
"""Batches of the task before its rows repeat."""


def torture_saving(folder: Path, experts: int, turns: int, log: Log, every: int = CHECKPOINT_EVERY) -> dict[str, Any]:
    """Learn stretches of batches of 128 MNIST-sized images, with a checkpoint after each stretch and without.

    Learning is measured in CPU seconds, which other processes disturb less; a checkpoint in elapsed seconds, since it
    waits for the disk.
    """
    learners = [Population(SUBJECT) for _ in range(2)]
    for population in learners:
        population.grow(experts)
    plain, saved = learners
    checkpoints = Checkpoints(folder)
    position = {id(population): 0 for population in learners}

    task = plain.task(experts - 1, batches=EPOCH)

    def stretch(population: Population) -> None:
        for _ in population.learner.learn_all(task.batches(position[id(population)], every)):
            pass
        position[id(population)] += every

    seconds: dict[str, list[float]] = {"without": [], "with": []}
    writing: list[float] = []
    for _ in range(1 + turns):  # the first checkpoint also writes the idle experts
        for name, population in (("without", plain), ("with", saved)):
            started = time.process_time()
            stretch(population)
            seconds[name].append(time.process_time() - started)
        started = time.perf_counter()
        checkpoints.write(take_snapshot(saved.learner), {})
        writing.append(time.perf_counter() - started)
        seconds["with"][-1] += writing[-1]
    seconds = {name: own[1:] for name, own in seconds.items()}
    cost = Spread.of(w / p - 1 for w, p in zip(seconds["with"], seconds["without"], strict=True))
    log(f"saving: {100 * cost.median:.2f} % of the throughput")
    return {
        "network": str(SUBJECT),
        "experts": experts,
        "checkpoint_every": every,
        "clock": "CPU seconds of learning, elapsed seconds of checkpoints",
        "seconds": {name: [round(s, 3) for s in own] for name, own in seconds.items()},
        "seconds_in_checkpoints": [round(s, 3) for s in writing[1:]],
        "cost_percent": {name: round(100 * getattr(cost, name), 3) for name in ("median", "low", "high")},
        "checkpoint_bytes": sum(path.stat().st_size for path in folder.iterdir()),
        "criterion": "the median costs less than 5 %",
    }
