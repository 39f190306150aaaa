"""Section 3.1, detecting task switches: the loss bound, the recent buffer R, the Z-test, new labels. No tensors."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf, sqrt
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.special import bdtrc  # scipy.stats takes a second to import

from hge.gating.tree import FloatArray

T = TypeVar("T")
Statistic = Callable[[Sequence[float]], Any]
MANY = 1_000_000
NORMAL_MEDIAN_DISTANCE = 0.6744897501960817
"""Median distance from the mean, in standard deviations, of a normal distribution."""
SIGNIFICANT = 1e-4
"""Probability below which a batch has too many new labels to belong to the expert's task."""


@dataclass
class LossStats:
    """EWMA of an expert's training loss and of its deviation; together they bound the expected losses.

    >>> stats = LossStats(alpha=0.9)
    >>> for loss in (2.0, 1.0, 1.0):
    ...     stats.update(loss)
    >>> stats.mean, stats.deviation  # 0.9·1.9 + 0.1·1.0, and 0.9·1.0 + 0.1·|1.0 - 1.9|
    (1.81, 0.99)
    >>> stats.bound(epsilon=4)
    5.77
    """

    alpha: float = 0.9
    signed: bool = False
    """The paper's formula as written, L_n - μ, which diverges when the loss falls (docs/paper.md, reading 2)."""
    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0
    last: float = 0.0
    """The loss before."""

    def update(self, loss: float, *, rising: bool = False) -> None:
        """Update with the loss of a batch on which the expert was trained.

        `rising`: the first losses, those of an expert that knew nothing yet, count little. Until the average has its
        length, the weight of a loss is in proportion to its number, and the deviation is that of neighbouring losses:
        the distance from a mean that lags behind would take what the expert learns for noise.

        >>> first, rising = LossStats(), LossStats()
        >>> for loss in [4.2] + 30 * [0.1]:
        ...     first.update(loss)
        ...     rising.update(loss, rising=True)
        >>> round(first.bound(epsilon=4), 1), round(rising.bound(epsilon=4), 1)
        (3.3, 0.2)
        """
        self.count += 1
        before, self.last = self.last, loss
        if self.count == 1:
            self.mean = loss
            return
        step, weight = loss - self.mean, 1 - self.alpha
        difference = step if self.signed else abs(step)
        if rising and 2 / (self.count + 1) > weight:
            weight = 2 / (self.count + 1)
            difference = abs(loss - before) / sqrt(2)  # two losses are further apart than one is from their mean
        self.deviation += (1.0 if self.count == 2 else weight) * (difference - self.deviation)
        self.mean += weight * step

    def bound(self, epsilon: float) -> float:
        """μ + εσ: the highest loss that is still expected; infinite before two losses."""
        return self.mean + epsilon * self.deviation if self.count >= 2 else inf


NO_BOUND = LossStats(alpha=1.0, count=2, mean=1e30)
"""Statistics that no loss changes, with a bound above every loss that can be trained on."""


@dataclass
class RecentEntry(Generic[T]):
    """A batch in R and its status."""

    step: int
    batch: T
    expert: int | None = None
    """The expert that was trained on it; None while it is set aside."""
    refused_by: int | None = None
    """The gate's choice, if that expert refused the batch."""

    @property
    def high_loss(self) -> bool:
        """Whether it is set aside because no expert accepted it."""
        return self.expert is None


