"""The rows that an expert saw last, with their labels, and class probabilities from the nearest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hge.experts.scores.space import units_of

FloatRows = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

NEIGHBOURS = 5
CLOSE = 0.1
"""Distance, relative to the mean distance of the neighbours, at which a neighbour's weight stops growing."""
ROWS_FOR_SCALE = 128
"""Rows from which the middle and the units of the inputs are determined, once."""


class NearestRows:
    """A memory of the latest rows of each class; distances are in units of their own if inputs differ in kind.

    Classes share the capacity equally, so that one that no longer comes is not forgotten for the others.

    >>> memory = NearestRows(capacity=100)
    >>> memory.add(np.array([[0.0], [0.1], [5.0]], np.float32), np.array([0, 0, 1]))
    >>> int(memory.probabilities(np.array([[4.9]], np.float32), classes=2).argmax())
    1
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.x: FloatRows = np.empty((0, 0), np.float32)
        self.y: Labels = np.empty(0, np.int64)
        self.scale: FloatRows | None = None
        """[2, inputs] What is subtracted from inputs, and what they are then multiplied by; None until there are enough
        rows to determine it."""
        self._measured: tuple[FloatRows, FloatRows, FloatRows] | None = None

    def __len__(self) -> int:
        return len(self.y)

    def add(self, x: FloatRows, y: Labels) -> None:
        """Remember flat rows; beyond the capacity, forget the oldest rows of the most frequent classes."""
        self.x = np.concatenate([self.x, x]) if len(self) else x.copy()
        self.y = np.concatenate([self.y, y])
        if len(self) > self.capacity:
            kept = _latest_of_each_class(self.y, self.capacity)
            self.x, self.y = self.x[kept], self.y[kept]
        self._measured = None
        if self.scale is None and len(self) >= ROWS_FOR_SCALE:
            self.scale = self._scale()

    def probabilities(self, x: FloatRows, classes: int) -> FloatArray:
        """Return [rows, classes]: the shares of the classes among the nearest rows, the nearer ones counting more."""
        if self._measured is None:
            scale = self._scale() if self.scale is None else self.scale
            rows = (self.x - scale[0]) * scale[1]
            self._measured = scale, rows, np.einsum("ij,ij->i", rows, rows)
        scale, known, squares = self._measured
        rows = (x - scale[0]) * scale[1]
        apart = np.einsum("ij,ij->i", rows, rows)[:, None] + squares - 2 * rows @ known.T
        count = min(NEIGHBOURS, len(self))
        nearest = np.argpartition(apart, count - 1, axis=1)[:, :count]
        distance = np.sqrt(np.maximum(np.take_along_axis(apart, nearest, axis=1), 0.0), dtype=np.float64)
        weight = 1 / (distance / np.maximum(distance.mean(axis=1, keepdims=True), 1e-30) + CLOSE)
        votes = np.zeros((len(x), classes))
        np.add.at(votes, (np.arange(len(x))[:, None], self.y[nearest]), weight)
        shares: FloatArray = votes / votes.sum(axis=1, keepdims=True)
        return shares

    def state(self) -> dict[str, Tensor]:
        """Return the rows, the labels and the scale."""
        found = {"x": torch.from_numpy(self.x.copy()), "y": torch.from_numpy(self.y.copy())}
        return found if self.scale is None else found | {"scale": torch.from_numpy(self.scale.copy())}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.x, self.y = tensors["x"].numpy().copy(), tensors["y"].numpy().copy()
        self.scale = tensors["scale"].numpy().copy() if "scale" in tensors else None
        self._measured = None

    def _scale(self) -> FloatRows:
        rows = torch.from_numpy(self.x).double()  # distances of rows far from 0 would be lost to rounding
        scale: FloatRows = torch.stack([rows.median(0).values, 1 / units_of(rows)]).float().numpy()
        return scale


def common_scale(memories: Sequence[NearestRows]) -> FloatRows | None:
    """Return a scale for the rows of several memories together; None if none of them has one yet."""
    scales = [memory.scale for memory in memories if memory.scale is not None]
    if not scales:
        return None
    middles, factors = np.stack(scales, axis=1).astype(np.float64)
    if (factors == 1).all():
        return np.stack([middles.mean(axis=0), factors[0]]).astype(np.float32)
    spread = np.sqrt((1 / factors**2).mean(axis=0) + middles.var(axis=0))
    return np.stack([middles.mean(axis=0), 1 / spread]).astype(np.float32)


def _latest_of_each_class(y: Labels, capacity: int) -> npt.NDArray[np.bool_]:
    """Return which rows are among the last ones of their class, as many of each class as fit into the capacity.

    >>> _latest_of_each_class(np.array([7, 7, 3, 7, 7]), capacity=3).tolist()  # two of class 7, the one of class 3
    [False, False, True, True, True]
    """
    _, kind, counts = np.unique(y[::-1], return_inverse=True, return_counts=True)
    order = np.argsort(kind, kind="stable")
    age = np.empty(len(y), np.int64)  # 0 for the last row of a class
    age[order] = np.arange(len(y)) - np.repeat(np.cumsum(counts) - counts, counts)
    quota = int(np.sort(age)[capacity - 1])
    full = age < quota
    latest: npt.NDArray[np.bool_] = full | ((age == quota) & (np.cumsum(age == quota) <= capacity - full.sum()))
    return latest[::-1]
