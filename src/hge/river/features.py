"""Rows of named features, which may appear and vanish, as rows of a fixed width."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

FloatRows = np.ndarray[Any, np.dtype[np.float64]]


class FeatureSlots:
    """Gives every feature a column when it first appears; one that is missing has the mean of its values so far.

    >>> slots = FeatureSlots(3)
    >>> slots.learn([{"b": 4.0, "a": 1.0}]), slots.learn([{"a": 3.0, "c": 9.0}])
    (array([[1., 4., 0.]]), array([[3., 4., 9.]]))
    >>> slots.rows([{"a": 5.0, "unknown": 7.0}])
    array([[5., 4., 9.]])
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.columns: dict[Hashable, int] = {}
        self._sums, self._counts = np.zeros(width), np.zeros(width)

    def learn(self, rows: Sequence[Mapping[Hashable, Any]]) -> FloatRows:
        """Return rows, one after the other, with columns for features that are new."""
        return np.concatenate([self._learn(row) for row in rows])

    def _learn(self, row: Mapping[Hashable, Any]) -> FloatRows:
        new = sorted((name for name in row if name not in self.columns), key=lambda name: (str(name), repr(name)))
        if len(self.columns) + len(new) > self.width:
            raise ValueError(
                f"features: got more than {self.width} different ones, expected at most that many; set features higher"
            )
        found = {name: _number(name, value) for name, value in row.items()}
        for name in new:
            self.columns[name] = len(self.columns)
        for name, value in found.items():
            self._sums[self.columns[name]] += value
            self._counts[self.columns[name]] += 1
        return self.rows([found])

    def rows(self, rows: Sequence[Mapping[Hashable, Any]]) -> FloatRows:
        """Return rows; features that were never learned are left out."""
        means = self._sums / np.maximum(self._counts, 1)
        result = np.tile(means, (len(rows), 1))
        for number, row in enumerate(rows):
            for name in row.keys() & self.columns.keys():
                result[number, self.columns[name]] = _number(name, row[name])
        return result


def _number(name: Hashable, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(
            f"{name}: got {value!r}, expected a number; put river's OneHotEncoder in front for categories"
        ) from None
