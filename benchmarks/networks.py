"""Which network should recipe `best` have for photographs? Experts of CIFAR-100, judged on validation rows.

    python benchmarks/networks.py [--net plain-32] [--tasks 2] [--device cpu] [--out results/choices/networks.json]

The first tasks of cif100-10, seed 100, 20 epochs, which are 720 steps a task: no network can count on more in a stream.
A tenth of the training rows, by content hash, is the validation part. All else is the recipe `best`: flips and crops,
averaged weights.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from averaging import validation_accuracy
from torch import Tensor, nn

from hge.build import build_scenario, build_spec
from hge.data.validation import for_choosing
from hge.keys import Keys
from hge.nets import NETS, Shape
from hge.recipes import build_config
from hge.record import environment, write_json
from hge.stacked import StackedPool

SEED = 100
RATES = (0.02, 0.05, 0.1)


class Residual(nn.Sequential):
    """Adds its input to its output."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        out: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return out


def convolution(inputs: int, outputs: int, *, pool: bool) -> nn.Sequential:
    """3×3, BatchNorm, ReLU, and half the size if asked."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


def plain(shape: Shape, outputs: int, *, width: int) -> nn.Module:
    """Four convolutions."""
    widths = (shape[0], width, 2 * width, 4 * width, 4 * width)
    layers = [convolution(a, b, pool=True) for a, b in pairwise(widths)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, outputs))


def resnet9(shape: Shape, outputs: int, *, width: int) -> nn.Module:
    """Four convolutions and two residual blocks; the largest activation of a channel answers for it."""

    def block(channels: int) -> Residual:
        return Residual(convolution(channels, channels, pool=False), convolution(channels, channels, pool=False))

    return nn.Sequential(
        convolution(shape[0], width, pool=False),
        convolution(width, 2 * width, pool=True),
        block(2 * width),
        convolution(2 * width, 4 * width, pool=True),
        convolution(4 * width, 8 * width, pool=True),
        block(8 * width),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(8 * width, outputs),
    )


CANDIDATES: dict[str, Callable[[Shape, int], nn.Module]] = {
    "plain-32": partial(plain, width=32),
    "plain-64": partial(plain, width=64),
    "plain-128": partial(plain, width=128),
    "resnet9-32": partial(resnet9, width=32),
    "resnet9-64": partial(resnet9, width=64),
    "resnet18-cifar": NETS["resnet18-cifar"],
}


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=CANDIDATES, action="append", help="may be repeated; all, if none is named")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/choices/networks.json"))
    options = parser.parse_args()
    config = build_config("cif100-10", recipe="best")
    config = replace(config, seed=SEED, device=options.device, precision=options.precision)
    scenario = for_choosing(build_scenario(config, Keys(SEED), options.data))
    rows: list[dict[str, Any]] = []
    protocol = {"seed": SEED, "device": options.device, "precision": options.precision} | environment()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name in options.net or CANDIDATES:
        for rate in RATES:
            own = replace(build_spec(config, scenario), net=CANDIDATES[name])
            own = replace(own, optimiser=replace(own.optimiser, lr=rate))
            pool = StackedPool(own, Keys(SEED), torch.device(options.device))
            started = time.perf_counter()
            accuracy = [
                validation_accuracy(config, pool, number, task)
                for number, task in enumerate(scenario.tasks[: options.tasks])
            ]
            seconds = round(time.perf_counter() - started, 1)
            rows.append({"net": name, "lr": rate, "accuracy": accuracy, "seconds": seconds})
            print(f"{name}, learning rate {rate}: {accuracy} % after every 5 epochs, {seconds} s", flush=True)
            write_json(options.out, {"part": "validation", "rows": rows, "protocol": protocol})


if __name__ == "__main__":
    main()
