"""Which network should recipe `best` use for photographs? Leaderboards of candidates, on validation rows.

    python benchmarks/networks.py [--net resnet9-32] [--rate 0.05] [--features 128] [--epochs 20] [--device cuda]

cif100-10, seed 100; a tenth of the training rows, by content hash, is the validation part. All other settings are
those of recipe `best`: flips and crops, averaged weights. The criteria are the joint score's gate accuracy on single
samples (as in `hge gates`), and the accuracy of each expert on its own task.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hge.core.files import write_json
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experiments.score_leaderboard import gates
from hge.experts.joint import calibration
from hge.experts.joint import model as joint
from hge.experts.networks import NETS, FourConvolutions, Shape

SEED = 100


class Residual(nn.Sequential):
    """Layers whose input is added to their output."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        out: Tensor = x + super().forward(x)  # type: ignore[no-untyped-call]
        return out


def convolution(inputs: int, outputs: int, *, pool: bool) -> nn.Sequential:
    """3×3 convolution, BatchNorm, ReLU and, if `pool`, max-pooling to half the size."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


def resnet9(shape: Shape, outputs: int, *, width: int) -> nn.Module:
    """Four convolutions and two residual blocks; global max-pooling before the linear layer."""

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
    "conv4-64": partial(FourConvolutions, width=64),
    "conv4": NETS["conv4"],
    "resnet9-32": partial(resnet9, width=32),
    "resnet9-64": partial(resnet9, width=64),
    "resnet18-cifar": NETS["resnet18-cifar"],
}


def board(net: str, rate: float, features: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train an expert per task, and evaluate the joint score with this number of features per expert."""
    NETS[net] = CANDIDATES[net]
    joint.MAX_FEATURES = features
    calibration.MAX_FEATURES_TOTAL = 10 * features  # ten experts, each with the requested number
    config = build_config("cif100-10", recipe="best")
    config = replace(config, seed=SEED, device=options.device, precision=options.precision)
    config = replace(config, net=net, epochs=options.epochs)
    config = replace(config, optimiser=replace(config.optimiser, lr=rate))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = gates(config, Path(folder), data=options.data, validation=True, autoencoder=False)
    gate_accuracy = next(row["gate_accuracy"] for row in result["scores"] if row["score"] == "joint")
    row = {"net": net, "lr": rate, "epochs": options.epochs, "features": features, "separate": result["separate"]}
    return row | {"gate_accuracy": gate_accuracy, "seconds": round(time.perf_counter() - started, 1)}


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=CANDIDATES, action="append", help="may be repeated; default: all")
    parser.add_argument("--rate", type=float, action="append", help="learning rate; may be repeated")
    parser.add_argument("--features", type=int, action="append", help="per expert in the joint score; may be repeated")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/choices/networks.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    protocol = {"seed": SEED, "device": options.device, "precision": options.precision} | environment()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for name, rate, features in product(options.net or CANDIDATES, options.rate or [0.05], options.features or [128]):
        rows.append(board(name, rate, features, options))
        print(rows[-1], flush=True)
        write_json(options.out, {"part": "validation", "rows": rows, "protocol": protocol})


if __name__ == "__main__":
    main()
