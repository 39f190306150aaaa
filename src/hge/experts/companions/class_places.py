"""Which rows of one class stay in a memory: the latest, and a random sample of all that came before them."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

WORD = 2**64 - 1


class ClassPlaces:
    """The places of the rows of one class: one half are the latest, the others a uniform sample of all before.

    The latest follow a drift. The sample keeps what came long ago: an expert may accept the rows of several tasks, and
    rehearses only what it remembers. Which row leaves depends on the order of arrival alone, so that this is all that
    has to be saved.

    >>> rows = ClassPlaces()
    >>> for arrival in range(4):
    ...     rows.add(arrival, arrival)
    >>> for arrival in range(4, 1000):  # each in the place of the one that leaves
    ...     rows.add(rows.leave(), arrival)
    >>> [arrival for _, arrival in rows.latest], len(rows)
    ([997, 998, 999], 4)
    """

    def __init__(self) -> None:
        self.latest: deque[tuple[int, int]] = deque()
        """Places and arrivals, the oldest first."""
        self.sample: list[tuple[int, int]] = []
        """A heap of priorities and places; the lowest priority leaves first."""

    def __len__(self) -> int:
        return len(self.latest) + len(self.sample)

    def add(self, place: int, arrival: int) -> None:
        """Add the place of the row that came last."""
        self.latest.append((place, arrival))

    def leave(self) -> int:
        """Remove one of the rows that are not among the latest half; return its place."""
        half = len(self) // 2
        while len(self.latest) > half:
            place, arrival = self.latest.popleft()
            heappush(self.sample, (_priority(arrival), place))
        return heappop(self.sample)[1]


def _priority(arrival: int) -> int:
    """Return a number of 64 bits that looks random; those with the highest are a uniform sample (SplitMix64)."""
    bits = (arrival + 1) * 0x9E3779B97F4A7C15 & WORD
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & WORD
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & WORD
    return bits ^ bits >> 31
