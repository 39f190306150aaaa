"""Validation of user input, before it reaches the learner."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_X_y, validate_data

from hge.core.types import LARGEST_INPUT, check_dense
from hge.experts.networks import Shape
from hge.experts.pool import ExpertPool
from hge.experts.sklearn_pool import ClassifierPool

FloatRows = npt.NDArray[np.float32]
Labels = npt.NDArray[Any]
EXACT_FLOATS = 2**53
"""Magnitude up to which all integers are floats of 64 bits."""


def as_numpy(name: str, value: Any) -> Any:
    """Convert a torch tensor to a numpy array; return anything else unchanged."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ValueError(f"{name}: got masked values, expected an array without any")
    if not isinstance(value, torch.Tensor):
        return value
    check_dense(name, value)
    value = value.detach().cpu().resolve_conj().resolve_neg()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()


def check_rows(estimator: Any, X: Any, *, reset: bool) -> FloatRows:
    """Return X as a float32 copy, independent of the caller's array; raise an error if it is invalid."""
    if not reset and _is_plain(X, estimator.n_features_in_) and not hasattr(estimator, "feature_names_in_"):
        plain: FloatRows = X.astype(np.float32, order="C")  # scikit-learn's checks take longer than a training step
        return plain
    with _naming("X"), np.errstate(over="ignore", invalid="ignore"):  # too large numbers are refused below
        X = as_numpy("X", X)
        x = (
            check_array(X, dtype=np.float32, allow_nd=True, input_name="X", estimator=estimator)
            if reset
            else validate_data(estimator, X, reset=False, dtype=np.float32, allow_nd=True)
        )
        if reset:
            validate_data(BaseEstimator(), X, skip_check_array=True)  # checks the column names
        if not x.size:
            raise ValueError(f"X: got rows of shape {x.shape[1:]}, expected at least one input")
        largest = float(np.abs(x).max())
        if largest > LARGEST_INPUT:
            raise ValueError(
                f"X: got a value of magnitude {largest:.3g}, expected at most {LARGEST_INPUT:g}; scale the inputs"
            )
        return np.array(x, order="C")


def check_targets(y: Any, x: FloatRows) -> Labels:
    """Return y as one label per row; raise an error that names what is wrong."""
    if _is_plain_target(y, len(x)):
        plain: Labels = y
        return plain
    with _naming("y"), np.errstate(invalid="ignore"):
        y = _of_one_kind(as_numpy("y", y))
        if _is_plain_target(y, len(x)):
            converted: Labels = y
            return converted
        if hasattr(y, "__len__") and getattr(y, "ndim", 1) > 0 and len(y) != len(x):
            raise ValueError(f"y: got {len(y)} labels for {len(x)} rows of X, expected one label per row")
        _refuse_texts_among_others(y)
        _, labels = check_X_y(x, y, dtype=None, allow_nd=True, ensure_all_finite=False)  # checks y only
        if labels.dtype.kind not in "biufOUS":
            raise ValueError(f"y: got labels of type {labels.dtype}, expected numbers or texts")
        # Twice, so that at most half are distinct: scikit-learn warns if more are, and small calls often have more.
        check_classification_targets(np.concatenate([labels, labels]))
    found: Labels = labels
    return found


