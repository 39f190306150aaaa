"""Growth: hundreds of experts, each of a task of its own; time per batch and memory as their number grows."""

from __future__ import annotations

import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hge import GatedExperts
from hge.core.types import Batch
from hge.estimator.advice import HgeWarning
from hge.gating.switch_detection import RecentEntry
from hge.learning.training import train_all

Log = Callable[[str], None]
BATCH, FEATURES, CLASSES, CLUSTERS = 32, 16, 4, 16
AS_RECIPE = {
    "scale": "none",
    "optimiser": "sgd",
    "lr": 0.05,
    "memory_rows": 0,
    "label_evidence": False,
    "error_rate": 0.0,
    "recent_capacity": 20,
    "routing": "sample",
}
"""What recipe default of `hge run` has instead of the estimator's defaults."""
SETTINGS: dict[str, dict[str, Any]] = {
    "estimator": {},
    "estimator, tree": {"organisation": "tree"},
    "recipe default": AS_RECIPE,
    "recipe default, tree": AS_RECIPE | {"organisation": "tree"},
}
BATCHES, REVISITED = 6, 8
"""Batches of each task, and the number of old tasks of which more batches come where time is measured."""


def torture_growth(log: Log, sizes: tuple[int, ...] = (20, 100, 300)) -> dict[str, Any]:
    """Measure models of each size: the estimator's defaults and those of `hge run`, flat and as a tree."""
    found: dict[str, Any] = {"sizes": list(sizes), "batch_size": BATCH, "features": FEATURES, "classes": CLASSES}
    found["curves"] = {name: _grow(name, parameters, sizes, log) for name, parameters in SETTINGS.items()}
    found["wrong"] = [
        f"{name}: {curve[0]['mean_ms']} ms at {sizes[0]} experts, {curve[-1]['mean_ms']} ms at {sizes[-1]}"
        for name, curve in found["curves"].items()
        if curve[-1]["mean_ms"] > 2 * curve[0]["mean_ms"]
    ]
    found["criterion"] = "at the largest size a batch takes at most twice the time that it takes at the smallest"
    return found


def _grow(name: str, parameters: dict[str, Any], sizes: tuple[int, ...], log: Log) -> list[dict[str, Any]]:
    """Add promoted experts, each trained on a few batches of its own task, and measure at each size."""
    model, curve = GatedExperts(**parameters).partial_fit(*_rows(0, 0, BATCHES)), []
    learner = model.learner_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HgeWarning)  # of many experts: they are the subject
        for size in sizes:
            while len(learner.experts) < size:
                expert = learner.new_expert()
                learner.tree.add(expert.id)
                x, y = (torch.from_numpy(part) for part in _rows(expert.id, 0, BATCHES))
                batches = zip(x.split(BATCH), y.split(BATCH), strict=True)
                train_all(learner, expert, [RecentEntry(learner.steps, Batch(*batch)) for batch in batches])
            curve.append(_measure(model, size))
            log(f"growth: {name}: {curve[-1]}")
    return curve


def _measure(model: GatedExperts, tasks: int) -> dict[str, Any]:
    """Learn batches of old tasks and of one that no expert accepts; time each batch, and a prediction."""
    seconds: dict[str, list[float]] = {"accepted": [], "refused": []}
    for number in (*np.linspace(0, tasks - 1, REVISITED, dtype=int).tolist(), tasks):
        x, y = _rows(number, tasks, BATCHES if number < tasks else 1)
        y = y if number < tasks else y + CLASSES  # labels that no expert has seen: it is refused by all
        for start in range(0, len(x), BATCH):
            refused, begun = model.learner_.evaluations["gate"], time.process_time()
            model.partial_fit(x[start : start + BATCH], y[start : start + BATCH])
            kind = "accepted" if model.learner_.evaluations["gate"] == refused else "refused"
            seconds[kind].append(1e3 * (time.process_time() - begun))
    begun = time.process_time()
    model.predict(x[:BATCH])
    predicting = time.process_time() - begun
    every = seconds["accepted"] + seconds["refused"]
    return {
        "experts": len(model.learner_.experts),
        "merged": len(model.learner_.experts) - model.n_experts_,
        "mean_ms": round(float(np.mean(every)), 3),
        "accepted_ms": round(float(np.median(seconds["accepted"])), 3),
        "refused_ms": round(float(np.median(seconds["refused"])), 3),
        "predict_ms": round(1e3 * predicting, 3),
        "pool_mb": round(sum(model.learner_.pool.memory()[k] for k in ("device_bytes", "host_bytes")) / 1e6, 1),
        "process_peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _rows(task: int, part: int, batches: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return rows of a task: clusters in about the same places as all tasks have, with labels of its own."""
    centres, own = np.random.default_rng(0).normal(0, 1, (CLUSTERS, FEATURES)), np.random.default_rng((task, 0))
    shift, label = own.normal(0, 0.3, FEATURES), own.integers(0, CLASSES, CLUSTERS)
    rng = np.random.default_rng((task, 1, part + 1))
    cluster = rng.integers(0, CLUSTERS, BATCH * batches)
    x = centres[cluster] + shift + rng.normal(0, 0.1, (len(cluster), FEATURES))
    return x.astype(np.float32), label[cluster]
