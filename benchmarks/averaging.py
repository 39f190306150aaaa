"""Should predictions use averaged weights, and with which decay? CIFAR-100 experts, evaluated on validation rows.

    python benchmarks/averaging.py [--net small] [--tasks 2] [--device cpu] [--out results/choices/averaging.json]

The first tasks of cif100-10, seed 100; a tenth of the training rows, by content hash, is the validation part. All other
settings are those of recipe `best`, including flips and crops. `small`, a network of four convolutions, is for machines
without a GPU.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hge.core.config import RunConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Task
from hge.experiments.build import build_scenario, build_spec
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import NETS, Shape

DECAYS = (0.0, 0.97, 0.99, 0.997)
"""Decays of the average; 0: predictions use the trained weights."""
SEED, EPOCHS, EVERY = 100, 20, 5


def small_net(shape: Shape, outputs: int) -> nn.Module:
    """Four convolutions with BatchNorm."""
    layers: list[nn.Module] = []
    for inputs, channels in ((shape[0], 32), (32, 64), (64, 128), (128, 128)):
        convolution = nn.Conv2d(inputs, channels, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, outputs))


def validation_accuracy(config: RunConfig, pool: StackedPool, expert: int, task: Task) -> list[float]:
    """Train an expert on a task; return its accuracy after every few epochs."""
    rows, held_out = (part.whole().to(pool.device) for part in (task.train, task.test))
    accuracy, step = [], 0
    pool.create(expert)
    for epoch in range(EPOCHS):
        order = torch.from_numpy(pool.keys.rng("shuffle", expert, epoch).permutation(len(rows))).to(pool.device)
        for part in torch.split(order, config.batch_size):
            pool.train(expert, Batch(rows.x[part], rows.y[part]), step)
            step += 1
        if (epoch + 1) % EVERY == 0:
            right = pool.logits(expert, held_out.x).argmax(1) == held_out.y
            accuracy.append(round(100 * float(right.float().mean()), 2))
    return accuracy


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=("small", "resnet18-cifar"), default="small")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/choices/averaging.json"))
    options = parser.parse_args()
    config = replace(build_config("cif100-10", recipe="best"), seed=SEED, device=options.device)
    scenario = validation_scenario(build_scenario(config, Keys(SEED), options.data))
    spec = replace(build_spec(config, scenario), net=small_net if options.net == "small" else NETS[options.net])
    rows: list[dict[str, Any]] = []
    for decay in DECAYS:
        own = replace(spec, optimiser=replace(spec.optimiser, average=decay))
        pool = StackedPool(own, Keys(SEED), torch.device(options.device))
        for number, task in enumerate(scenario.tasks[: options.tasks]):
            accuracy = validation_accuracy(config, pool, number, task)
            rows.append({"average": decay, "task": number, "accuracy": accuracy})
            print(f"average {decay}, task {number}: {accuracy} % after every {EVERY} epochs", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    protocol = {"net": options.net, "seed": SEED, "epochs": EPOCHS, "every": EVERY, "device": options.device}
    write_json(options.out, {"part": "validation", "rows": rows, "protocol": protocol | environment()})


if __name__ == "__main__":
    main()
