"""From newcomer to promoted expert: when, and where in the tree. GE's policy is flat. Numbers only."""

from __future__ import annotations

from collections import deque

from hge.gate import ROOT, Tree


class Probation:
    """A newcomer's record: over the last batches, how often was its score lower than that of the gate's choice?

    >>> probation = Probation(window=4)
    >>> for lower in (False, True, True, True):
    ...     probation.record(lower)
    >>> probation.rate, probation.passed(0.5)
    (0.75, True)
    >>> Probation(window=4).passed(0.0)  # the window must be full
    False
    """

    def __init__(self, window: int) -> None:
        self.lower: deque[bool] = deque(maxlen=window)

    def record(self, lower: bool) -> None:
        """Note whether the newcomer's score was the lower one on a batch that it accepted."""
        self.lower.append(lower)

    @property
    def rate(self) -> float:
        """Share of the window in which the newcomer's score was lower."""
        return sum(self.lower) / len(self.lower) if self.lower else 0.0

    def passed(self, promotion_rate: float) -> bool:
        """The window is full, and the rate exceeds ε_promotion."""
        return len(self.lower) == self.lower.maxlen and self.rate > promotion_rate


def promote_flat(tree: Tree, expert: int) -> int:
    """GE's promotion: right under the root, beside all others. Return the new node."""
    return tree.add(expert, parent=ROOT)
