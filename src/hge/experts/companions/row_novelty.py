"""How unlike all remembered rows a row is: how novel to the experts whose rows are nearest, each in its own units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hge.experts.companions.nearest import (
    FloatArray,
    FloatRows,
    LabelledRows,
    Labels,
    NearestRows,
    common_scale,
    measured,
)
from hge.experts.companions.own_novelty import TINY, Mask, OwnNovelty, pieces

NEAREST = 3
"""Nearest of all rows: a row is compared with those experts to which these belong."""
ALL_ROWS, COMPARED = 4096, 2048
"""Rows with which a row is compared, and rows that are themselves compared to see what novelty is usual."""
AS_OTHERS = 10
"""Rows that the relative spread of all experts is worth beside that of an expert's own."""


class RowNovelty:
    """The remembered rows of all experts, and how novel those of each are to the others of the same expert.

    Each expert has its own units and its own usual novelty, as tasks may differ in scale. Of the experts whose rows are
    nearest, the one to which a row is least novel counts. Others do not: amid the rows of a task with large values, any
    row of one with small values would be known.

    What is usual is the novelty of remembered rows, compared with *others*. As nothing is fitted to the rows, new rows
    of known classes are alike.

    >>> memories, rows = {0: NearestRows(100), 1: NearestRows(100)}, np.arange(8, dtype=np.float32)[:, None]
    >>> for expert, unit in ((0, 1), (1, 1000)):
    ...     memories[expert].add(unit * (rows + 5 * expert), np.zeros(8, np.int64))
    >>> novelty = RowNovelty(memories)
    >>> (novelty(np.array([[3.5], [40.0], [8500.0], [40000.0]], np.float32)) > novelty.usual.max()).tolist()
    [False, True, False, True]
    """

    def __init__(self, memories: Mapping[int, NearestRows], most: int = ALL_ROWS) -> None:
        each = max(1, most // sum(len(np.unique(memory.y)) for memory in memories.values()))
        thinned = [_thinned(memory, each) for memory in memories.values()]
        x = np.concatenate([rows for rows, _ in thinned])
        scale = common_scale([*memories.values()])
        self._scale = LabelledRows(x, np.zeros(len(x), np.int64)).usual_scale() if scale is None else scale
        self._known = self._in_common_units(x)
        self._lengths = np.einsum("ij,ij->i", self._known, self._known)
        self._owner = np.repeat(np.arange(len(thinned)), [len(rows) for rows, _ in thinned])
        self._experts = [
            OwnNovelty(rows, memory.usual_scale() if memory.scale is None else memory.scale, varied)
            for memory, (rows, varied) in zip(memories.values(), thinned, strict=True)
        ]
        around = [expert.around for expert in self._experts if expert.varies]
        for expert in self._experts:
            if around and not expert.varies:
                expert.around = float(np.mean(around))
        own = [expert.usual for expert in self._experts]
        self._middles, self._spreads = _standards([values[np.isfinite(values)] for values in own])
        alone = np.concatenate(own)
        compared = np.flatnonzero(np.isfinite(alone))
        compared = compared[:: max(1, -(-len(compared) // COMPARED))]
        self.compared: FloatRows = x[compared]
        """[rows, inputs] The rows of `usual`."""
        self.usual: FloatArray = self._novelty(self.compared, compared, alone[compared])
        """[rows] Novelty of remembered rows, each compared with the others."""

    def __call__(self, x: FloatRows) -> FloatArray:
        """Return [rows]: novelty, in standard deviations of that of remembered rows."""
        return self._novelty(x)

    def _novelty(self, x: FloatRows, places: Labels | None = None, alone: FloatArray | None = None) -> FloatArray:
        """Return the same; of remembered rows: `places`, where they are, and `alone`, how novel to their expert."""
        near, least = self._nearest_experts(x, places), np.full(len(x), np.inf)
        for number, expert in enumerate(self._experts):
            rows = np.flatnonzero(near[:, number])
            if not len(rows):
                continue
            novelty = expert(x[rows])
            if places is not None and alone is not None:
                novelty = np.where(self._owner[places[rows]] == number, alone[rows], novelty)
            least[rows] = np.minimum(least[rows], (novelty - self._middles[number]) / self._spreads[number])
        return least

    def _nearest_experts(self, x: FloatRows, places: Labels | None) -> Mask:
        """Return [rows, experts]: whether one of the nearest of all rows, each row itself excepted, is the expert's."""
        near = np.full((len(x), len(self._experts)), len(self._experts) == 1)
        if near.all():
            return near
        for part in pieces(len(x)):
            apart = self._lengths - 2 * self._in_common_units(x[part]) @ self._known.T
            if places is not None:
                apart[np.arange(len(apart)), places[part]] = np.inf
            nearest = np.argpartition(apart, min(NEAREST, len(self._known)) - 1, axis=1)[:, :NEAREST]
            np.put_along_axis(near[part], self._owner[nearest], True, axis=1)
        return near

    def _in_common_units(self, x: FloatRows) -> FloatArray:
        # Single precision would not tell small distances from none where a task is far from the middle of all rows.
        return measured(x, self._scale)[:, :-1].astype(np.float64)


def _thinned(memory: NearestRows, each: int) -> tuple[FloatRows, Mask]:
    """Return at most so many rows of each class, and whether the rows of its class differ at all."""
    classes = [memory.x[memory.y == label] for label in np.unique(memory.y)]
    classes = [own[:: -(-len(own) // each)] for own in classes]
    varied = [bool((own != own[0]).any()) for own in classes]
    return np.concatenate(classes), np.repeat(varied, [len(own) for own in classes])


def _standards(usual: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return [experts] the means and standard deviations of what is usual for each.

    Few rows say little of their spread: relative to the mean, it is taken to be partly that of all experts. An expert
    whose rows are all the same has the mean and the spread of the others.
    """
    rows = np.array([len(own) for own in usual])
    some = rows > 0
    if not some.any():
        return np.zeros(len(rows)), np.ones(len(rows))
    middles = np.array([own.mean() if len(own) else 0.0 for own in usual])
    spreads = np.array([own.std() if len(own) else 0.0 for own in usual]) / np.maximum(middles, TINY)
    common = np.average(spreads**2, weights=rows)
    middles[~some] = middles[some].mean()
    spreads = middles * np.sqrt((rows * spreads**2 + AS_OTHERS * common) / (rows + AS_OTHERS))
    return middles, np.maximum(spreads, np.maximum(1e-3 * middles, TINY))
