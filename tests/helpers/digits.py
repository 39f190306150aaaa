"""Rows of handwritten digits, good and bad."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

BAD_ROWS: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], str]] = {
    "NaN": (lambda X, y: (np.where(X > 0.9, np.nan, X), y), "Input X contains NaN"),
    "infinity": (lambda X, y: (np.where(X > 0.9, np.inf, X), y), "Input X contains infinity"),
    "feature count": (lambda X, y: (X[:, :60], y), "X has 60 features, but GatedExperts is expecting 64"),
    "shape": (lambda X, y: (X.reshape(-1, 64, 1), y), r"X: got rows of shape \(64, 1\), expected \(64,\)"),
    "one dimension": (lambda X, y: (X[:, 0], y), "Expected 2D array, got 1D array"),
    "dtype": (lambda X, y: (np.full(X.shape, "a"), y), "could not convert string to float|dtype='numeric'"),
    "complex": (lambda X, y: (X + 1j, y), "Complex data not supported"),
    "length of y": (lambda X, y: (X, y[:-1]), r"y: got \d+ labels for \d+ rows of X, expected one label per row"),
    "empty": (lambda X, y: (X[:0], y[:0]), r"Found array with 0 sample\(s\)"),
    "no labels": (lambda X, y: (X, None), "y cannot be None|requires y to be passed"),
    "real-valued labels": (lambda X, y: (X, y + 0.5), "Unknown label type"),
    "NaN label": (lambda X, y: (X, np.where(y == 1, np.nan, y)), "Input y contains NaN"),
    "label outside classes": (lambda X, y: (X, y + 10), r"y: got labels \[10, 11, .*expected only those in classes"),
    "huge value": (lambda X, y: (X * 1e30, y), r"X: got a value of magnitude 1e\+30, expected at most 1e\+15"),
    "sparse tensor": (lambda X, y: (torch.from_numpy(X).to_sparse(), y), "X: got a sparse tensor"),
    "no rows of labels": (lambda X, y: (X, np.array(3)), "y should be a 1d array"),
    "dates": (lambda X, y: (X, y.astype("datetime64[D]")), "y: got labels of type datetime64"),
    "text labels": (lambda X, y: (X, y.astype(str)), "y: got labels of type <U.*expected int64"),
}


def all_digits() -> tuple[Any, Any]:
    """Return all rows, as they are in the file, and their labels."""
    X, y = _read()
    return X.copy(), y.copy()


def digits(low: bool | None = None) -> tuple[Any, Any]:
    """Return rows of all digits, or of those below 5, or of the others."""
    X, y = all_digits()
    keep = np.ones(len(y), bool) if low is None else (y < 5) == low
    return (X[keep] / 16).astype(np.float32), y[keep]


@cache
def _read() -> Any:
    """Read the file, once: it takes as long as many a test."""
    return load_digits(return_X_y=True)
