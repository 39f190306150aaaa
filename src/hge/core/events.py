"""Decisions as facts: what the learner did, at which batch, and the numbers that led to it.

Every event is frozen, named in the past tense, and leaves the learner through the one `emit` it was given. No
decision reads events back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened at batch `step` of the stream."""

    step: int

    @classmethod
    def kind(cls) -> str:
        """Return the event's name in `events.jsonl`.

        >>> ExpertCreated.kind()
        'expert_created'
        """
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain JSON values; a number that JSON cannot hold becomes null."""
        return {"event": self.kind()} | {name: _json_value(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class BatchSetAside(Event):
    """The gate's choice found the loss too high, and no newcomer accepted the batch."""

    expert: int
    loss: float
    bound: float


@dataclass(frozen=True)
class OutlierSettled(Event):
    """A set-aside batch turned out to be an outlier: the expert of the batch before it was trained on it."""

    outlier: int
    """Step at which the batch had arrived."""
    expert: int


@dataclass(frozen=True)
class LossReviewed(Event):
    """The loss stayed high, so the expert's replay was compared with the set-aside batches (Z-test)."""

    expert: int
    z_score: float
    threshold: float
    replay_loss: float
    recent_loss: float
    new_task: bool


@dataclass(frozen=True)
class UpdateSkipped(Event):
    """A loss or gradient was not a number: the expert was not trained on the batch."""

    expert: int
    batch: int
    """Step at which the batch had arrived."""


@dataclass(frozen=True)
class ExpertRolledBack(Event):
    """An expert's loss or weights were no longer numbers: it went back to its last good state."""

    expert: int
    batches: int
    """Number of batches whose training was lost."""


@dataclass(frozen=True)
class BatchSkipped(Event):
    """A bad batch came and was left out, as `on_bad_batch="skip"` says; nothing changed. `step` is that of the next."""

    reason: str


@dataclass(frozen=True)
class ExpertCreated(Event):
    """A task switch was detected: a new expert learned the set-aside batches and is on probation."""

    expert: int
    batches: int


@dataclass(frozen=True)
class ExpertReused(Event):
    """A task switch was detected, but there may be no more experts: the one with the lowest loss took the batches."""

    expert: int
    batches: int


@dataclass(frozen=True)
class BatchesReclaimed(Event):
    """No task switch: the gate sent batches to experts that refused them, but the one in use accepts these of them."""

    expert: int
    batches: int


@dataclass(frozen=True)
class ExpertPromoted(Event):
    """A newcomer's score was the lower one often enough: it joined the gate."""

    expert: int
    rate: float
    """Share of its last batches on which its score was the lowest."""
    parent: int
    """Node of the tree under which it was placed."""


@dataclass(frozen=True)
class ShortlistSet(Event):
    """The replay was looked at: so many experts are asked about a batch, and about a single row."""

    experts: int
    batch: int
    row: int


@dataclass(frozen=True)
class ExpertChanged(Event):
    """The stream moved on to another expert, old or new."""

    previous: int
    expert: int


Emit = Callable[[Event], None]


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not isfinite(value) else value
