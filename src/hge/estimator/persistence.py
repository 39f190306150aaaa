"""Saving and loading of `GatedExperts`: parameters, labels, feature names and the learner's state."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hge.core.types import Batch
from hge.learning.checkpoint import CheckpointError, Checkpoints, read_checkpoint
from hge.learning.state import Snapshot, take_snapshot

LABEL_KINDS = "biufU"
"""numpy dtype kinds of labels that JSON can represent: booleans, numbers, strings."""


def save_model(model: Any, folder: Path) -> None:
    """Write an estimator that has been fitted on some rows."""
    labels = np.asarray(model.classes_)
    if all(isinstance(label, str) for label in labels.tolist()):
        labels = labels.astype(str)  # pandas stores strings as objects
    if labels.dtype.kind not in LABEL_KINDS:
        raise ValueError(f"labels: got {labels.dtype}, expected numbers or text to save them")
    facts = {
        "parameters": _parameters(model),
        "factories": [name for name, value in model.get_params(deep=False).items() if _is_object(name, value)],
        "classes": [labels.dtype.str, labels.tolist()],
        "outputs": list(model._outputs.items()),
        "closed": model._closed,
        "capacity": model._capacity,
        "input_shape": list(model.input_shape_),
        "features": model.n_features_in_,
        "feature_names": list(getattr(model, "feature_names_in_", ())),
        "seed": model._learner.keys.seed,
        "skipped": model.batches_skipped_,
        "advice": asdict(model._advice),
    }
    snapshot = take_snapshot(model._learner)
    rows = model._waiting.rows
    waiting = {"waiting.x": rows.x.contiguous(), "waiting.y": rows.y.contiguous()}
    Checkpoints(folder).write(Snapshot(snapshot.facts, snapshot.tensors | waiting, snapshot.experts), facts)


def _parameters(model: Any) -> dict[str, Any]:
    """Return the parameters as JSON values, without factories and classifiers, to be passed to `load` again."""
    parameters = {}
    for name, value in model.get_params(deep=False).items():
        if _is_object(name, value):
            continue
        if isinstance(value, np.generic):
            value = value.item()
        elif isinstance(value, np.random.RandomState):
            value = model._learner.keys.seed  # the seed drawn from it
        if not isinstance(value, bool | int | float | str | None):
            raise ValueError(f"{name}: got {value!r}, expected a number, a text or None to save it")
        parameters[name] = value
    return parameters


def _is_object(name: str, value: Any) -> bool:
    return callable(value) or (name == "expert" and value is not None)


def read_model(folder: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Read a model written by `save_model`."""
    snapshot, facts = read_checkpoint(folder)
    if "parameters" not in facts:
        raise CheckpointError(f"{folder}: got a run's checkpoint, expected a saved model (use `hge run … --resume`)")
    return snapshot, facts


def waiting_rows(snapshot: Snapshot) -> Batch:
    """Return the rows that did not fill a batch."""
    return Batch(torch.clone(snapshot.tensors["waiting.x"]), torch.clone(snapshot.tensors["waiting.y"]))
