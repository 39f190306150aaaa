"""Rows that were predicted and wait for their labels."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np

FloatRows = np.ndarray[Any, np.dtype[np.float32]]
Label = int | float | str | bool


@dataclass(frozen=True)
class Visit:
    """Rows of one request, and what was predicted for them; None if nothing had been learned yet."""

    rows: FloatRows
    predicted: list[Label] | None


class WaitingRoom:
    """Visits by id, of a limited number of rows: the oldest leave when there is no room.

    >>> room = WaitingRoom(most_rows=3)
    >>> for name in "abc":
    ...     room.add(name, Visit(np.zeros((1, 2), np.float32), None))
    >>> room.add("d", Visit(np.zeros((2, 2), np.float32), None))
    >>> list(room.visits), room.rows, room.dropped
    (['c', 'd'], 3, 2)
    """

    def __init__(self, most_rows: int) -> None:
        self.most_rows = most_rows
        self.visits: OrderedDict[str, Visit] = OrderedDict()
        self.rows = 0
        self.dropped = 0
        """Number of visits that left without a label."""

    def add(self, name: str, visit: Visit) -> None:
        """Add a visit under a name that is not in use."""
        self.visits[name] = visit
        self.rows += len(visit.rows)
        self.limit(self.most_rows)

    def limit(self, most_rows: int) -> None:
        """Keep this many rows from now on."""
        self.most_rows = most_rows
        while self.rows > self.most_rows:
            _, oldest = self.visits.popitem(last=False)
            self.rows -= len(oldest.rows)
            self.dropped += 1

    def take(self, name: str) -> Visit:
        """Remove a visit and return it."""
        visit = self.visits.pop(name)
        self.rows -= len(visit.rows)
        return visit
