"""What is tracked: a model as it learns, or the files of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.event_text import describe_events
from hge.core.events import Event
from hge.estimator.classifier import GatedExperts
from hge.experiments.run_files import RunRecord
from hge.tracking.tracker import Tracker

COLUMNS = ("loss", "bound", "expert", "set_aside", "experts")
Columns = Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]


class ModelTracking:
    """Sends what is new in a model to a tracker, whenever `update` is called.

    Of the batches since the last call those of `history_` are sent, all of them if it is called often enough.
    """

    def __init__(self, model: GatedExperts, tracker: Tracker) -> None:
        self.model, self.tracker = model, tracker
        self._step = -1
        self._event: Event | None = None

    def update(self, **values: float) -> None:
        """Send new batches and decisions, and the numbers given, such as an accuracy, under the last batch."""
        if not hasattr(self.model, "classes_"):
            return
        history, events = self.model.history_, self._new_events()
        if not len(history["step"]):
            return
        new = history["step"] > self._step
        numbers = {"experts": float(self.model.n_experts_), "rows": float(self.model.rows_seen_), **values}
        _send(self.tracker, {name: column[new] for name, column in history.items()}, events)
        self._step = int(history["step"][-1])
        self.tracker.log(self._step, numbers)

    def _new_events(self) -> list[dict[str, Any]]:
        events = list(self.model.events_)
        known = next((place for place, event in enumerate(events) if event is self._event), -1)
        self._event = events[-1] if events else None
        return [event.as_json() for event in events[known + 1 :]]


def track_run(folder: Path, tracker: Tracker) -> None:
    """Send the batches, decisions and figures of a finished run to a tracker; with its accuracy, if it was tracked."""
    record = RunRecord.read(folder)
    tracked = record.result.get("tracked", {"prequential": []})
    accuracies = {step: {"accuracy": percent / 100} for step, percent in tracked["prequential"]}
    _send(tracker, record.trace | {"experts": _experts(record)}, record.events, accuracies)
    figures = {name: float(value) for name, value in record.result.items() if isinstance(value, int | float)}
    tracker.log(int(record.trace["step"][-1]), {name: value for name, value in figures.items() if isfinite(value)})


def _experts(record: RunRecord) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return how many experts there were after each batch."""
    changes = {"expert_created": 1, "experts_merged": -1}
    steps = [(event["step"], changes[event["event"]]) for event in record.events if event["event"] in changes]
    found = 1 + sum((change * (record.trace["step"] >= step) for step, change in steps), np.zeros(1))
    return np.broadcast_to(found, record.trace["step"].shape)


def _send(
    tracker: Tracker,
    trace: Columns,
    events: Iterable[Mapping[str, Any]],
    more: Mapping[int, Mapping[str, float]] | None = None,
) -> None:
    """Send batches, with `more` of some, and decisions in the order of the stream."""
    lines = describe_events(events)
    for number, step in enumerate(trace["step"].astype(int).tolist()):
        while lines and lines[0]["step"] <= step:
            line = lines.pop(0)
            tracker.mark(line["step"], line["text"])
        numbers = {name: float(trace[name][number]) for name in COLUMNS if name in trace}
        numbers |= (more or {}).get(step, {})
        tracker.log(step, {name: value for name, value in numbers.items() if isfinite(value)})
    for line in lines:
        tracker.mark(line["step"], line["text"])
