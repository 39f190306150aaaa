"""HGE beyond the paper: cheap sketches of all experts select the few experts to query. No tensors here.

Sketches cost next to nothing, so they are computed for all experts; the costly score, or the experts' networks, only
for the best few. Their number is the smallest for which the shortlists of nearly all replay groups include the owner.
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
"""Share of the replay groups whose owner must be on their shortlist."""
GROWTH = 1.25
"""The lengths are recomputed for each new expert, and when the number of batches trained has grown by this factor."""
MOST_BATCHES = 256
"""Maximum number of replay batches from which the lengths are computed."""
ENOUGH = 5
"""Number of replay batches of an expert from which on the worst is left out."""


STATE = ("batch", "row", "batch_rows", "experts_at_fit", "trained_at_fit")


class Remembered(Protocol):
    """The shortlist's view of the experts' replay."""

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""

    def sketches(self, experts: int, owner: int, place: int) -> tuple[FloatArray, FloatArray]:
        """Return the first experts' sketches of a replay batch: [experts] as a whole, [experts, rows] by rows."""


@dataclass
class Shortlist:
    """The number of experts queried for a batch, and for a single row; 0: all of them."""

    replays: Remembered
    emit: Emit
    batch: int = 0
    row: int = 0
    batch_rows: int = 1
    """Rows of the largest replay batch; a group of more than half as many is treated as a batch."""
    experts_at_fit: int = 0
    trained_at_fit: int = 0

    def length(self, rows: int, experts: int) -> int:
        """Return the number of experts queried for a group of `rows` rows.

        All, if it would be more than half of them: the small saving is not worth the loss in accuracy
        (cif100-20, single samples: 45.8 with 18 of 20 queried, 49.7 with all).
        """
        length = self.batch if 2 * rows > self.batch_rows else self.row
        return length if length and 2 * length <= experts else experts

    def choose(self, sketches: FloatArray, rows: int) -> npt.NDArray[np.bool_]:
        """Return [experts, groups]: whether an expert is queried, by the sketches of groups of `rows` rows each.

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
        """Return whether the lengths should be recomputed."""
        return experts > 1 and (experts != self.experts_at_fit or trained >= GROWTH * self.trained_at_fit)

    def batches_until_due(self, experts: int, trained: int) -> int:
        """Return the number of batches that can be trained before the lengths are due."""
        if experts < 2:
            return trained + 2  # nothing to choose from
        # Minus one, and one more because the last batch may also trigger the training on an outlier.
        return max(0, int(GROWTH * self.trained_at_fit) - trained - 2)

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Recompute the lengths if they are due."""
        if self.due(experts, trained):
            self.fit(step, experts, trained)

    def fit(self, step: int, experts: int, trained: int) -> None:
        """Compute the lengths from the experts' replay."""
        batches, rows = [], []
        owners = range(0, experts, ceil(experts / MOST_BATCHES))
        for owner in owners:
            size = self.replays.size(owner)
            places = range(0, size, ceil(size / max(1, MOST_BATCHES // len(owners))) or 1)
            found = [self._ranks(experts, owner, place) for place in places]
            if len(found) >= ENOUGH:  # the worst may be another task's, from just after a switch
                found.pop(max(range(len(found)), key=lambda place: found[place][0]))
            batches += [np.array([whole]) for whole, _ in found]
            rows += [single for _, single in found]
        self.batch, self.row = (shortest(np.concatenate(ranks)) if ranks else 0 for ranks in (batches, rows))
        self.experts_at_fit, self.trained_at_fit = experts, trained
        self.emit(ShortlistSet(step, experts, self.batch, self.row))

    def state(self) -> dict[str, int]:
        """Return the state as JSON values."""
        return {name: getattr(self, name) for name in STATE}

    def load_state(self, facts: Mapping[str, int]) -> None:
        """Restore what `state` returned."""
        for name in STATE:
            setattr(self, name, facts[name])

    def _ranks(self, experts: int, owner: int, place: int) -> tuple[int, IntArray]:
        """Return the owner's rank for a replay batch as a whole, and for its rows."""
        whole, single = self.replays.sketches(experts, owner, place)
        self.batch_rows = max(self.batch_rows, single.shape[1])
        return int(rank(whole[:, None], owner)[0]), rank(single, owner)


def rank(sketches: FloatArray, owner: int) -> IntArray:
    """Return [groups]: the number of experts with a better sketch of a group than its owner's.

    >>> rank(np.array([[1.0, 7.0], [2.0, 6.0], [3.0, 5.0]]), owner=1).tolist()
    [1, 1]
    """
    found: IntArray = (sketches < sketches[owner]).sum(axis=0)
    return found


def shortest(ranks: IntArray, kept: float = KEPT) -> int:
    """Return the number of experts to query so that the share `kept` of the groups have their owner among them.

    >>> shortest(np.array([0] * 998 + [1, 7])), shortest(np.array([0, 0, 3]))
    (1, 4)
    """
    return 1 + int(np.sort(ranks)[ceil(kept * len(ranks)) - 1])
