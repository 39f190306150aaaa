"""Events: the learner's decisions, the batches at which they were made, and the numbers behind them.

Events are frozen, named in the past tense, and sent through the learner's single `emit` callback. No decision reads
them back.
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
        """Return the event as plain JSON values; NaN and infinities become null."""
        return {"event": self.kind()} | {name: json_value(value) for name, value in asdict(self).items()}


@dataclass(frozen=True)
class BatchSetAside(Event):
    """The loss of the gate's choice was too high, and no newcomer accepted the batch."""

    expert: int
    loss: float
    bound: float


@dataclass(frozen=True)
class OutlierSettled(Event):
    """A set-aside batch proved to be an outlier: the expert of the preceding batch was trained on it."""

    outlier: int
    """Step at which the batch arrived."""
    expert: int


@dataclass(frozen=True)
class BatchDivided(Event):
    """The task changed within a set-aside batch: the expert of the new task was trained on its last rows only."""

    batch: int
    """Step at which the batch arrived."""
    rows: int
    """Number of rows before the change."""
    previous: int
    expert: int


@dataclass(frozen=True)
class LossReviewed(Event):
    """The loss stayed high: an expert's replay was compared with the set-aside batches (Z-test), and its wrong rows."""

    expert: int
    z_score: float
    threshold: float
    replay_loss: float
    recent_loss: float
    new_task: bool
    mistakes: float = 0.0
    """Evidence of a new task from rows predicted wrongly: a log-likelihood ratio, or 0."""


@dataclass(frozen=True)
class UpdateSkipped(Event):
    """A loss or gradient was not finite: the expert was not trained on the batch."""

    expert: int
    batch: int
    """Step at which the batch arrived."""


@dataclass(frozen=True)
class RowsLimited(Event):
    """Rows far beyond the others were limited in training; emitted when their number has doubled."""

    rows: int
    """Number of such rows so far."""


@dataclass(frozen=True)
class ExpertRolledBack(Event):
    """An expert's state was no longer finite, or it lost what it had learned: its last good state was restored."""

    expert: int
    batches: int
    """Number of batches whose training was lost."""


@dataclass(frozen=True)
class BatchSkipped(Event):
    """A bad batch was skipped (`on_bad_batch="skip"`); nothing changed. `step` is that of the next batch."""

    reason: str


@dataclass(frozen=True)
class TroubleNoticed(Event):
    """Learning is unlikely to go well: `GatedExperts` has warned of it, once. `step` is that of the next batch."""

    trouble: str
    """Name of the warning (docs/howto/warnings.md)."""
    advice: str
    """What was found, and what to do."""


@dataclass(frozen=True)
class ExpertCreated(Event):
    """A task switch was detected: a new expert was trained on the set-aside batches and is on probation."""

    expert: int
    batches: int


@dataclass(frozen=True)
class ExpertReused(Event):
    """A task switch was detected at the maximum number of experts: the best-fitting one was trained on the batches."""

    expert: int
    batches: int


@dataclass(frozen=True)
class BatchesReclaimed(Event):
    """No task switch: the gate had sent these batches to experts that refused them, but the one in use accepts them."""

    expert: int
    batches: int


@dataclass(frozen=True)
class ExpertPromoted(Event):
    """A newcomer's score was the lower one often enough: it was added to the gate."""

    expert: int
    rate: float
    """Share of its last batches on which its score was the lowest."""
    parent: int
    """Node of the tree under which it was placed."""


@dataclass(frozen=True)
class ExpertsMerged(Event):
    """An expert explains the whole replay of another: it was trained on that replay, and the other is used no more."""

    expert: int
    merged: int
    """The expert that is used no more."""
    loss: float
    """Mean loss of the first on the replay of the other, before it was trained on it."""


@dataclass(frozen=True)
class ShortlistSet(Event):
    """The numbers of experts queried for a batch and for a single row were set from the replay."""

    experts: int
    batch: int
    row: int


@dataclass(frozen=True)
class ExpertChanged(Event):
    """The expert in use changed, to an existing or a new one."""

    previous: int
    expert: int


Emit = Callable[[Event], None]


def json_value(value: Any) -> Any:
    """Return a value for JSON, which has no infinity and no NaN: they become None."""
    return None if isinstance(value, float) and not isfinite(value) else value
