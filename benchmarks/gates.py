"""Which score should be the default? Leaderboards of `hge gates` on the validation part, seeds of 100 and above.

    python benchmarks/gates.py [--data FOLDER] [--out results/choices/gates.json]

About ten minutes on one core. Scenarios whose data are not available are skipped.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.files import write_json
from hge.data.catalogue import SCENARIOS
from hge.data.datasets import data_folder, find
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experiments.score_leaderboard import gates

RUNS = (  # scenario, seeds, factor on the epochs, tasks
    ("split-digits", 10, 1.0, 5),
    ("permuted-digits", 3, 1.0, 10),
    ("smnist", 3, 0.25, 5),
    ("mnist-kmnist", 2, 0.05, 10),
    ("pmnist", 1, 0.05, 10),
)


def main() -> None:
    """Run all leaderboards, write means and standard deviations over the seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/choices/gates.json"))
    arguments = parser.parse_args()
    boards = {}
    for scenario, seeds, scale, tasks in RUNS:
        if any(find(name, data_folder(arguments.data)) is None for name in SCENARIOS[scenario].datasets):
            print(f"{scenario}: no data")
            continue
        config = replace(build_config(scenario, epochs_scale=scale), tasks=tasks, device="cpu")
        with tempfile.TemporaryDirectory() as folder:
            results = [
                gates(replace(config, seed=seed), Path(folder), data=arguments.data, validation=True, autoencoder=False)
                for seed in range(100, 100 + seeds)
            ]
        boards[scenario] = summary(results) | {"epochs": config.epochs, "tasks": tasks, "net": config.net}
        print(
            scenario, {name: row["gate_accuracy"]["1"] for name, row in boards[scenario]["scores"].items()}, flush=True
        )
    write_json(arguments.out, {"part": "validation", "boards": boards, "protocol": environment()})


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return mean and standard deviation over seeds, of every figure."""
    found: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: {"gate_accuracy": defaultdict(list), "accuracy": defaultdict(list)}
    )
    for result in results:
        for row in result["scores"]:
            for kind, figures in found[row["score"]].items():
                for size, value in row[kind].items():
                    figures[size].append(value)
    return {
        "seeds": [result["protocol"]["seed"] for result in results],
        "scores": {
            name: {kind: {size: _spread(v) for size, v in sizes.items()} for kind, sizes in kinds.items()}
            for name, kinds in found.items()
        },
        "separate": _spread([result["separate"] for result in results]),
        "mixture": _spread([result["mixture"] for result in results]),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": round(float(np.mean(values)), 3), "std": round(float(np.std(values)), 3)}


if __name__ == "__main__":
    main()
