"""Random class-incremental streams in raw units through `partial_fit`: how many tasks are lost, with the defaults.

Each seed draws a data set (digits, digits in another unit, or a table of Gaussian classes whose features have one or
very different scales), a division of its classes into tasks, their lengths (40 to 120 batches of 32 rows), and the
size of the calls. A task is lost if, at the end, less than 80 % of its test rows are predicted rightly, and less than
90 % of what a linear model trained on that task alone reaches.

    python benchmarks/random_streams.py --seeds 0-199 --out results/streams/random.json
    python benchmarks/random_streams.py one-class --seeds 0-49
    python benchmarks/random_streams.py short --seeds 0-9
    python benchmarks/random_streams.py noisy --seeds 0-11
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from hge import GatedExperts

LOST = 0.8
ROWS = 32


@dataclass(frozen=True)
class Tasks:
    """Training and test rows of each task."""

    name: str
    train: list[tuple[np.ndarray, np.ndarray]]
    test: list[tuple[np.ndarray, np.ndarray]]


def main() -> None:
    """Run the streams of one kind, in two processes, and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", default="random", choices=("random", "one-class", "short", "noisy"))
    parser.add_argument("--seeds", default="0-19")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    run = {"random": random_stream, "one-class": one_class_at_a_time, "short": short_tasks, "noisy": noisy_labels}[
        options.kind
    ]
    results = []
    with Pool(options.processes) as pool:
        for result in pool.imap(run, seeds):
            results.append(result)
            print(json.dumps(result), flush=True)
    lost, tasks, extra = (sum(r[name] for r in results) for name in ("lost", "tasks", "extra"))
    print(f"{lost} of {tasks} tasks lost; streams with an expert too many: {extra}")
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({"kind": options.kind, "commit": commit, "streams": results}, indent=1) + "\n"
        )


def random_stream(seed: int) -> dict[str, Any]:
    """Learn one random stream."""
    rng = np.random.default_rng([seed, 2])
    tasks = draw_tasks(rng)
    lengths = rng.integers(40, 121, len(tasks.train))
    call = int(rng.choice([1, 7, 20, 32, 200]))
    return learn(seed, tasks, [ROWS * int(n) for n in lengths], call)


def one_class_at_a_time(seed: int) -> dict[str, Any]:
    """Learn the ten digits one after the other, 20 passes over each."""
    tasks = divide(*load_digits(return_X_y=True), [[k] for k in range(10)], np.random.default_rng([seed, 3]), "digits")
    return learn(seed, tasks, [20 * len(y) for _, y in tasks.train], ROWS)


def short_tasks(seed: int) -> dict[str, Any]:
    """Learn five pairs of digits, 10 to 80 batches each; the shortest first."""
    results = []
    for batches in (10, 20, 30, 50, 80):
        rng = np.random.default_rng([seed, 4])
        pairs = rng.permutation(10).reshape(5, 2).tolist()
        tasks = divide(*load_digits(return_X_y=True), pairs, rng, f"pairs of {batches} batches")
        results.append(learn(seed, tasks, [ROWS * batches] * 5, ROWS))
    return summed(seed, results)


def noisy_labels(seed: int) -> dict[str, Any]:
    """Learn three linear tasks with the same two labels, a tenth or a fifth of them wrong, in two sizes of batch."""
    results = []
    for wrong in (0.1, 0.2):
        for batch in (32, 128):
            rng = np.random.default_rng([seed, 6])
            drawn = [linear_task(rng, wrong) for _ in range(3)]
            name = f"{wrong:.0%} wrong, batches of {batch}"
            tasks = Tasks(name, [train for train, _ in drawn], [test for _, test in drawn])
            results.append(learn(seed, tasks, [200 * ROWS] * 3, ROWS, batch))
    return summed(seed, results)


def linear_task(rng: np.random.Generator, wrong: float) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    """Draw a rule for two labels of ten inputs around a mean, and rows to learn and to test."""
    direction, mean = rng.normal(size=10), rng.normal(size=10)

    def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(count, 10))
        return x + mean, ((x @ direction > 0) ^ (rng.random(count) < wrong)).astype(int)

    return rows(200 * ROWS), rows(500)


