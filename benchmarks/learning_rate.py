"""Which learning rate should the default recipe use? One expert on digits, evaluated on held-out training rows.

    python benchmarks/learning_rate.py [--out results/choices/learning_rate.json]

A tenth of the training rows, by content hash, is the validation part; seeds 100 to 109; 20 epochs of batches of 32.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import numpy as np
import torch

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.catalogue import SCENARIOS
from hge.data.scenario_builders import Request
from hge.experiments.run_files import environment
from hge.experts.eager import EagerPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec

RATES = (0.01, 0.02, 0.03, 0.05, 0.1)
SEEDS = range(100, 110)
EPOCHS = 20


def validation_accuracy(rate: float, seed: int) -> float:
    """Train on nine tenths of the first task of permuted-digits, which has all digits; test on the last tenth."""
    keys = Keys(seed)
    request = Request(1, keys, Path(), torch.device("cpu"))
    rows = SCENARIOS["permuted-digits"].build(request).tasks[0].train.whole()
    # Not `validation_scenario`, which was added later: the figures in results/ are of this part.
    held_out = torch.tensor([hashlib.blake2b(x.tobytes(), digest_size=1).digest()[0] < 26 for x in rows.x.numpy()])
    train, validation = (Batch(rows.x[part], rows.y[part]) for part in (~held_out, held_out))
    spec = PoolSpec((64,), 10, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig(), OptimiserConfig(lr=rate))
    pool = EagerPool(spec, keys, torch.device("cpu"))
    pool.create(0)
    for epoch in range(EPOCHS):
        order = torch.from_numpy(keys.rng("shuffle", 0, epoch).permutation(len(train)))
        for step, part in enumerate(torch.split(order, 32)):
            pool.train(0, Batch(train.x[part], train.y[part]), 1000 * epoch + step)
    return 100 * float((pool.logits(0, validation.x).argmax(1) == validation.y).float().mean())


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/choices/learning_rate.json"))
    options = parser.parse_args()
    rows = []
    for rate in RATES:
        accuracy = [validation_accuracy(rate, seed) for seed in SEEDS]
        rows.append(
            {"lr": rate, "mean": float(np.mean(accuracy)), "std": float(np.std(accuracy)), "accuracy": accuracy}
        )
        print(f"lr {rate:5}: {np.mean(accuracy):.2f} ± {np.std(accuracy):.2f} % on validation rows", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"rows": rows, "protocol": {"seeds": list(SEEDS), "epochs": EPOCHS} | environment()})


if __name__ == "__main__":
    main()
