"""How the gate scales: time, memory and accuracy with 10 to 10 000 experts, all of which are queried.

    python benchmarks/scale.py [--device cpu] [--most 10000] [--out results/scale.json]

MLP experts with 28×28 inputs; the sketch of each is fitted to 512 rows of its own synthetic task, and the networks
beyond the first are copies of it, which cost as much memory and time. Tasks share 31 domains, so that some are similar.
Times are medians; the first answer is the first one after the last expert was added, so that nothing is cached for it.
Memory is that of the pool, and the peak of the process; the added experts have no replay.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hge.bench.measure import now
from hge.bench.memory import process_peak
from hge.bench.population import Population, Subject
from hge.bench.stream import CLASSES
from hge.core.files import write_json
from hge.core.types import as_float
from hge.experiments.run_files import commit, environment
from hge.experts.fast.pool import StackedPool
from hge.experts.optim import resolve_device
from hge.experts.scores import SketchScore
from hge.learning.routing import Answerer

SIZES = (10, 100, 1_000, 10_000)
ROUTED_BATCHES, REPEATS = 64, 9


def grow(population: Population, experts: int) -> None:
    """Add promoted experts up to this number, each with a sketch of its own task."""
    learner, pool = population.learner, population.learner.pool
    population.grow(2)  # fixes the space of the sketches
    assert isinstance(pool, StackedPool)
    template, score = pool.state(0), SketchScore(pool.store.space)
    while population.size < experts:
        expert = learner.new_expert().id
        learner.tree.add(expert)
        task = population.task(expert)
        images, labels = task.images, task.labels
        score.moments.zero_()
        score.compute_update(score.preprocess(as_float(images)), labels, None)
        score.apply_update(skip=torch.zeros((), device=pool.device))
        score.refresh(len(labels))
        own = {"score.moments": score.moments, "score.weights": score.weights}
        pool.load_state(expert, template | {name: tensor.clone() for name, tensor in own.items()})


def measure(population: Population, device: str) -> dict[str, Any]:
    """Measure a grown population on fresh batches of some of its tasks, and on single rows of them."""
    answerer = Answerer(population.learner)
    owners = np.unique(np.linspace(0, population.size - 1, ROUTED_BATCHES).astype(int)).tolist()
    batches = [next(population.task(owner, batches=8).batches(7, 1)).x for owner in owners]
    rows = [batch[:1] for batch in batches]
    first = _milliseconds(lambda: _answer(answerer, rows[0]), device)
    right = [answerer.route(x, "batch").expert[0] == owner for x, owner in zip(batches, owners, strict=True)]
    alone = [(answerer.route(x, "sample").expert == o).mean() for x, o in zip(batches, owners, strict=True)]
    held = population.learner.pool.memory()
    return {
        "experts": population.size,
        "gate_batch_ms": _median(lambda i: answerer.route(batches[i], "batch"), device),
        "gate_row_ms": _median(lambda i: answerer.route(rows[i], "sample"), device),
        "answer_row_ms": _median(lambda i: _answer(answerer, rows[i]), device),
        "first_answer_ms": round(first, 3),
        "right_batch": round(100 * float(np.mean(right)), 2),
        "right_sample": round(100 * float(np.mean(alone)), 2),
        "pool_mb": round((held["device_bytes"] + held["host_bytes"]) / 1e6, 1),
        "kb_per_expert": round(held["bytes_per_expert"] / 1e3, 1),
        "process_peak_mb": round(process_peak() / 1e6),
    }


def _answer(answerer: Answerer, x: Tensor) -> object:
    return answerer.probabilities(x, answerer.route(x, "sample"), CLASSES)


def _milliseconds(call: Callable[[], object], device: str) -> float:
    started = now(device)
    call()
    return 1e3 * (now(device) - started)


def _median(call: Callable[[int], object], device: str) -> float:
    times = [_milliseconds(lambda i=i: call(i), device) for i in range(1, 1 + REPEATS)]  # type: ignore[misc]
    return round(float(np.median(times)), 3)


def main() -> None:
    """Measure all sizes, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="largest number of experts")
    parser.add_argument("--out", type=Path, default=Path("results/scale.json"))
    options = parser.parse_args()
    device = resolve_device(options.device)
    subject = Subject("mlp", "28x28", "sketch", device)
    population, rows, code = Population(subject), [], commit()
    for experts in (size for size in SIZES if size <= options.most):
        started = time.perf_counter()
        grow(population, experts)
        grown = time.perf_counter() - started
        rows.append(measure(population, device) | {"growing_seconds": round(grown, 1)})
        if experts == SIZES[0]:
            print("  ".join(rows[0]))
        print("  ".join(f"{value:>{len(name)}}" for name, value in rows[-1].items()), flush=True)
    protocol = {"subject": str(subject), "device": device, "batch_size": 128, "commit": code} | environment()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"rows": rows, "protocol": protocol})


if __name__ == "__main__":
    main()
