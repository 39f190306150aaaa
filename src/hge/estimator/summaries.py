"""What an estimator tells of itself: its last decisions, and its experts in a few numbers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hge.core.events import BatchSkipped, Event

EVENTS_KEPT = 1000


class RecentEvents:
    """Keeps the last events that it is called with, and counts skipped batches."""

    def __init__(self, skipped: int = 0) -> None:
        self.kept: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.skipped = skipped

    def __call__(self, event: Event) -> None:
        """Keep the event; the oldest one goes."""
        self.kept.append(event)
        self.skipped += isinstance(event, BatchSkipped)


@dataclass(frozen=True)
class ExpertSummary:
    """An expert in a few numbers."""

    id: int
    promoted: bool
    """False while it is on probation."""
    batches_trained: int
    loss: float
    """Running mean of its training loss."""
    bound: float
    """A batch of higher loss is not its own."""
