"""What makes single samples right on photographs? Views, weight averages, widths and the joint score's features.

    python benchmarks/views.py cif10 --views 4 --average 0.999 --epochs 20 --device cuda --precision bf16 --out FILE

A stream without task ids by recipe `best`, seed 100; a tenth of the training rows, by content hash, is the validation
part. At the end of the stream the joint score is fitted in several ways to the same replay; the criterion is the
accuracy of single validation rows over all classes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Scenario
from hge.experiments.build import build_learner, build_scenario, no_task
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment
from hge.experts.fast import pool as fast_pool
from hge.experts.features import features_and_logits
from hge.experts.joint import calibration, model
from hge.experts.networks import NETS, FourConvolutions
from hge.learning.learner import Learner

NETS["conv4-192"] = partial(FourConvolutions, width=192)
NETS["conv4-256"] = partial(FourConvolutions, width=256)
ALL = "all views"
REDUCE: dict[str, Callable[[Tensor], Tensor]] = {
    ALL: lambda features: features.flatten(1),
    "first view": lambda features: features[:, 0],
    "mean over views": lambda features: features.mean(1),
}
WAYS = [  # features, their number per expert, their scale in the prior, averaged with those of the mirrored image?
    (ALL, 128, 0.1, False),
    ("first view", 128, 0.1, False),
    ("mean over views", 512, 0.1, False),
    (ALL, 512, 0.1, False),
    (ALL, 512, 0.05, False),
    (ALL, 512, 0.2, False),
    (ALL, 1280, 0.05, False),
    (ALL, 1280, 0.1, False),
    (ALL, 512, 0.1, True),
    (ALL, 1280, 0.1, True),
]


def reduced(
    reduce: Callable[[Tensor], Tensor], views: int, mirror: bool, net: nn.Module, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return features, reduced over the views, and logits; of the mirrored image as well if asked for."""
    features, logits = features_and_logits(net, x)
    if mirror:
        mirrored_features, mirrored_logits = features_and_logits(net, x.flip(-1))
        features, logits = (features + mirrored_features) / 2, (logits + mirrored_logits) / 2
    return reduce(features.unflatten(1, (views, -1))), logits


def joint_accuracies(learner: Learner, scenario: Scenario, views: int, scale: float) -> dict[str, float]:
    """Return the accuracies of single rows: by the regression, the mixture, the chosen expert, the highest energy."""
    fitted = learner.calibration
    assert fitted is not None
    assert fitted.joint is not None
    right: dict[str, list[float]] = {"regression": [], "mixture": [], "expert": [], "energy": []}
    for task in scenario.tasks:
        batch = task.test.whole()
        evidence = [fitted.evidence(part.to(learner.pool.device)) for part in torch.split(batch.x, 1024)]
        joined = [
            model.Evidence(
                *(np.concatenate([getattr(p[e], n) for p in evidence]) for n in ("parts", "logits", "features"))
            )
            for e in range(len(evidence[0]))
        ]
        pairs, y = fitted.joint.pairs(joined), batch.y.cpu().numpy()
        classes = [scaler.classes for scaler in fitted.joint.scalers]
        own = np.stack([c[e.logits[:, c].argmax(1)] for e, c in zip(joined, classes, strict=True)])
        energy = np.stack([np.logaddexp.reduce(e.logits[:, c], axis=1) for e, c in zip(joined, classes, strict=True)])
        rows = np.arange(len(y))
        guesses = {
            "regression": fitted.joint.pair_class[pairs.argmax(1)],
            "mixture": fitted.joint.mixture(joined, scenario.classes).argmax(1),
            "expert": own[fitted.joint.experts(pairs).argmax(0), rows],
            "energy": own[energy.argmax(0), rows],
        }
        for name, guess in guesses.items():
            right[name].append(float((guess == y).mean()))
    return {name: round(100 * float(np.mean(shares)), 2) for name, shares in right.items()}


def main() -> None:
    """Learn the stream, fit the joint score in every way, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario")
    parser.add_argument("--views", type=int, default=4)
    parser.add_argument("--average", type=float, default=0.99)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--net")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--ways", type=int, default=len(WAYS), help="number of ways to fit the joint score")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    config = build_config(options.scenario, recipe="best")
    config = replace(
        config,
        views=options.views,
        epochs=options.epochs,
        seed=options.seed,
        net=options.net or config.net,
        device=options.device,
        precision=options.precision,
        optimiser=replace(config.optimiser, average=options.average, lr=options.lr),
    )
    keys, events = Keys(config.seed), []
    scenario = validation_scenario(build_scenario(config, keys, options.data))
    learner = build_learner(config, scenario, keys, events.append, no_task)
    assert isinstance(learner, Learner)
    started = time.perf_counter()
    steps = sum(1 for _ in learner.learn_all(b for _, b in scenario.stream(config.batch_size, config.epochs, keys)))
    learner.end_stream()
    seconds = time.perf_counter() - started
    print(options.scenario, steps, "batches", round(seconds, 1), "s", len(learner.experts), "experts", flush=True)
    rows: list[dict[str, Any]] = []
    protocol = {"scenario": options.scenario, "part": "validation", "seed": config.seed, "views": options.views}
    protocol |= {"average": options.average, "lr": options.lr, "net": config.net, "epochs": options.epochs}
    protocol |= {"experts": len(learner.experts), "ms_per_batch": round(1000 * seconds / steps, 2)} | environment()
    for reduce, features, scale, mirror in WAYS[: options.ways]:
        fast_pool.features_and_logits = partial(reduced, REDUCE[reduce], options.views, mirror)  # type: ignore[assignment]
        model.MAX_FEATURES, model.FEATURE_SCALE = features, scale
        calibration.MAX_FEATURES_TOTAL = features * len(learner.experts)
        assert learner.calibration is not None
        learner.calibration._clear_cache()
        started = time.perf_counter()
        learner.calibration.fit()
        way = {"features": reduce, "per expert": features, "scale": scale, "mirror": mirror}
        way["seconds"] = round(time.perf_counter() - started, 1)
        rows.append(way | joint_accuracies(learner, scenario, options.views, scale))
        print(rows[-1], flush=True)
        write_json(options.out, {"rows": rows, "protocol": protocol})


if __name__ == "__main__":
    main()
