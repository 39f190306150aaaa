"""How wide should the MLP of recipe `best` be? SMNIST experts, evaluated on validation rows.

    python benchmarks/width.py [--data DIR] [--out results/choices/width.json]

A tenth of the training rows, by content hash, is the validation part; seeds 100 and 101; 10 epochs of batches of 128,
one expert per task, the recipe `best` otherwise.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hge.core.config import ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.holdout import validation_scenario
from hge.experiments.build import build_scenario, build_spec
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import MLP

WIDTHS, SEEDS, EPOCHS = (100, 400), (100, 101), 10


def validation_accuracy(width: int, seed: int, data: Path | None) -> list[float]:
    """Train an expert for each task; return each one's accuracy on its own task."""
    config = replace(build_config("smnist", recipe="best"), seed=seed, device="cpu")
    scenario = validation_scenario(build_scenario(config, Keys(seed), data))
    spec = replace(build_spec(config, scenario), net=partial(MLP, hidden=width), score=ScoreConfig())
    pool, accuracy = StackedPool(spec, Keys(seed), torch.device("cpu")), []
    for expert, task in enumerate(scenario.tasks):
        rows, held_out, step = task.train.whole(), task.test.whole(), 0
        pool.create(expert)
        for epoch in range(EPOCHS):
            order = torch.from_numpy(pool.keys.rng("shuffle", expert, epoch).permutation(len(rows)))
            for part in torch.split(order, config.batch_size):
                pool.train(expert, Batch(rows.x[part], rows.y[part]), step)
                step += 1
        accuracy.append(100 * float((pool.logits(expert, held_out.x).argmax(1) == held_out.y).float().mean()))
    return accuracy


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/choices/width.json"))
    options = parser.parse_args()
    rows = []
    for width in WIDTHS:
        for seed in SEEDS:
            accuracy = validation_accuracy(width, seed, options.data)
            rows.append({"width": width, "seed": seed, "accuracy": accuracy})
            print(f"width {width}, seed {seed}: {np.mean(accuracy):.2f} % on validation rows", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"part": "validation", "rows": rows, "protocol": {"epochs": EPOCHS} | environment()})


if __name__ == "__main__":
    main()