def pairs_of(stream: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the pairs (X, y) of a stream; raise an error for anything else in it.

    Only tuples and lists count as pairs: an array of two rows could be unpacked, too, but has no labels.

    >>> next(pairs_of([np.zeros((2, 3))]))
    Traceback (most recent call last):
    ValueError: stream: got ndarray as item 0, expected a tuple or list of two, (X, y)
    """
    try:
        items = iter(stream)
    except TypeError:
        raise ValueError(f"stream: got {type(stream).__name__}, expected an iterable of pairs (X, y)") from None
    for number, item in enumerate(items):
        listed = isinstance(item, tuple | list)
        if not listed or len(item) != 2:
            found = type(item).__name__ + (f" of {len(item)}" if listed else "")
            raise ValueError(f"stream: got {found} as item {number}, expected a tuple or list of two, (X, y)")
        yield item[0], item[1]


def check_mark(mark: Any, classes: Labels) -> Labels:
    """Return what stands for "no known class" among labels, -1 or "unknown" by default; it must be of their kind.

    >>> check_mark(None, np.array(["cat", "dog"])).item(), check_mark(None, np.array([0, 1])).item()
    ('unknown', -1)
    """
    texts = bool(len(classes)) and isinstance(classes[0], str)
    chosen = ("unknown" if texts else -1) if mark is None else mark
    found: Labels = np.array(chosen, dtype=object if classes.dtype == object else None)
    if found.ndim or isinstance(chosen, str) != texts or found.dtype.kind not in "biufUO":
        raise ValueError(f"unknown: got {chosen!r}, expected a {'text' if texts else 'number'}, as the labels are")
    if chosen in classes.tolist():
        raise ValueError(f"unknown: got {chosen!r}, which is a label; expected another value")
    return found


def _refuse_texts_among_others(y: Any) -> None:
    """Raise an error if only some labels are texts: numpy would make texts of all, so that 0 is learned as '0'."""
    mixed = isinstance(y, list | tuple) or (isinstance(y, np.ndarray) and y.dtype == object)
    if mixed and len({isinstance(label, str) for label in y}) > 1:
        raise ValueError("y: got texts among other labels, expected labels of one kind")


def _of_one_kind(y: Any) -> Any:
    """Return Python's or pandas' integers as int64, and booleans as such: scikit-learn would read some as float64."""
    if type(y) is np.ndarray and y.dtype != object:
        return y
    values = y.tolist() if hasattr(y, "tolist") else y
    if not isinstance(values, list | tuple) or not values:
        return y
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values)
    if kinds != {int}:
        return y
    if not all(-(2**63) <= value < 2**63 for value in values):
        raise ValueError(f"y: got a label of {max(map(abs, values)).bit_length()} bits, expected integers of 64 bits")
    return np.array(values, dtype=np.int64)


def _is_plain(X: Any, features: int) -> bool:
    """Return whether X is a common array of rows that needs no conversion but to float32, and is surely valid."""
    if type(X) is not np.ndarray or X.ndim != 2 or X.shape[1] != features or not len(X) or X.dtype.kind not in "fiu":
        return False
    # False for NaN; as Python's numbers, for the least integer has no absolute value and float16 no such limit
    return float(X.min()) >= -LARGEST_INPUT and float(X.max()) <= LARGEST_INPUT


def _is_plain_target(y: Any, rows: int) -> bool:
    """Return whether y is a common array of one integer label per row."""
    return type(y) is np.ndarray and y.shape == (rows,) and y.dtype.kind in "iu"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Prefix errors with the argument's name, unless they mention it."""
    try:
        yield
    except Exception as error:  # a strange object may raise anything when it is converted
        if isinstance(error, ValueError | TypeError) and re.search(rf"\b{name}\b", str(error)):
            raise
        what = str(error) if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: {error}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {what}") from error


def read_classes(classes: Any, capacity: int) -> Labels:
    """Return the distinct classes, sorted; raise an error if they are not a list of labels."""
    with _naming("classes"):
        classes = as_numpy("classes", classes)
        given: Labels = np.asarray(sorted(classes) if isinstance(classes, (set, frozenset)) else classes)
        if given.ndim != 1:
            raise ValueError(f"classes: got an array of shape {given.shape}, expected a list of labels")
        if len({isinstance(label, str) for label in classes}) > 1:
            raise ValueError("classes: got texts among others, expected labels of one kind")
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            raise ValueError("classes: got NaN or infinity, expected labels")
        found: Labels = np.unique(given)
    if not len(found):
        raise ValueError("classes: got none, expected all labels that will come")
    if len(found) > capacity:
        raise ValueError(f"classes: got {len(found)}, expected at most {capacity}; set class_capacity higher")
    return found


def check_labels(labels: Labels, known: Labels, *, closed: bool, capacity: int) -> Labels:
    """Return all labels known from now on; reject labels of another type, outside a closed list, or too many."""
    if _is_text(labels) != _is_text(known):
        raise ValueError(f"y: got labels of type {labels.dtype}, expected {known.dtype} as in the classes known so far")
    known, labels = _signed(known), _signed(labels)
    exact = labels.dtype == known.dtype or labels.dtype.kind != "f" or np.abs(labels).max() <= EXACT_FLOATS
    if len(known) <= capacity and exact and set(known.tolist()).issuperset(labels.tolist()):
        return known
    merged: Labels = np.union1d(known, labels)
    if set(merged.tolist()) != set(known.tolist()) | set(labels.tolist()):
        raise ValueError(f"y: got labels of type {labels.dtype} that cannot be told apart as {merged.dtype}")
    unknown = np.setdiff1d(labels, known)
    if closed and len(unknown):
        raise ValueError(f"y: got labels {_shown(unknown)}, expected only those in classes, {_shown(known)}")
    if len(merged) > capacity:
        raise ValueError(f"y: got class number {len(merged)}, expected at most {capacity}; set class_capacity higher")
    return merged


def _signed(labels: Labels) -> Labels:
    """Return labels of 64 bits with a sign if that is possible: int64 beside uint64 would become float64."""
    fits = labels.dtype == np.uint64 and labels.max(initial=0) < 2**63
    return labels.astype(np.int64) if fits else labels


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return an integer of at least `least`, or raise an error that names the argument."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}: got {value!r}, expected a whole number, at least {least}")
    return int(value)


