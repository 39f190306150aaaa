"""HGE beyond the paper: everybody's sketch says which few experts are worth asking. Numbers only.

A sketch costs next to nothing, so all of them are looked at; the costly score, or the experts' networks, are asked of
the best few only. How many is what the replay says: as few as keep nearly all remembered groups with their own expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hge.core.events import Emit, ShortlistSet
from hge.gating.tree import FloatArray, IntArray

KEPT = 0.995
"""Share of the remembered groups whose own expert must be on their shortlist."""
GROWTH = 1.25
"""The lengths are set anew when there is another expert, or so many times as many batches have been learned."""
MOST_BATCHES = 256
"""Remembered batches that are looked at for it."""
ENOUGH = 5
"""Of so many batches of an expert, one may be left out."""


STATE = ("batch", "row", "batch_rows", "experts_at_fit", "trained_at_fit")


class Remembered(Protocol):
    """What a shortlist may know of the experts' replay."""

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""

    def sketches(self, experts: int, owner: int, place: int) -> tuple[FloatArray, FloatArray]:
        """Return the first experts' sketches of a remembered batch: [experts] as a whole, [experts, rows] by rows."""


@dataclass
class Shortlist:
    """How many experts are asked about a batch, and about a single row; 0: all of them."""

    replays: Remembered
    emit: Emit
    batch: int = 0
    row: int = 0
    batch_rows: int = 1
    """Rows of a remembered batch; half as many are still taken for a batch."""
    experts_at_fit: int = 0
    trained_at_fit: int = 0

    def length(self, rows: int, experts: int) -> int:
        """Return how many of the experts are asked about a group of so many rows.

        All, if it would be more than half of them: what little is saved costs more in accuracy
        (cif100-20, single samples: 45.8 with 18 of 20 asked, 49.7 with all).
        """
        length = self.batch if 2 * rows > self.batch_rows else self.row
        return length if 0 < 2 * length <= experts else experts

    def choose(self, sketches: FloatArray, rows: int) -> npt.NDArray[np.bool_]:
        """Return [experts, groups]: who is asked about groups of so many rows, by everybody's sketches of them.

        >>> both = Shortlist(None, lambda event: None, batch=1, row=2, batch_rows=32)  # type: ignore[arg-type]
        >>> sketches = np.array([[1.0, 7.0], [2.0, 6.0], [3.0, 5.0]])
        >>> both.choose(sketches, rows=32).tolist()
        [[True, False], [False, False], [False, True]]
        >>> both.choose(sketches, rows=1).sum(axis=0).tolist()  # two of three would save too little
        [3, 3]
        """
        length = self.length(rows, len(sketches))
        if length == len(sketches):
            return np.ones(sketches.shape, bool)
        chosen = np.zeros(sketches.shape, bool)
        best = np.argpartition(sketches, length - 1, axis=0)[:length]
        np.put_along_axis(chosen, best, True, axis=0)
        return chosen

    def due(self, experts: int, trained: int) -> bool:
        """Say whether the lengths should be set anew."""
        return experts > 1 and (experts != self.experts_at_fit or trained >= GROWTH * self.trained_at_fit)

    def quiet(self, experts: int, trained: int) -> int:
        """Return on how many batches an expert can be trained before the lengths are due."""
        if experts < 2:
            return trained + 2  # nothing to choose from
        # Less one, and one more: the last of them may bring an outlier's training with it.
        return max(0, int(GROWTH * self.trained_at_fit) - trained - 2)

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Set the lengths anew if they are due."""
        if self.due(experts, trained):
            self.fit(step, experts, trained)

    def fit(self, step: int, experts: int, trained: int) -> None:
        """Set the lengths by what the experts remember."""
        batches, rows = [], []
        owners = range(0, experts, ceil(experts / MOST_BATCHES))
        for owner in owners:
            size = self.replays.size(owner)
            places = range(0, size, ceil(size / max(1, MOST_BATCHES // len(owners))) or 1)
            found = [self._ranks(experts, owner, place) for place in places]
            if len(found) >= ENOUGH:  # the worst may have come with a switch, and be another's
                found.pop(max(range(len(found)), key=lambda place: found[place][0]))
            batches += [np.array([whole]) for whole, _ in found]
            rows += [single for _, single in found]
        self.batch, self.row = (shortest(np.concatenate(ranks)) if ranks else 0 for ranks in (batches, rows))
        self.experts_at_fit, self.trained_at_fit = experts, trained
        self.emit(ShortlistSet(step, experts, self.batch, self.row))

    def state(self) -> dict[str, int]:
        """Return what must be kept."""
        return {name: getattr(self, name) for name in STATE}

    def load_state(self, facts: Mapping[str, int]) -> None:
        """Become what `state` returned."""
        for name in STATE:
            setattr(self, name, facts[name])

    def _ranks(self, experts: int, owner: int, place: int) -> tuple[int, IntArray]:
        """Return the owner's rank for a remembered batch as a whole, and for its rows."""
        whole, single = self.replays.sketches(experts, owner, place)
        self.batch_rows = max(self.batch_rows, single.shape[1])
        return int(rank(whole[:, None], owner)[0]), rank(single, owner)


def rank(sketches: FloatArray, owner: int) -> IntArray:
    """Return [groups]: how many experts have a better sketch of a group than its owner.

    >>> rank(np.array([[1.0, 7.0], [2.0, 6.0], [3.0, 5.0]]), owner=1).tolist()
    [1, 1]
    """
    found: IntArray = (sketches < sketches[owner]).sum(axis=0)
    return found


def shortest(ranks: IntArray, kept: float = KEPT) -> int:
    """Return how many experts must be asked so that this share of the groups meet their own.

    >>> shortest(np.array([0] * 998 + [1, 7])), shortest(np.array([0, 0, 3]))
    (1, 4)
    """
    return 1 + int(np.sort(ranks)[ceil(kept * len(ranks)) - 1])
