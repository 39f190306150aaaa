"""Reading what users give: every check is made here, before the learner sees anything."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_X_y

from hge.nets import Shape
from hge.pool import EagerPool

FloatRows = npt.NDArray[np.float32]
Labels = npt.NDArray[Any]


def as_numpy(value: Any) -> Any:
    """Return a torch tensor as a numpy array, anything else as it is."""
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def read_rows(X: Any, y: Any) -> tuple[FloatRows, Labels]:
    """Return X as float32 and y as one label per row; raise an error that names what is wrong."""
    x = check_array(X, dtype=np.float32, allow_nd=True, input_name="X")
    if hasattr(y, "__len__") and len(y) != len(x):
        raise ValueError(f"y: got {len(y)} labels for {len(x)} rows of X, expected one label per row")
    _, labels = check_X_y(x, y, dtype=None, allow_nd=True, ensure_all_finite=False)  # looks at y only
    check_classification_targets(labels)
    return x, labels


def read_classes(classes: Any) -> Labels:
    """Return the distinct classes, sorted."""
    found: Labels = np.unique(np.asarray(as_numpy(classes)))
    if not len(found):
        raise ValueError("classes: got none, expected all labels that will come")
    return found


def check_labels(labels: Labels, known: Labels | None, *, closed: bool, used: int, capacity: int) -> None:
    """Reject labels that are of another kind than the known ones, outside a closed list, or too many."""
    if known is not None and _is_text(labels) != _is_text(known):
        raise ValueError(f"y: got labels of type {labels.dtype}, expected {known.dtype} as in the classes known so far")
    if known is not None and closed:
        unknown = np.setdiff1d(labels, known)
        if len(unknown):
            raise ValueError(f"y: got labels {_shown(unknown)}, expected only those in classes, {_shown(known)}")
    if used > capacity:
        raise ValueError(f"y: got class number {used}, expected at most {capacity}; set class_capacity higher")


def check_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1, or raise an error that names it."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: got {value!r}, expected a whole number, at least 1")
    return int(value)


def check_shape(x: FloatRows, shape: Shape) -> None:
    """Reject rows of another shape than those learned."""
    if x.shape[1:] != shape:
        raise ValueError(f"X: got rows of shape {x.shape[1:]}, expected {shape}")


def check_networks(pool: EagerPool, row: FloatRows) -> None:
    """Try the first expert on one row, so that a network that does not fit is found before anything is learned."""
    x, outputs = torch.from_numpy(row).to(pool.device), pool.spec.outputs
    logits = pool.logits(0, x)
    if logits.shape != (1, outputs):
        raise ValueError(f"net: got logits of shape {tuple(logits.shape)} for one row, expected {(1, outputs)}")
    scores = pool.scores([0], x, batch_statistics=False)
    if scores.shape != (1, 1):
        raise ValueError(f"autoencoder: got scores of shape {scores.shape} for one row, expected (1, 1)")


def pick(name: str, value: Any, known: dict[str, Any]) -> Any:
    """Return the factory of that name, or the user's own."""
    if callable(value):
        return value
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, expected a factory or one of {', '.join(known)}")
    return known[value]


def read_seed(random_state: Any) -> int:
    """Return an integer seed; None draws one."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _is_text(labels: Labels) -> bool:
    return labels.dtype.kind in "OUS"


def _shown(labels: Labels) -> str:
    shown = ", ".join(map(repr, labels[:5].tolist()))
    return f"[{shown}, ...]" if len(labels) > 5 else f"[{shown}]"