def summed(seed: int, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums over several streams of one seed, and of each its accuracy, lowest task and experts."""
    sums = {name: sum(r[name] for r in results) for name in ("tasks", "lost", "extra")}
    figures = {r["data"]: [round(r["accuracy"], 3), round(r["lowest"], 3), r["experts"]] for r in results}
    return {"seed": seed} | sums | figures


def draw_tasks(rng: np.random.Generator) -> Tasks:
    """Draw a data set and the classes of its tasks."""
    kind = str(rng.choice(["digits", "digits in units", "table", "table of mixed scales"]))
    if kind.startswith("digits"):
        x, y = load_digits(return_X_y=True)
        if kind == "digits in units":
            x = x * 10 ** rng.uniform(-4, 6)
        classes = 10
    else:
        classes = int(rng.integers(6, 13))
        inputs = int(rng.integers(8, 41))
        x, y = make_classification(
            4000, inputs, n_informative=int(0.8 * inputs), n_redundant=0, n_classes=classes, class_sep=2.0,
            n_clusters_per_class=1, random_state=int(rng.integers(2**31)),
        )  # fmt: skip
        if kind == "table of mixed scales":
            x = x * 10 ** rng.uniform(-3, 5, inputs) + 10 ** rng.uniform(-2, 3, inputs)
    order, groups = rng.permutation(classes).tolist(), []
    while order:
        size = min(int(rng.integers(1, 4)), len(order))
        groups.append(order[:size])
        order = order[size:]
    return divide(x, y, groups, rng, kind)


def divide(x: np.ndarray, y: np.ndarray, groups: list[list[int]], rng: np.random.Generator, name: str) -> Tasks:
    """Return tasks of these classes, a fifth of the rows of each for testing."""
    test = rng.random(len(y)) < 0.2
    own = [np.isin(y, group) for group in groups]
    return Tasks(name, [(x[m & ~test], y[m & ~test]) for m in own], [(x[m & test], y[m & test]) for m in own])


def learn(seed: int, tasks: Tasks, rows: list[int], call: int, batch: int = ROWS) -> dict[str, Any]:
    """Learn the tasks in order, in calls of a size, and test all of them at the end, in one call each."""
    torch.set_num_threads(1)
    rng, model = np.random.default_rng([seed, 5]), GatedExperts(batch_size=batch, random_state=seed)
    for x, y in calls(tasks, rows, call, rng):
        model.partial_fit(x, y)
    model.flush()
    together = model.predict(np.concatenate([x for x, _ in tasks.test]))
    accuracy = [float((model.predict(x) == y).mean()) for x, y in tasks.test]
    bound = [min(LOST, 0.9 * alone(*train, *test)) for train, test in zip(tasks.train, tasks.test, strict=True)]
    return {
        "seed": seed,
        "data": tasks.name,
        "call": call,
        "tasks": len(tasks.train),
        "experts": model.n_experts_,
        "extra": int(model.n_experts_ > len(tasks.train)),
        "lost": sum(a < b for a, b in zip(accuracy, bound, strict=True)),
        "accuracy": float(np.mean(accuracy)),
        "mixed": float((together == np.concatenate([y for _, y in tasks.test])).mean()),
        "lowest": min(accuracy),
    }


def calls(
    tasks: Tasks, rows: list[int], size: int, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the stream in calls of a size, which need not end where a task ends."""
    chosen = [np.concatenate([rng.permutation(len(y)) for _ in range(-(-n // len(y)))])[:n]
              for (_, y), n in zip(tasks.train, rows, strict=True)]  # fmt: skip
    x = np.concatenate([task[0][c] for task, c in zip(tasks.train, chosen, strict=True)])
    y = np.concatenate([task[1][c] for task, c in zip(tasks.train, chosen, strict=True)])
    for start in range(0, len(y), size):
        yield x[start : start + size], y[start : start + size]


def alone(x: np.ndarray, y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray) -> float:
    """Return the accuracy of a linear model trained on one task alone."""
    if len(np.unique(y)) == 1:
        return 1.0
    scale = StandardScaler().fit(x)
    return float(LogisticRegression(max_iter=500).fit(scale.transform(x), y).score(scale.transform(test_x), test_y))


if __name__ == "__main__":
    main()
