"""What a fit of the joint score costs: in a stream, after one expert was trained or added, and at its end.

    OMP_NUM_THREADS=1 python benchmarks/refits.py [--experts 5,20,100] [--out results/bench/refits.json]

MLP experts with 28×28 inputs and a sketch per class, two classes each, 10 batches of 128 rows in each replay; synthetic
rows. A fit computes evidence, of changed experts on all rows and of all experts on changed rows, and then the
regression; the two are timed apart, in seconds of the process. "Just loaded": all evidence is computed again. A few
minutes on one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hge.bench.stream import BATCH_SIZE, CONTRAST, synthetic_scenario
from hge.core.config import LearnerConfig, RunConfig, ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.build import build_pool
from hge.experiments.run_files import environment
from hge.experts.joint.calibration import FULL, ROUGH, Calibration, FitBudget
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert, ReplayBatch

SHAPE = (1, 28, 28)
CLASSES = 2
REPEATS = 3


class Stage:
    """Experts that were trained briefly, each on its own task, and a joint score of them."""

    def __init__(self, most: int) -> None:
        config = RunConfig(
            scenario="synthetic",
            device="cpu",
            net="mlp",
            score=ScoreConfig(name="class-sketch"),
            learner=LearnerConfig(),
        )
        scenario = replace(synthetic_scenario(SHAPE), classes=CLASSES * most)
        self.config, self.keys = config.learner, Keys(0)
        self.pool: ExpertPool = build_pool(config, scenario, self.keys)
        self.experts: list[Expert] = []
        self.calibration = Calibration(self.pool, self.experts)

    def grow(self, experts: int) -> None:
        """Add experts up to this number."""
        while len(self.experts) < experts:
            expert = Expert.of(self.config, len(self.experts))
            self.pool.create(expert.id)
            self.experts.append(expert)
            for _ in range(self.config.replay_capacity):
                self.train(expert)

    def train(self, expert: Expert) -> None:
        """Train an expert on a further batch of its task."""
        step = expert.batches_trained
        batch = _batch(expert.id, step)
        expert.losses.update(self.pool.train(expert.id, batch, step))
        expert.replay.add(ReplayBatch(step, batch), self.keys.integer("replay", step, expert.id))

    def fit(self, budget: FitBudget) -> tuple[float, float]:
        """Fit; return the seconds for the evidence and for the regression."""
        evidence = _seconds(lambda: self.calibration.fit(replace(budget, iterations=0)))
        return evidence, _seconds(lambda: self.calibration.fit(budget))  # the evidence is kept


def measure(stage: Stage, experts: int) -> dict[str, Any]:
    """Time the fits at this number of experts."""
    stage.grow(experts - 1)
    stage.calibration.fit(ROUGH)
    stage.grow(experts)
    times = {"rough fit, an expert added": [stage.fit(ROUGH)], "rough fit, an expert trained on": []}
    for repeat in range(REPEATS):
        stage.train(stage.experts[repeat])
        times["rough fit, an expert trained on"].append(stage.fit(ROUGH))
    stage.train(stage.experts[0])
    times["full fit, an expert trained on"] = [stage.fit(FULL)]
    stage.calibration = Calibration(stage.pool, stage.experts)
    times["rough fit, just loaded"] = [stage.fit(ROUGH)]
    return {"experts": experts} | {
        name: dict(zip(("evidence", "regression"), np.median(own, axis=0).round(3).tolist(), strict=True))
        for name, own in times.items()
    }


def _batch(task: int, number: int) -> Batch:
    """Return a batch of a task: rows around the prototype of their class, with noise."""
    generator = torch.Generator().manual_seed(task)
    prototypes = 128 + CONTRAST * torch.randn(1 + CLASSES, *SHAPE, generator=generator)
    generator.manual_seed(1_000_000 * (1 + task) + number)
    own = torch.randint(CLASSES, (BATCH_SIZE,), generator=generator)
    noise = 2 * CONTRAST * torch.randn(BATCH_SIZE, *SHAPE, generator=generator)
    rows = prototypes[0] + (prototypes[1:] - 128)[own] + noise
    return Batch(rows.clamp_(0, 255).to(torch.uint8), CLASSES * task + own)


def _seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def main() -> None:
    """Measure all sizes, print them, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", default="5,20,100", help="numbers of experts")
    parser.add_argument("--out", type=Path, default=Path("results/bench/refits.json"))
    options = parser.parse_args()
    sizes = sorted(int(size) for size in options.experts.split(","))
    stage, rows, protocol = Stage(sizes[-1]), [], environment()
    for experts in sizes:
        rows.append(measure(stage, experts))
        print(rows[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"rows": rows, "budgets": {"rough": vars(ROUGH), "full": vars(FULL)}, "protocol": protocol})


if __name__ == "__main__":
    main()
