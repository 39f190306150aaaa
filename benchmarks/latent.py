"""Should the paper's MLP autoencoders be compared at the mean of the latent, or at a sample of it?

    python benchmarks/latent.py [--data FOLDER] [--out results/choices/latent.json]

smnist, seed 100: an autoencoder per task, trained as in recipe `paper`, with SGD, the paper's choice for this scenario,
and with Adam, its choice for others; a tenth of the training rows, by content hash, is the validation part. Batches of
128 of one task, and single rows, are routed to the autoencoder with the lowest loss. A few minutes on one core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Scenario
from hge.experiments.build import build_scenario, build_spec
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experts.pool_spec import PoolSpec
from hge.experts.scores import ScoreTrainer
from hge.experts.scores.autoencoder import AutoencoderScore

SEED = 100
OPTIMISERS = {
    "sgd": OptimiserConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4, clip_norm=0.0),
    "adam": OptimiserConfig(name="adam", lr=0.001, weight_decay=1e-4, clip_norm=0.0),
}
LATENTS = ("mean", "draw")
EPOCHS = (4, 10, 20, 30, 40)
GROUP = 128


def losses(scenario: Scenario, spec: PoolSpec, task: int, keys: Keys) -> dict[tuple[int, str], np.ndarray]:
    """Train one task's autoencoder; return its losses on the validation rows of all tasks, by epochs and latent."""
    cpu = torch.device("cpu")
    with keys.seeded("weights", task, device=cpu):
        net = spec.autoencoder(spec.shape)
    score = AutoencoderScore(net, spec.shape, ScoreConfig("autoencoder", sampled=True), spec.optimiser)
    trainer, rows, found, step = ScoreTrainer(score.eval()), scenario.tasks[task].train.whole(), {}, 0
    everybody = as_float(torch.cat([other.test.whole().x for other in scenario.tasks]))
    for epoch in range(1, max(EPOCHS) + 1):
        for part in torch.split(torch.from_numpy(keys.rng("shuffle", task, epoch).permutation(len(rows))), GROUP):
            trainer.train(as_float(rows.x[part]), rows.y[part], keys.generator("noise", step, task, device=cpu))
            step += 1
        if epoch in EPOCHS:
            at_mean = torch.zeros(1, *score.latents)
            with torch.no_grad():
                found[epoch, "mean"], found[epoch, "draw"] = (score(everybody, n).numpy() for n in (at_mean, None))
    return found


def right(scores: np.ndarray, task: np.ndarray, group: int) -> float:
    """Return the percentage of groups of one task whose own autoencoder has the lowest mean loss."""
    verdicts = []
    for own in range(len(scores)):
        rows = scores[:, task == own]
        whole = rows.shape[1] // group * group
        verdicts += list(rows[:, :whole].reshape(len(rows), -1, group).mean(axis=2).argmin(axis=0) == own)
    return round(100 * float(np.mean(verdicts)), 2)


def main() -> None:
    """Print a table and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/choices/latent.json"))
    options = parser.parse_args()
    keys, config = Keys(SEED), build_config("smnist", recipe="paper")
    scenario = validation_scenario(build_scenario(config, keys, options.data))
    task = np.repeat(np.arange(len(scenario.tasks)), [len(t.test.whole()) for t in scenario.tasks])
    rows: list[dict[str, Any]] = []
    for name, optimiser in OPTIMISERS.items():
        spec = replace(build_spec(config, scenario), optimiser=optimiser)
        found = [losses(scenario, spec, number, keys) for number in range(len(scenario.tasks))]
        for latent, epochs in product(LATENTS, EPOCHS):
            scores = np.stack([own[epochs, latent] for own in found])
            gate = {str(group): right(scores, task, group) for group in (1, GROUP)}
            rows.append({"optimiser": name, "latent": latent, "epochs": epochs, "gate_accuracy": gate})
            print(rows[-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"part": "validation", "rows": rows, "protocol": {"seed": SEED} | environment()})


if __name__ == "__main__":
    main()
