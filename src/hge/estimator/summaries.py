"""An estimator's public summaries: its recent events and its experts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hge.core.events import BatchSkipped, Event

EVENTS_KEPT = 1000


class RecentEvents:
    """Event handler that keeps the last `EVENTS_KEPT` events and counts skipped batches."""

    def __init__(self, skipped: int = 0) -> None:
        self.kept: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.skipped = skipped

    def __call__(self, event: Event) -> None:
        """Record the event; the oldest is dropped if the buffer is full."""
        self.kept.append(event)
        self.skipped += isinstance(event, BatchSkipped)


@dataclass(frozen=True)
class ExpertSummary:
    """Summary of one expert."""

    id: int
    promoted: bool
    """False while it is on probation."""
    batches_trained: int
    loss: float
    """Running mean of its training loss."""
    bound: float
    """Batches with a higher loss are not accepted."""
