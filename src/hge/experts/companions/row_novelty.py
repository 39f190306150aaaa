"""How unlike all remembered rows a row is: its distance to the nearest of them, compared with what is usual."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hge.experts.companions.nearest import (
    FloatArray,
    FloatRows,
    LabelledRows,
    Labels,
    NearestRows,
    common_scale,
    measured,
)

NEIGHBOURS, AROUND = 3, 10
"""Nearest rows whose mean distance counts, and those around which it is asked how far rows usually are."""
SAME = 1e-5
"""Squared distance, relative to the squared lengths, below which two rows are the same one."""
ALL_ROWS, COMPARED = 4096, 2048
"""Rows with which a row is compared, and rows that are themselves compared to see what novelty is usual."""
ROWS_AT_ONCE = 512
TINY = 1e-12


class RowNovelty:
    """The remembered rows of all experts, and how far they are from each other.

    Novelty is the distance to the nearest rows, divided by the square root of the usual distance around them: half way
    between a limit that is the same everywhere and one that is wholly local. What is usual is the distance of
    remembered rows to *others*. As nothing is fitted to the rows, new rows of known classes are alike. A row that came
    several times is not its own neighbour, either.

    >>> memory = NearestRows(100)
    >>> memory.add(np.arange(8, dtype=np.float32)[:, None], np.zeros(8, np.int64))
    >>> novelty = RowNovelty({0: memory})
    >>> near, far = novelty(np.array([[3.5], [20.0]], np.float32))
    >>> bool(near < novelty.usual.max() < far)
    True
    """

    def __init__(self, memories: Mapping[int, NearestRows]) -> None:
        classes = [memory.x[memory.y == label] for memory in memories.values() for label in np.unique(memory.y)]
        each = max(1, ALL_ROWS // len(classes))
        classes = [own[:: -(-len(own) // each)] for own in classes]
        # A class of one row that is always the same would say that any distance is usual.
        varied = np.repeat([bool((own != own[0]).any()) for own in classes], [len(own) for own in classes])
        x = np.concatenate(classes)
        scale = common_scale([*memories.values()])
        self._scale = LabelledRows(x, np.zeros(len(x), np.int64)).usual_scale() if scale is None else scale
        self._known = measured(x, self._scale)
        self._apart, places, there = self._nearest(self._known, self_excluded=True)
        """[rows] Distance of each remembered row to the nearest others."""
        finite = self._apart[np.isfinite(self._apart)]
        self._least = 1e-3 * float(finite.mean()) + TINY if len(finite) else 1.0
        compared = np.flatnonzero(varied & np.isfinite(self._apart))
        compared = compared[:: max(1, -(-len(compared) // COMPARED))]
        self.compared: FloatRows = x[compared]
        """[rows, inputs] The rows of `usual`."""
        values = self._relative(self._apart[compared], places[compared], there[compared])
        self._middle, self._spread = (float(values.mean()), float(values.std())) if len(values) else (0.0, 1.0)
        self.usual: FloatArray = self._standardised(values)
        """[rows] Novelty of remembered rows, each compared with the others."""

    def __call__(self, x: FloatRows) -> FloatArray:
        """Return [rows]: novelty, in standard deviations of that of remembered rows."""
        return self._standardised(self._relative(*self._nearest(measured(x, self._scale), self_excluded=False)))

    def _standardised(self, values: FloatArray) -> FloatArray:
        return (values - self._middle) / max(self._spread, 1e-3 * self._middle, TINY)

    def _relative(self, distance: FloatArray, places: Labels, there: npt.NDArray[np.bool_]) -> FloatArray:
        """Return distances [rows] relative to those around the nearest rows."""
        apart = self._apart[places]
        there = there & np.isfinite(apart)
        around = np.where(there, apart, 0.0).sum(axis=1) / np.maximum(there.sum(axis=1), 1)
        relative: FloatArray = distance / np.sqrt(np.maximum(around, self._least))
        return relative

    def _nearest(self, rows: FloatRows, *, self_excluded: bool) -> tuple[FloatArray, Labels, npt.NDArray[np.bool_]]:
        """Return [rows] the mean distance to the nearest remembered rows, and [rows, some] where these are, if any."""
        parts = [
            self._nearest_of(rows[start : start + ROWS_AT_ONCE], self_excluded)
            for start in range(0, max(1, len(rows)), ROWS_AT_ONCE)
        ]
        distance, places, there = (np.concatenate(found) for found in zip(*parts, strict=True))
        return distance, places, there

    def _nearest_of(self, rows: FloatRows, self_excluded: bool) -> tuple[FloatArray, Labels, npt.NDArray[np.bool_]]:
        known = self._known
        lengths = rows[:, -1:] + known[:, -1]
        squares = lengths - 2 * rows[:, :-1] @ known[:, :-1].T
        squares[squares <= SAME * lengths] = np.inf if self_excluded else 0.0
        count = min(AROUND, len(known))
        places = np.argpartition(squares, count - 1, axis=1)[:, :count]
        nearest = np.sqrt(np.take_along_axis(squares, places, axis=1), dtype=np.float64)
        there = np.isfinite(nearest)
        few = np.sort(nearest, axis=1)[:, :NEIGHBOURS]
        counted = np.isfinite(few)
        total = np.where(counted, few, 0.0).sum(axis=1)
        return np.where(counted.any(axis=1), total / np.maximum(counted.sum(axis=1), 1), np.inf), places, there
