"""How unlike the remembered rows of one expert a row is: its distance to the nearest of them, in the expert's units."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hge.experts.companions.nearest import FloatArray, FloatRows, Labels, measured

Mask = npt.NDArray[np.bool_]

NEIGHBOURS, AROUND = 3, 10
"""Nearest rows whose mean distance counts, and those around which it is asked how far rows usually are."""
SAME = 1e-5
"""Squared distance, relative to the squared lengths, below which two rows are the same one."""
ROWS_AT_ONCE = 512
TINY = 1e-12


class OwnNovelty:
    """The remembered rows of one expert, and how far they are from each other.

    Novelty is the distance to the nearest rows, divided by the square root of the usual distance around them: half way
    between a limit that is the same for all rows of the expert and one that is wholly local. A row that came several
    times is not its own neighbour.

    >>> rows = np.arange(8, dtype=np.float32)[:, None]
    >>> own = OwnNovelty(rows, scale=np.array([[3.5], [1.0]], np.float32), varied=np.ones(8, bool))
    >>> near, far = own(np.array([[3.5], [20.0]], np.float32))
    >>> bool(near < own.usual.max() < far)
    True
    """

    def __init__(self, x: FloatRows, scale: FloatRows, varied: Mask) -> None:
        self._scale, self._known = scale, measured(x, scale)
        self._apart, places, there = self._nearest(self._known, self_excluded=True)
        """[rows] Distance of each row to the nearest others; infinite if none differ."""
        differ = np.isfinite(self._apart)
        self.varies = bool(differ.any())
        """Whether any two rows differ."""
        self.around = float(self._apart[differ].mean()) if self.varies else 1.0
        """How far rows usually are from others; to be set from outside if no two differ."""
        # A class of one row that is always the same would say that any distance is usual.
        self.usual: FloatArray = np.where(varied & differ, self._relative(self._apart, places, there), np.nan)
        """[rows] Novelty of each row, compared with the others; NaN where that says nothing."""

    def __call__(self, x: FloatRows) -> FloatArray:
        """Return [rows]: novelty, in no particular unit."""
        return self._relative(*self._nearest(measured(x, self._scale), self_excluded=False))

    def _relative(self, distance: FloatArray, places: Labels, there: Mask) -> FloatArray:
        """Return distances [rows] relative to those around the nearest rows."""
        apart = self._apart[places]
        there = there & np.isfinite(apart)
        total = np.where(there, apart, 0.0).sum(axis=1)
        around = np.where(there.any(axis=1), total / np.maximum(there.sum(axis=1), 1), self.around)
        relative: FloatArray = distance / np.sqrt(np.maximum(around, 1e-3 * self.around + TINY))
        return relative

    def _nearest(self, rows: FloatRows, *, self_excluded: bool) -> tuple[FloatArray, Labels, Mask]:
        """Return [rows] the mean distance to the nearest remembered rows, and [rows, some] where these are, if any."""
        parts = [self._nearest_of(rows[part], self_excluded) for part in pieces(len(rows))]
        distance, places, there = (np.concatenate(found) for found in zip(*parts, strict=True))
        return distance, places, there

    def _nearest_of(self, rows: FloatRows, self_excluded: bool) -> tuple[FloatArray, Labels, Mask]:
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


def pieces(rows: int) -> Iterator[slice]:
    """Yield slices of so many rows that distances to all others fit into memory; one even if there are no rows."""
    return (slice(start, start + ROWS_AT_ONCE) for start in range(0, max(1, rows), ROWS_AT_ONCE))
