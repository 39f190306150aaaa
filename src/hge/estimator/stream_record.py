"""What an estimator keeps of its stream: the last events, counts, and a history of bounded size."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from math import isfinite
from typing import Any

import numpy as np
import torch

from hge.core import events
from hge.core.event_text import sentence
from hge.core.events import Event
from hge.learning.online import Step

EVENTS_KEPT = 1000
POINTS = 1024
"""Batches in the history; when it is full, every two neighbours become one."""
COLUMNS = ("step", "expert", "loss", "bound", "set_aside")
KINDS = {kind.kind(): kind for kind in Event.__subclasses__()}
SWITCHES = (events.ExpertCreated, events.ExpertPromoted, events.ExpertChanged, events.ExpertsMerged)
"""Events that are kept apart, since those of batches that are set aside would soon displace them."""
LEVELS = dict.fromkeys((*SWITCHES, events.ExpertReused, events.ExpertRolledBack), logging.INFO) | {
    events.BatchSkipped: logging.WARNING
}
"""Levels at which events are logged; others are logged at DEBUG."""
logger = logging.getLogger("hge")

Columns = Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
Point = tuple[float, float, float, float, float]


class StreamRecord:
    """Event handler and history of one model.

    The history has one batch for every `stride`: the first that was set aside or, if none was, the first.

    >>> record = StreamRecord()
    >>> for step in range(1500):
    ...     record.add(Step(step, 0, 0.5, 1.0, step == 701, 0, ()))
    >>> record.stride, len(record.columns()["step"]), 701 in record.columns()["step"]
    (2, 750, True)
    """

    def __init__(self) -> None:
        self.kept: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self.switches: deque[Event] = deque(maxlen=EVENTS_KEPT)
        """The last events of `SWITCHES`."""
        self.new: deque[Event] = deque(maxlen=EVENTS_KEPT)
        """Events that were not delivered yet."""
        self.rows = 0
        """Rows received to be learned."""
        self.switched = 0
        """How often the expert in use changed."""
        self.skipped = 0
        self.stride = 1
        self.points: list[Point] = []

    def __call__(self, event: Event) -> None:
        """Record an event, while a batch is being learned; `deliver` follows when it has been."""
        self.kept.append(event)
        self.new.append(event)
        if isinstance(event, SWITCHES):
            self.switches.append(event)
        self.switched += isinstance(event, events.ExpertChanged)
        self.skipped += isinstance(event, events.BatchSkipped)

    def add(self, step: Step) -> None:
        """Add the outcome of a batch to the history."""
        point = (step.step, step.expert, step.loss, step.bound, step.set_aside)
        if step.step // self.stride > (self.points[-1][0] // self.stride if self.points else -1):
            self.points.append(point)
            if len(self.points) > POINTS:
                self._halve()
        elif step.set_aside and not self.points[-1][4]:
            self.points[-1] = point

    def _halve(self) -> None:
        self.stride *= 2
        points, self.points = self.points, []
        for point in points:
            if not self.points or point[0] // self.stride > self.points[-1][0] // self.stride:
                self.points.append(point)
            elif point[4] and not self.points[-1][4]:
                self.points[-1] = point

    def columns(self) -> Columns:
        """Return the history, column by column, as in a run's trace."""
        table = np.array(self.points, dtype=np.float64).reshape(-1, len(COLUMNS))
        return dict(zip(COLUMNS, table.T, strict=True))

    def deliver(self, on_event: Callable[[Event], object] | None) -> None:
        """Log the new events and pass them to the callback, between two batches; its exceptions are the caller's."""
        while self.new:
            event = self.new.popleft()
            level = LEVELS.get(type(event), logging.DEBUG)
            if logger.isEnabledFor(level):
                logger.log(level, "batch %d: %s", event.step, _text(event))
            if on_event is not None:
                on_event(event)

    def state(self) -> tuple[dict[str, Any], torch.Tensor]:
        """Return the state to save: facts as JSON values, and the history."""
        counts = {name: getattr(self, name) for name in ("rows", "switched", "skipped", "stride")}
        kept = {name: [_saved(event) for event in getattr(self, name)] for name in ("kept", "switches", "new")}
        return counts | kept, torch.from_numpy(np.array(self.points, dtype=np.float64).reshape(-1, len(COLUMNS)))

    @classmethod
    def of(cls, facts: Mapping[str, Any], points: torch.Tensor) -> StreamRecord:
        """Return the record of a saved state; raise a ValueError if it is not one."""
        if points.shape[1:] != (len(COLUMNS),) or len(points) > POINTS or points.dtype != torch.float64:
            raise ValueError(f"history: got {tuple(points.shape)}, expected at most {POINTS} x {len(COLUMNS)}")
        if not points[:, :2].isfinite().all():
            raise ValueError(
                "history: got steps or experts that are not finite, expected numbers of batches and experts"
            )
        if facts["stride"] < 1:
            raise ValueError(f"facts.record.stride: got {facts['stride']}, expected at least 1")
        record = cls()
        for name in ("rows", "switched", "skipped", "stride"):
            setattr(record, name, facts[name])
        for name in ("kept", "switches", "new"):
            getattr(record, name).extend(map(_read_event, facts[name]))
        record.points = [(a, b, c, d, e) for a, b, c, d, e in points.tolist()]
        return record


def _text(event: Event) -> str:
    if isinstance(event, events.ExpertChanged):
        return f"The expert in use changed from {event.previous} to {event.expert}."
    return sentence(event.as_json(), returned=False) or str(event)


def _saved(event: Event) -> dict[str, Any]:
    """Return an event as JSON values; unlike `as_json`, infinities and NaN are kept, as text."""
    values = {name: value if _is_json(value) else str(value) for name, value in asdict(event).items()}
    return {"event": event.kind()} | values


def _is_json(value: Any) -> bool:
    return not isinstance(value, float) or isfinite(value)


def _read_event(values: Mapping[str, Any]) -> Event:
    """Return the event of saved values; raise a ValueError if they are none."""
    kind = KINDS.get(values["event"])
    if kind is None or {field.name for field in fields(kind)} != values.keys() - {"event"}:
        raise ValueError(f"facts.record: got {values['event']!r} of {len(values)} values, expected an event")
    found = {field.name: _value(field.type, values[field.name]) for field in fields(kind)}
    return kind(**found)


def _value(kind: Any, value: Any) -> Any:
    """Return a saved value as one of the kind that a field of an event is annotated with."""
    if kind == "float":
        return float(value)
    if type(value).__name__ != kind:
        raise ValueError(f"facts.record: got {str(value)[:40]!r}, expected {kind}")
    return value
