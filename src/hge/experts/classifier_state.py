"""A fitted scikit-learn classifier as tensors, where its fitted attributes are arrays and numbers; never by pickle.

A template, fitted on one row, has every fitted attribute in its final shape. A classifier becomes tensors by the arrays
and numbers in which it may differ from the template, and tensors become a classifier by a copy of the template whose
arrays are overwritten in place, so that two names of one array stay two names of one array. Any other attribute (the
loss function of `SGDClassifier`) must be the same in both. If it is not, the state is not arrays: it can be kept in
memory for a rollback, but not be saved.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

HELD = "held"
"""Name of the tensor that carries, as an attribute, a copy of a classifier whose state is not arrays."""
KINDS = "biuf"
"""numpy dtype kinds of the arrays that can be tensors."""


def as_tensors(classifier: Any, template: Any) -> dict[str, Tensor] | None:
    """Return copies of the arrays and numbers by name; None if the classifier differs from the template elsewhere.

    Floats are stored as their bits: some classifiers hold −∞ for classes without rows, which is no damage.

    >>> from sklearn.naive_bayes import GaussianNB
    >>> template, own = (GaussianNB().partial_fit([[x]], [0], classes=[0, 1]) for x in (0.0, 3.0))
    >>> tensors = as_tensors(own, template)
    >>> sorted(tensors)[-2:], from_tensors(tensors, template).theta_.tolist()
    (['theta_', 'var_'], [[3.0], [0.0]])
    """
    own, expected = _fitted(classifier), _fitted(template)
    if own.keys() != expected.keys():
        return None
    tensors = {}
    for name, value in own.items():
        array, like = _array(value), _array(expected[name])
        if array is None or like is None:
            if not _same(value, expected[name]):
                return None
        elif (array.shape, array.dtype) != (like.shape, like.dtype):
            return None
        else:
            tensors[name] = torch.from_numpy(_bits(array).copy())
    return tensors


def from_tensors(tensors: Mapping[str, Tensor], template: Any) -> Any:
    """Return the classifier from which `as_tensors` made the tensors."""
    classifier = deepcopy(template)
    for name, tensor in tensors.items():
        old = vars(classifier)[name]
        like = np.asarray(old)
        array = tensor.cpu().numpy().view(like.dtype)
        if isinstance(old, np.ndarray):
            np.copyto(old, array)
        else:
            setattr(classifier, name, array.item())
    return classifier


def hold(classifier: Any) -> Tensor:
    """Return a tensor that carries a copy of the classifier as long as it lives, and when it is itself copied."""
    tensor = torch.zeros((), dtype=torch.int64)
    tensor.classifier = deepcopy(classifier)  # type: ignore[attr-defined]
    return tensor


def held_by(tensor: Tensor) -> Any:
    """Return a copy of the classifier that the tensor carries."""
    if not hasattr(tensor, "classifier"):
        raise ValueError(f"expert's state: got {HELD} without a classifier, expected one kept in memory")
    return deepcopy(tensor.classifier)


def _fitted(classifier: Any) -> dict[str, Any]:
    """Return all attributes but the parameters."""
    parameters = classifier.get_params(deep=False)
    return {name: value for name, value in vars(classifier).items() if name not in parameters}


def _array(value: Any) -> npt.NDArray[Any] | None:
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in KINDS and array.dtype.itemsize <= 8 else None


def _bits(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array = np.ascontiguousarray(array).reshape(array.shape)
    return array.view(f"i{array.dtype.itemsize}") if array.dtype.kind == "f" else array


def _same(value: Any, other: Any) -> bool:
    """Return whether two objects have the same content; nothing of the comparison is kept."""
    try:
        return pickle.dumps(value) == pickle.dumps(other)
    except (pickle.PicklingError, TypeError, AttributeError):
        return False