@dataclass
class RecentBuffer(Generic[T]):
    """R, the most recent batches in order of arrival; those of high loss are pending.

    >>> recent = RecentBuffer[str](capacity=2)
    >>> recent.append(RecentEntry(0, "a", expert=5)); recent.append(RecentEntry(1, "b"))
    >>> recent.full, recent.popleft().batch, recent.previous_expert, recent.all_high_loss
    (True, 'a', 5, True)
    """

    capacity: int
    entries: deque[RecentEntry[T]] = field(default_factory=deque)
    previous_expert: int = 0
    """The expert that was trained on the batch just before the oldest one in R."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[RecentEntry[T]]:
        return iter(self.entries)

    @property
    def full(self) -> bool:
        """Whether it is at capacity."""
        return len(self.entries) >= self.capacity

    @property
    def all_high_loss(self) -> bool:
        """Whether every batch in it was set aside: the loss is persistently high."""
        return all(entry.high_loss for entry in self.entries)

    @property
    def trailing(self) -> int:
        """Number of batches of high loss since the last one that was accepted."""
        return sum(1 for _ in takewhile(lambda entry: entry.high_loss, reversed(self.entries)))

    @property
    def until_outlier(self) -> int:
        """Batches to append until R is full and its oldest is one of high loss; at least `MANY` if there is none."""
        outlier = next((i for i, entry in enumerate(self.entries) if entry.high_loss), MANY)
        return self.capacity - len(self.entries) + outlier

    @property
    def oldest(self) -> RecentEntry[T]:
        """The batch that arrived first."""
        return self.entries[0]

    @property
    def newest(self) -> RecentEntry[T]:
        """The batch that arrived last."""
        return self.entries[-1]

    def append(self, entry: RecentEntry[T]) -> None:
        """Add the newest batch."""
        self.entries.append(entry)

    def popleft(self) -> RecentEntry[T]:
        """Remove the oldest batch, on which an expert must have been trained."""
        entry = self.entries.popleft()
        assert entry.expert is not None, "a batch leaves R only after an expert was trained on it"
        self.previous_expert = entry.expert
        return entry

    def clear(self) -> None:
        """Remove all batches; an expert must have been trained on each."""
        while self.entries:
            self.popleft()

    def whole_batch(self) -> WholeBatch:
        """Restore R if the block is interrupted: a partly processed batch must not stay in it for ever."""
        return WholeBatch(self)


class WholeBatch:
    """Restores R if its block raises; a class, since a generator would be slower and this runs for every batch."""

    def __init__(self, recent: RecentBuffer[Any]) -> None:
        self.recent = recent

    def __enter__(self) -> None:
        self.before = tuple(self.recent.entries), self.recent.previous_expert

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            entries, self.recent.previous_expert = self.before
            self.recent.entries = deque(entries)


@dataclass
class OutlierRate:
    """How often a batch is refused although its task has not changed, and what several such batches in a row say.

    >>> rate = OutlierRate()
    >>> [rate.enough(in_a_row, batches=100, error_rate=1e-4) for in_a_row in (1, 2)]
    [False, True]
    >>> rate.outliers = 10  # a stream of which a tenth is refused
    >>> [rate.enough(in_a_row, batches=100, error_rate=1e-4) for in_a_row in (2, 3, 4, 5)]
    [False, False, True, True]
    """

    outliers: int = 0

    def enough(self, in_a_row: int, batches: int, error_rate: float) -> bool:
        """Return whether that many refused batches in a row are less probable than the error rate, if outliers.

        The rate has a prior of one outlier in twenty batches. A single batch is never enough, and no
        number of them if the error rate is 0.
        """
        return in_a_row >= 2 and error_rate > 0 and self.chance(in_a_row, batches) <= error_rate

    def chance(self, in_a_row: int, batches: int) -> float:
        """Return the probability that so many batches in a row are refused although the task has not changed."""
        return float((self.outliers + 1) / (batches + 20)) ** in_a_row


def change_point(before: FloatArray, after: FloatArray) -> int:
    """Return the row at which a batch most probably passes from one task to another.

    `before`, `after`: [rows] log-likelihood of each row under the task that ends, and under the one that begins.

    >>> change_point(np.log([0.9, 0.9, 0.1, 0.5]), np.log([0.5, 0.2, 0.8, 0.5]))
    2
    """
    return int(np.append(0.0, np.cumsum(before - after)).argmax())


def z_score(replay_losses: Sequence[float], recent_losses: Sequence[float]) -> float:
    """ZS = |μ₂ - μ₁| / (σ/√n): distance of the recent losses from those of the expert's own replay.

    >>> z_score([1.0, 3.0, 1.0, 3.0], [12.0, 14.0])  # |13 - 2| / (1/√4)
    22.0
    >>> z_score([1.0], [9.0])  # one batch says nothing about the spread
    0.0
    """
    return _distance(replay_losses, recent_losses, np.mean, np.std)


def robust_z_score(replay_losses: Sequence[float], recent_losses: Sequence[float]) -> float:
    """ZS with the median of the replay and the spread about it: a stray batch in the replay would hide any difference.

    The mean is still used for the recent losses, since a few batches of another task must be able to move it.

    >>> replay, recent = [1.0, 1.1, 1.2, 1.1, 1.0, 14.0], [13.0, 14.0, 15.0]
    >>> z_score(replay, recent) < 20 < robust_z_score(replay, recent)
    True
    """
    return _distance(replay_losses, recent_losses, np.median, _robust_deviation)


def _robust_deviation(losses: Sequence[float]) -> float:
    """Return the median distance from the median, scaled to the standard deviation of normally distributed losses."""
    return float(np.median(np.abs(np.asarray(losses) - np.median(losses)))) / NORMAL_MEDIAN_DISTANCE


def _distance(replay: Sequence[float], recent: Sequence[float], middle: Statistic, spread: Statistic) -> float:
    n = len(replay)
    if n < 2:
        return 0.0
    if not np.isfinite([*replay, *recent]).all():
        return inf  # an expert without finite losses on its own replay cannot claim the batches
    sigma = max(float(spread(replay)), 1e-8)
    return abs(float(np.mean(recent)) - float(middle(replay))) / (sigma / sqrt(n))


class LabelCounts(Counter[int]):
    """The labels of the rows on which an expert was trained.

    How probable a new label is follows from how many labels came only once (Good and Turing): in a task with many
    classes new ones are expected for some time.

    >>> two, many = LabelCounts([3, 8] * 16), LabelCounts(range(32))
    >>> two.admits([3, 8, 3, 8]), two.admits([5, 5, 5, 5]), many.admits(range(40, 60))
    (True, False, True)
    """

    @property
    def guessing(self) -> float:
        """The share of rows that guesses by the frequencies of the labels get wrong.

        >>> LabelCounts([0, 1, 1, 1]).guessing  # 1/4 of the rows 3/4 of the time, and the reverse
        0.375
        """
        total = max(1, self.total())
        return 1.0 - sum((count / total) ** 2 for count in self.values()) if self else 0.0

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
        return bool(bdtrc(new - 1, len(labels), probability) >= SIGNIFICANT)
