"""Ablation of the sketch: each of its design choices, on validation rows of two scenarios, seed 100.

    python benchmarks/sketch.py --data DATA [--out results/choices/sketch.json]

Each expert learns its task's training rows once. Figures are the percentage of groups of 1, 8, 32 and 128 validation
rows that are routed to their own expert, averaged over tasks. One setting is changed at a time:

- opening: rows from which the directions are computed (random directions are added if the rows span fewer);
- directions: their number;
- tail: standard deviations beyond which a coordinate grows logarithmically;
- rows: rows that an expert has seen ("608 / all": alternating), with and without the allowance for few rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import hge.experts.scores.sketch as sketch_module
import hge.experts.scores.space as space_module
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Scenario
from hge.experiments.build import build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.run_files import commit, environment
from hge.experiments.score_leaderboard import GROUPS, group_rows, mean_over_tasks
from hge.experts.scores import SketchScore, Space

SCENARIOS, SEEDS = ("smnist", "cif100-10"), (100,)
ALL = 10**9
ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class Case:
    """One variant of the sketch."""

    name: str
    opening: int = space_module.DIRECTION_ROWS
    directions: int = 0
    tail: float = space_module.TAIL
    rows: tuple[int, ...] = (ALL,)
    """Rows that each expert learns, repeated cyclically over the experts."""
    allowance: bool = True


CASES = (
    Case("as shipped"),
    *(Case(f"opening of {n} rows", opening=n) for n in (1, 8, 128, 2048)),
    *(Case(f"{n} directions", directions=n) for n in (32, 128)),
    *(Case(f"tail from {t:g}", tail=t) for t in (3.0, 1e6)),
    *(
        Case(
            f"{few} / {'all' if mixed else few} rows{'' if allowance else ', no allowance'}",
            rows=rows,
            allowance=allowance,
        )
        for few in (64, 608)
        for mixed, rows in ((False, (few,)), (True, (few, ALL)))
        for allowance in (True, False)
    ),
)


@contextmanager
def as_in(case: Case) -> Iterator[None]:
    """Use this variant of the sketch inside the block."""
    gaussians = sketch_module.gaussians

    def without_allowance(moments: Tensor, space: Space) -> Tensor:
        weights, rows, width = gaussians(moments, space), moments[:, 0], space.width - 1
        shrinkage = rows / (rows + max(width, sketch_module.PRIOR_ROWS))
        weights[:, 0] += width / (rows + sketch_module.PRIOR_ROWS) + width * (width - 1) * shrinkage.square() / (
            4 * rows
        )
        return weights

    with (
        mock.patch.object(space_module, "TAIL", case.tail),
        mock.patch.object(space_module, "DIRECTION_ROWS", case.opening),
        mock.patch.object(sketch_module, "PRIOR_VARIANCE", case.tail**-2),
        mock.patch.object(sketch_module, "gaussians", gaussians if case.allowance else without_allowance),
    ):
        yield


def measure(scenario: Scenario, keys: Keys, case: Case) -> dict[str, list[float]]:
    """Fit every expert's sketch and class-sketch to its task; return the percentages of groups routed correctly."""
    space, found = Space(scenario.shape, case.directions), {}
    tasks = scenario.tasks
    orders = [torch.from_numpy(keys.rng("shuffle", t, 0).permutation(len(task.train))) for t, task in enumerate(tasks)]
    first = tasks[0].train.batch(orders[0][: case.opening])
    space.collect(as_float(first.x), first.y)
    space.fix()
    test = [task.test.whole() for task in tasks]
    rows, owner = torch.cat([as_float(b.x) for b in test]), np.repeat(np.arange(len(test)), [len(b) for b in test])
    for name, classes in (("sketch", 1), ("class-sketch", scenario.classes)):
        scores = [SketchScore(space, classes) for _ in tasks]
        for number, (task, score, order) in enumerate(zip(tasks, scores, orders, strict=True)):
            for positions in torch.split(order[: case.rows[number % len(case.rows)]], ROWS_AT_ONCE):
                batch = task.train.batch(positions)
                score.compute_update(score.preprocess(as_float(batch.x)), batch.y, None)
                score.apply_update(skip=torch.zeros(()))
            score.refresh(0)
        stacked = {"weights": torch.stack([score.weights for score in scores])}
        first_of = scores[0]
        answers = np.concatenate(
            [
                first_of.stacked(stacked, first_of.read(part), batch_statistics=False).numpy()
                for part in torch.split(rows, ROWS_AT_ONCE)
            ],
            axis=1,
        )
        found[name] = []
        for size in GROUPS:
            groups = group_rows(owner, size, keys)
            own = owner[groups[:, 0]]
            found[name].append(mean_over_tasks(answers[:, groups].mean(axis=2).argmin(axis=0) == own, own))
    return found


def main() -> None:
    """Measure all cases, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=Path("results/choices/sketch.json"))
    options = parser.parse_args()
    document: dict[str, Any] = {"groups": list(GROUPS), "seeds": list(SEEDS), "part": "validation", "scenarios": {}}
    document["protocol"] = {"commit": commit()} | environment()
    for name in SCENARIOS:
        scenarios = []
        for seed in SEEDS:
            config, keys = replace(build_config(name), seed=seed), Keys(seed)
            scenarios.append((validation_scenario(build_scenario(config, keys, options.data)), keys))
        rows = document["scenarios"][name] = {}
        for case in CASES:
            with as_in(case):
                seeds = [measure(scenario, keys, case) for scenario, keys in scenarios]
            rows[case.name] = {
                score: np.mean([own[score] for own in seeds], axis=0).round(2).tolist() for score in seeds[0]
            }
            line = "   ".join(" / ".join(f"{v:5.1f}" for v in figures) for figures in rows[case.name].values())
            print(f"{name:10} {case.name:32} {line}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, document)


if __name__ == "__main__":
    main()
