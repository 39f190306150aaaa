"""Saving and loading of `GatedExperts`: parameters, labels, feature names and the learner's state.

What is saved are the parameters that the model was fitted with. Those changed since are kept beside them, for the next
`fit`.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hge.core.types import Batch
from hge.estimator.feature_rows import FeatureMap
from hge.learning.checkpoint import SAVED_MODEL, CheckpointError, Checkpoints, read_checkpoint
from hge.learning.manifest_check import Kind, check_kinds
from hge.learning.state import Snapshot, take_snapshot

LONGEST_LABEL, MOST_CLASSES = 10_000, 10**6
OBJECTS = {"features", "net", "autoencoder", "expert"}
"""Parameters that may be Python objects, which are not saved: they must be passed to `load`."""
CALLBACKS = {"on_event"}
"""Parameters that are not saved, and need not be passed to `load`."""
LABEL: Kind = (int, float, str, bool)
FACTS: Kind = {
    "parameters": {"*": (int, float, str, bool, None)},
    "factories": [str],
    "changed": {"*": (int, float, str, bool, None)},
    "classes": [(str, [LABEL])],
    "outputs": [[LABEL]],
    "closed": bool,
    "capacity": int,
    "input_shape": [int],
    "features": int,
    "features_digest": (str, None),
    "feature_names": [str],
    "seed": object,
    "record": {
        **dict.fromkeys(("rows", "switched", "skipped", "stride"), int),
        **{name: [{"event": str, "*": (int, float, str, bool)}] for name in ("kept", "switches", "new")},
    },
    "advice": {"*": (int, [(str, float)], None)},
}
"""What is saved of an estimator beside its learner."""
LABEL_KINDS = "biufU"
"""numpy dtype kinds of labels that JSON can represent: booleans, numbers, strings."""


def folder_named(path: str | os.PathLike[str]) -> Path:
    """Return the folder of this name.

    >>> folder_named(None)
    Traceback (most recent call last):
    ...
    TypeError: path: got None, expected the name of a folder
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path: got {path!r}, expected the name of a folder")
    if "\0" in os.fspath(path):
        raise ValueError(f"path: got {os.fspath(path)!r}, expected a name without NUL characters")
    return Path(path)


def save_model(model: Any, folder: Path) -> None:
    """Write an estimator that has been fitted on some rows."""
    write_state(folder, *state_to_save(model))


def write_state(folder: Path, snapshot: Snapshot, facts: dict[str, Any]) -> None:
    """Write what `state_to_save` returned."""
    Checkpoints(folder, SAVED_MODEL).write(snapshot, facts)


def state_to_save(model: Any) -> tuple[Snapshot, dict[str, Any]]:
    """Copy the state of an estimator that has been fitted on some rows: of its learner, and its own as JSON values."""
    labels = np.asarray(model.classes_)
    if all(isinstance(label, str) for label in labels.tolist()):
        labels = labels.astype(str)  # pandas stores strings as objects
    if labels.dtype.kind not in LABEL_KINDS:
        raise ValueError(f"labels: got {labels.dtype}, expected numbers or text to save them")
    fitted = {name: value for name, value in model._fitted_with.items() if name not in CALLBACKS}
    seed, (record, history) = model._learner.keys.seed, model._events.state()
    facts = {
        "parameters": {n: _json_value(n, value, seed) for n, value in fitted.items() if not _is_object(n, value)},
        "factories": [name for name, value in fitted.items() if _is_object(name, value)],
        "changed": {
            name: _json_value(name, value, seed)
            for name, value in model.get_params(deep=False).items()
            if name in fitted and value is not fitted[name]
        },
        "classes": [labels.dtype.str, labels.tolist()],
        "outputs": list(model._outputs.items()),
        "closed": model._closed,
        "capacity": model._capacity,
        "input_shape": list(model.input_shape_),
        "features": model.n_features_in_,
        "features_digest": model._feature_map.digest,
        "feature_names": list(getattr(model, "feature_names_in_", ())),
        "seed": seed,
        "record": record,
        "advice": asdict(model._advice),
    }
    snapshot = take_snapshot(model._learner)
    rows = model._waiting.rows
    own = {"waiting.x": rows.x.contiguous(), "waiting.y": rows.y.contiguous(), "history": history}
    return Snapshot(snapshot.facts, snapshot.tensors | own, snapshot.experts), facts