def check_share(name: str, value: Any) -> float:
    """Return a number above 0 and below 1, or raise an error that names the argument."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < 1:
        raise ValueError(f"{name}: got {value!r}, expected a number above 0 and below 1")
    return float(value)


def check_callback(value: Any) -> None:
    """Raise an error if `on_event` cannot be called."""
    if value is not None and not callable(value):
        raise ValueError(f"on_event: got {value!r}, expected a function of one event, or None")


def check_choice(name: str, value: Any, known: tuple[str, ...]) -> Any:
    """Return one of the known names, or raise an error that lists them."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
    return value


def check_shape(x: FloatRows, shape: Shape) -> None:
    """Reject rows whose shape differs from that of the rows learned."""
    if x.shape[1:] != shape:
        raise ValueError(f"X: got rows of shape {x.shape[1:]}, expected {shape}")


def check_networks(pool: ExpertPool, outputs: int, row: FloatRows) -> None:
    """Run the first expert on one row, so that networks of the wrong shape are rejected before training."""
    x = torch.from_numpy(row).to(pool.device)
    logits = _try("net", lambda: pool.logits(0, x))
    if logits.shape != (1, outputs):
        raise ValueError(f"net: got logits of shape {tuple(logits.shape)} for one row, expected {(1, outputs)}")
    scores = _try("autoencoder", lambda: pool.scores([0], x))
    if scores.shape != (1, 1):
        raise ValueError(f"autoencoder: got scores of shape {scores.shape} for one row, expected (1, 1)")


def check_classifier(expert: Any, *, joint: bool) -> None:
    """Check that a classifier can be an expert: an instance that learns row by row and gives probabilities."""
    methods = ("partial_fit", "predict_proba", "get_params")
    if isinstance(expert, type):
        raise ValueError(f"expert: got the class {expert.__name__}, expected an unfitted instance of it")
    missing = [name for name in methods if not callable(getattr(expert, name, None))]
    if missing:
        raise ValueError(
            f"expert: got {type(expert).__name__} without {missing[0]}, expected a classifier with {', '.join(methods)}"
        )
    if joint:
        raise ValueError(
            "joint: got True with expert=…, expected joint=False: only networks have the features it needs"
        )


def try_out(pool: ClassifierPool, rows: FloatRows) -> None:
    """Train a clone of the classifier on some rows, so that one that cannot learn them is rejected before training."""
    _try("expert", lambda: pool.try_out(torch.from_numpy(rows)))


def pick_factory(name: str, value: Any, known: dict[str, Any]) -> Any:
    """Return the factory of that name, or the user's own, which must return an `nn.Module`."""
    if isinstance(value, torch.nn.Module) or not (callable(value) or isinstance(value, str)):
        raise ValueError(f"{name}: got {type(value).__name__}, expected a factory or one of {', '.join(known)}")
    if isinstance(value, str):
        return known[check_choice(name, value, tuple(known))]
    return _UserFactory(name, value)


@dataclass(frozen=True)
class _UserFactory:
    """A user's factory; its errors are raised under the argument's name."""

    name: str
    make: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        module = _try(self.name, lambda: self.make(*arguments))
        if not isinstance(module, torch.nn.Module):
            raise ValueError(f"{self.name}: got {type(module).__name__} from the factory, expected an nn.Module")
        # An in-place first layer would modify the batch, which is kept for replay.
        module.register_forward_pre_hook(_on_copies)
        return module


def _on_copies(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(value.clone() for value in inputs)


def check_seed(random_state: Any) -> None:
    """Raise an error unless it is a seed, a RandomState or None."""
    if isinstance(random_state, Integral) and 0 <= int(random_state) < 2**63:
        return
    if random_state is not None and not isinstance(random_state, np.random.RandomState):
        raise ValueError(
            f"random_state: got {random_state!r}, expected a whole number of 0 to 2^63 - 1, a RandomState or None"
        )


def read_seed(random_state: Any) -> int:
    """Return an integer seed; None draws one."""
    check_seed(random_state)
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31))


def _try(name: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise ValueError(f"{name}: {type(error).__name__}: {error}") from error


def _is_text(labels: Labels) -> bool:
    return labels.dtype.kind in "OUS"


def _shown(labels: Labels) -> str:
    shown = ", ".join(map(repr, labels[:5].tolist()))
    return f"[{shown}, ...]" if len(labels) > 5 else f"[{shown}]"
