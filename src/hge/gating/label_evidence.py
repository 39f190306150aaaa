"""Labels as evidence of a task switch: in training they are known, and an expert knows which ones it was trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scipy.stats import binom

SIGNIFICANT = 1e-4
"""Probability below which a batch has too many new labels to belong to the expert's task."""


class LabelCounts(Counter[int]):
    """The labels of the rows on which an expert was trained.

    How probable a new label is follows from how many labels came only once (Good and Turing): in a task with many
    classes new ones are expected for some time.

    >>> two, many = LabelCounts([3, 8] * 16), LabelCounts(range(32))
    >>> two.admits([3, 8, 3, 8]), two.admits([5, 5, 5, 5]), many.admits(range(40, 60))
    (True, False, True)
    """

    def admits(self, labels: Iterable[int]) -> bool:
        """Return whether the number of new labels in a batch is what the labels so far let expect."""
        if not self:
            return True
        labels = list(labels)
        new = sum(label not in self for label in labels)
        if not new:
            return True
        once = sum(count == 1 for count in self.values())
        probability = (once + 1) / (self.total() + 1)
        return bool(binom.sf(new - 1, len(labels), probability) >= SIGNIFICANT)