def _json_value(name: str, value: Any, seed: int) -> bool | int | float | str | None:
    """Return a parameter as a JSON value."""
    if isinstance(value, np.generic):
        value = value.item()
    elif isinstance(value, np.random.RandomState):
        value = seed  # drawn from it
    if not isinstance(value, bool | int | float | str | None):
        raise ValueError(f"{name}: got {value!r}, expected a number, a text or None to save it")
    return value


def _is_object(name: str, value: Any) -> bool:
    """Return whether a parameter is a factory, an extractor or a classifier, to be passed to `load` again."""
    return callable(value) or (name == "expert" and value is not None)


def read_model(folder: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Read a model written by `save_model`, and check its values."""
    snapshot, facts = read_checkpoint(folder)
    if not isinstance(facts, dict) or "parameters" not in facts:
        raise CheckpointError(f"{folder}: got a run's checkpoint, expected a saved model (use `hge run … --resume`)")
    try:
        check_kinds(facts, FACTS, "facts")
        _check_together(snapshot, facts)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{folder}: {error}") from error
    return snapshot, facts


def _check_together(snapshot: Snapshot, facts: dict[str, Any]) -> None:
    """Check what the values say about each other and about the tensors, before anything is built by them."""
    shape, (kind, labels) = tuple(facts["input_shape"]), facts["classes"]
    rows = waiting_rows(snapshot)
    if not set(facts["factories"]) <= OBJECTS:
        raise ValueError(f"facts.factories: got {facts['factories']}, expected some of {', '.join(sorted(OBJECTS))}")
    expected = tuple(rows.x.shape[1:2]) if _has_extractor(facts) else shape
    if rows.x.shape[1:] != expected or rows.y.shape != rows.x.shape[:1] or rows.x.dtype != torch.float32:
        raise ValueError(f"facts.input_shape: got {shape}, expected {tuple(rows.x.shape[1:])} as in the waiting rows")
    if np.dtype(kind).kind not in LABEL_KINDS or np.dtype(kind).itemsize > 4 * LONGEST_LABEL:
        raise ValueError(f"facts.classes: got labels of type {kind[:20]}, expected numbers or texts")
    known, outputs = set(labels), [output for _, output in facts["outputs"]]
    if len(known) != len(labels) or labels != sorted(labels) or not {label for label, _ in facts["outputs"]} <= known:
        raise ValueError("facts.outputs: got labels that are not in classes, expected distinct ones in order")
    if outputs != list(range(len(outputs))) or not 0 < len(labels) <= facts["capacity"] <= MOST_CLASSES:
        raise ValueError(f"facts.outputs: got other outputs than 0 to {len(labels) - 1}, or too many for the capacity")
    if facts["features"] != shape[0] or len(facts["feature_names"]) not in (0, shape[0]):
        raise ValueError(f"facts.features: got {facts['features']} and their names, expected {shape[0]}")


def saved_feature_map(model: Any, facts: dict[str, Any]) -> FeatureMap:
    """Return the feature map of a model that is loaded; raise an error if it is not the one it was trained with."""
    try:
        feature_map = FeatureMap(model.features, model.device)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if (feature_map.extractor is not None) != _has_extractor(facts):
        had = "an" if _has_extractor(facts) else "no"
        raise CheckpointError(
            f"features: got {_named(model.features)} for a model that was trained with {had} extractor"
        )
    if facts["features_digest"] not in (None, feature_map.digest):  # None: a function, whose state is not known
        raise CheckpointError("features: got other weights than the model was trained with, expected the same")
    return feature_map


def _named(features: object) -> str:
    return repr(features) if features is None or isinstance(features, str) else type(features).__name__


def _has_extractor(facts: dict[str, Any]) -> bool:
    return "features" in facts["factories"] or facts["parameters"].get("features") is not None


def waiting_rows(snapshot: Snapshot) -> Batch:
    """Return the rows that did not fill a batch."""
    return Batch(torch.clone(snapshot.tensors["waiting.x"]), torch.clone(snapshot.tensors["waiting.y"]))
