"""Is the rate of false alarms of `is_unknown` that which was asked for, and are rows of unknown classes found?

    OMP_NUM_THREADS=1 python benchmarks/novelty.py [--data FOLDER] [--seeds 5] [--out results/choices/novelty.json]

Digits and MNIST in pairs of classes, the last of which is never learned; wine, all of whose classes are known. A third
of the rows is held out, of MNIST (if its files are there) the validation rows. Single rows, seeds of 100 and above.
False alarms: the share of held-out rows of known classes above a threshold for the stated share. A few minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits, load_wine
from sklearn.metrics import roc_auc_score

from hge import GatedExperts
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.data.datasets import data_folder, find
from hge.data.holdout import validation_scenario
from hge.experiments.build import build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment

Array = npt.NDArray[Any]
STATED = (0.01, 0.05, 0.1, 0.2)
MODELS = {
    "default": {},
    "joint": {"joint": True, "gate_score": "class-sketch"},
    "joint, no memory": {"joint": True, "gate_score": "class-sketch", "memory_rows": 0},
}
ROWS_PER_TASK, JUDGED_PER_TASK = 3000, 300


@dataclass(frozen=True)
class Rows:
    """What is learned, task by task, and the rows to be judged."""

    tasks: list[tuple[Array, Array]]
    known: Array
    unknown: Array
    """Possibly none."""
    passes: int


def digits(seed: int) -> Rows:
    """Return four pairs of digits; the fifth is unknown."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(10)
    return _split(X, y, [order[i : i + 2] for i in range(0, 10, 2)], seed, passes=2)


def wine(seed: int) -> Rows:
    """Return two tasks of about 120 rows; nothing is unknown."""
    X, y = load_wine(return_X_y=True)
    return _split(X, y, [np.array([0, 1]), np.array([2]), np.array([-1])], seed, passes=4)


def mnist(seed: int, data: Path | None) -> Rows:
    """Return four pairs of classes, one pass over some of their rows; the fifth is unknown."""
    scenario = validation_scenario(build_scenario(build_config("smnist"), Keys(seed), data))
    trained = [task.train.whole() for task in scenario.tasks]
    judged = [task.test.whole().x.flatten(1).numpy()[:JUDGED_PER_TASK] for task in scenario.tasks]
    rng = np.random.default_rng(seed)
    some = [rng.permutation(len(batch))[:ROWS_PER_TASK] for batch in trained]
    tasks = [(b.x.flatten(1).numpy()[rows], b.y.numpy()[rows]) for b, rows in zip(trained, some, strict=True)]
    return Rows(tasks[:-1], np.concatenate(judged[:-1]), judged[-1], passes=1)


def _split(X: Array, y: Array, tasks: list[Array], seed: int, passes: int) -> Rows:
    held = np.random.default_rng(seed + 1).random(len(y)) < 1 / 3
    of = [np.isin(y, classes) for classes in tasks]
    known = np.any(of[:-1], axis=0)
    return Rows([(X[own & ~held], y[own & ~held]) for own in of[:-1]], X[known & held], X[of[-1]], passes)


def measure(rows: Rows, seed: int, parameters: dict[str, Any]) -> dict[str, Any]:
    """Learn the tasks and judge the other rows."""
    model = GatedExperts(random_state=seed, **parameters)
    rng = np.random.default_rng(seed)
    for X, y in rows.tasks:
        for _ in range(rows.passes):
            order = rng.permutation(len(y))
            model.partial_fit(X[order], y[order])
    model.flush()
    result: dict[str, Any] = {str(rate): float(model.is_unknown(rows.known, rate).mean()) for rate in STATED}
    if len(rows.unknown):
        novelty = model.predict_unknown(np.concatenate([rows.known, rows.unknown]))
        result["area"] = float(roc_auc_score(np.arange(len(novelty)) >= len(rows.known), novelty))
        result["found at 0.05"] = float(model.is_unknown(rows.unknown, 0.05).mean())
    return result


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean, lowest and highest of every figure, in percent."""
    columns = {name: 100 * np.array([result[name] for result in results]) for name in results[0]}
    return {
        name: {
            "mean": round(float(own.mean()), 2),
            "low": round(float(own.min()), 2),
            "high": round(float(own.max()), 2),
        }
        for name, own in columns.items()
    }


def main() -> None:
    """Measure all data and models, print means, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/choices/novelty.json"))
    options = parser.parse_args()
    seeds, protocol, found = list(range(100, 100 + options.seeds)), environment(), {}
    for name, rows in _data(options.data, seeds):
        found[name] = {
            model: summary([measure(own, seed, parameters) for own, seed in zip(rows, seeds, strict=True)])
            for model, parameters in MODELS.items()
        }
        for model, figures in found[name].items():
            print(f"{name}, {model}:", {figure: spread["mean"] for figure, spread in figures.items()}, flush=True)
    write_json(options.out, {"seeds": seeds, "percent": found, "protocol": protocol})


def _data(folder: Path | None, seeds: list[int]) -> Iterator[tuple[str, list[Rows]]]:
    yield "digits", [digits(seed) for seed in seeds]
    yield "wine", [wine(seed) for seed in seeds]
    if find("mnist", data_folder(folder)) is None:
        print("mnist: no data")
    else:
        yield "mnist", [mnist(seed, folder) for seed in seeds]


if __name__ == "__main__":
    main()
