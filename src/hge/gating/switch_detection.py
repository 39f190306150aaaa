"""Section 3.1, detecting task switches: the loss bound, the recent buffer R, and the Z-test. Numbers only."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, sqrt
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.stats import median_abs_deviation

T = TypeVar("T")
Statistic = Callable[[Sequence[float]], Any]
MANY = 1_000_000


@dataclass
class LossStats:
    """EWMA of an expert's training loss and of its deviation; together they bound the losses to expect.

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
    """The paper's formula to the letter, L_n - μ, which runs away when the loss falls (docs/paper.md, reading 2)."""
    count: int = 0
    mean: float = 0.0
    deviation: float = 0.0

    def update(self, loss: float) -> None:
        """Take in the loss of a batch on which the expert was trained."""
        self.count += 1
        if self.count == 1:
            self.mean = loss
            return
        step, weight = loss - self.mean, 1 - self.alpha
        difference = step if self.signed else abs(step)
        self.deviation += (1.0 if self.count == 2 else weight) * (difference - self.deviation)
        self.mean += weight * step

    def bound(self, epsilon: float) -> float:
        """μ + εσ: the highest loss that is still expected. There is none before two losses."""
        return self.mean + epsilon * self.deviation if self.count >= 2 else inf


@dataclass
class RecentEntry(Generic[T]):
    """A batch in R, and what became of it so far."""

    step: int
    batch: T
    expert: int | None = None
    """The expert that was trained on it; None while it is set aside."""
    refused_by: int | None = None
    """The gate's choice, if that one refused it."""

    @property
    def high_loss(self) -> bool:
        """Set aside, because nobody accepted it."""
        return self.expert is None


@dataclass
class RecentBuffer(Generic[T]):
    """R, the most recent batches in order of arrival; those of high loss wait in it for a verdict.

    >>> recent = RecentBuffer[str](capacity=2)
    >>> recent.append(RecentEntry(0, "a", expert=5)); recent.append(RecentEntry(1, "b"))
    >>> recent.full, recent.popleft().batch, recent.previous_expert, recent.all_high_loss
    (True, 'a', 5, True)
    """

    capacity: int
    entries: deque[RecentEntry[T]] = field(default_factory=deque)
    previous_expert: int = 0
    """The expert that was trained on the batch before the oldest one in R."""

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[RecentEntry[T]]:
        return iter(self.entries)

    @property
    def full(self) -> bool:
        """As many batches as it can hold."""
        return len(self.entries) >= self.capacity

    @property
    def all_high_loss(self) -> bool:
        """Every batch in it was set aside: the loss is high and stays high."""
        return all(entry.high_loss for entry in self.entries)

    @property
    def calm(self) -> bool:
        """No two of high loss in a row at its end: nothing looks like a switch."""
        return not (len(self.entries) >= 2 and self.entries[-1].high_loss and self.entries[-2].high_loss)

    @property
    def until_outlier(self) -> int:
        """Batches to append until one of high loss is the oldest and R is full; many if there is none."""
        outlier = next((i for i, entry in enumerate(self.entries) if entry.high_loss), MANY)
        return self.capacity - len(self.entries) + outlier

    @property
    def oldest(self) -> RecentEntry[T]:
        """The batch that arrived first."""
        return self.entries[0]

    def append(self, entry: RecentEntry[T]) -> None:
        """Add the newest batch."""
        self.entries.append(entry)

    def popleft(self) -> RecentEntry[T]:
        """Take out the oldest batch, which must have found its expert."""
        entry = self.entries.popleft()
        assert entry.expert is not None, "a batch leaves R only after an expert was trained on it"
        self.previous_expert = entry.expert
        return entry

    def clear(self) -> None:
        """Let every batch go; each must have found its expert."""
        while self.entries:
            self.popleft()

    def whole_batch(self) -> WholeBatch:
        """Be as before if the block is interrupted: a batch that was only begun must not stay in R for ever."""
        return WholeBatch(self)


class WholeBatch:
    """Puts R back if its block raises; not a generator, since every batch goes through it."""

    def __init__(self, recent: RecentBuffer[Any]) -> None:
        self.recent = recent

    def __enter__(self) -> None:
        self.before = tuple(self.recent.entries), self.recent.previous_expert

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            entries, self.recent.previous_expert = self.before
            self.recent.entries = deque(entries)


def z_score(replay_losses: Sequence[float], recent_losses: Sequence[float]) -> float:
    """ZS = |μ₂ - μ₁| / (σ/√n): how far the recent losses lie from those of the expert's own replay.

    >>> z_score([1.0, 3.0, 1.0, 3.0], [12.0, 14.0])  # |13 - 2| / (1/√4)
    22.0
    >>> z_score([1.0], [9.0])  # one batch says nothing about the spread
    0.0
    """
    return _distance(replay_losses, recent_losses, np.mean, np.std)


def robust_z_score(replay_losses: Sequence[float], recent_losses: Sequence[float]) -> float:
    """ZS with the median of the replay, and its spread about that: a stray batch in it would hide every difference.

    The recent losses keep their mean, which some of another task must move.

    >>> replay, recent = [1.0, 1.1, 1.2, 1.1, 1.0, 14.0], [13.0, 14.0, 15.0]
    >>> z_score(replay, recent) < 20 < robust_z_score(replay, recent)
    True
    """
    return _distance(replay_losses, recent_losses, np.median, partial(median_abs_deviation, scale="normal"))


def _distance(replay: Sequence[float], recent: Sequence[float], middle: Statistic, spread: Statistic) -> float:
    n = len(replay)
    if n < 2:
        return 0.0
    if not np.isfinite([*replay, *recent]).all():
        return inf  # an expert that gives no number on what it remembers cannot claim the batches
    sigma = max(float(spread(replay)), 1e-8)
    return abs(float(np.mean(recent)) - float(middle(replay))) / (sigma / sqrt(n))
