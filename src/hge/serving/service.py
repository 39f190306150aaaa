"""A model that learns and predicts on request, with everything acknowledged on disk.

Acknowledged is what a call returned for. Before rows are learned, and before predicted rows may wait for their labels,
they are in the journal, on disk. From time to time the model is saved and the journal starts anew. After a crash, the
last saved model learns again what the journal has beyond it: `rows_seen_`, saved with the model, says from where.
Learning is deterministic, so the model is the same as without the crash.
"""

from __future__ import annotations

import base64
import re
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.events import Event
from hge.core.own_folder import FolderKind, hold
from hge.estimator.build import check_parameters
from hge.estimator.classifier import GatedExperts
from hge.estimator.fair_lock import lock_of
from hge.estimator.memory_need import TooLargeError
from hge.estimator.persistence import state_to_save, write_state
from hge.estimator.validation import check_targets
from hge.serving.journal import Journal
from hge.serving.waiting_room import FloatRows, Label, Visit, WaitingRoom

JOURNAL = "journal.jsonl"
SERVICE = FolderKind("service", re.compile(re.escape(JOURNAL)), lambda path: False)


@dataclass(frozen=True)
class ServiceSettings:
    """How much a service keeps, and how often it saves."""

    save_every: int = 2000
    """Rows learned between two saves of the model; what was learned since is learned again after a crash."""
    waiting_rows: int = 10_000
    """Most rows that wait for labels; the oldest are dropped."""


class UnknownIdError(KeyError):
    """No rows wait for labels under the id."""


class IdInUseError(ValueError):
    """Other rows wait for labels under the id."""


@dataclass(frozen=True)
class Prediction:
    """Labels and the probabilities of these labels."""

    labels: list[Label]
    confidence: list[float]


class ModelService:
    """One model in a folder, with one writer at a time and any number of readers.

    `learn` and `label` must be called by one thread at a time; `predict` and `wait` by any. The folder is that of a
    saved model, or a new one: then `parameters` are those of the model to be.
    """

    def __init__(
        self,
        folder: Path,
        parameters: Mapping[str, Any] | None = None,
        settings: ServiceSettings | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        self.folder, self.settings = folder, settings or ServiceSettings()
        self.room = WaitingRoom(self.settings.waiting_rows)
        self.labelled = self.right = 0
        """Rows whose label came after their prediction, and those of them that were predicted rightly."""
        self.rows_since_save = 0
        self.save_seconds = 0.0
        """Time that the last save took."""
        self.saves_failed = 0
        self._rows_at_failure = 0
        """`rows_since_save` when the last save failed; 0 if it did not."""
        self._guard = threading.Lock()  # of the journal and the room, which change together
        self._held = ExitStack()
        self._held.enter_context(hold(folder / "service", SERVICE))
        try:
            self.journal = Journal(folder / "service" / JOURNAL)
            self._held.callback(self.journal.close)
            self.model = self._open(dict(parameters or {}), on_event)
            if not self.journal.records:
                self.journal.append(self._start_record(parameters or {}))
            for record in self.journal.records:
                self._replay(record)
            self.journal.records.clear()
            self._limit_waiting_rows()
        except BaseException:
            self._held.close()
            raise

    def predict(self, rows: FloatRows) -> Prediction:
        """Predict rows. Raises NotFittedError until a batch has been learned."""
        with lock_of(self.model):  # so that no class is added in between
            probabilities = self.model.predict_proba(rows)
            classes = self.model.classes_
        labels = classes[probabilities.argmax(axis=1)].tolist()
        return Prediction(labels, probabilities.max(axis=1).tolist())

    def wait(self, name: str, visit: Visit) -> None:
        """Keep predicted rows until `label` is called with their id; from then on a crash does not lose them."""
        if len(visit.rows) > self.room.most_rows:
            raise ValueError(
                f"X: got {len(visit.rows)} rows to wait for labels, expected at most {self.room.most_rows}"
            )
        with self._guard:
            if name in self.room.visits:
                raise IdInUseError(f"id: got {name!r}, under which rows wait for labels already; expected another")
            self.journal.append(_wait_record(name, visit))
            self.room.add(name, visit)

    def learn(self, rows: FloatRows, labels: list[Label]) -> None:
        """Learn rows as the next part of the stream. A ValueError means that nothing has changed."""
        self.model.check_batch(rows, labels)
        record = {"kind": "learn", "rows": _pack(rows), "labels": labels, "at": self.rows_seen}
        with self._guard:
            self.journal.append(record)
        self._learn(rows, labels)
        self._save_if_due()

    def label(self, name: str, labels: list[Label]) -> int:
        """Learn the rows that wait under an id; return their number. A ValueError means that nothing has changed."""
        visit = self._waiting(name)
        self.model.check_batch(visit.rows, labels)
        record = {"kind": "label", "id": name, "labels": labels, "at": self.rows_seen}
        with self._guard:
            self._waiting(name)  # it may have been dropped just now
            self.journal.append(record)
            self._count(self.room.take(name), labels)
        self._learn(visit.rows, labels)
        self._save_if_due()
        return len(visit.rows)

    @property
    def rows_seen(self) -> int:
        """Rows learned, or waiting for a full batch."""
        return self.model.rows_seen_ if self.started else 0

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """Shape of a row, once the model has received one."""
        return self.model.input_shape_ if self.started else None

    @property
    def started(self) -> bool:
        """Whether the model has received rows."""
        return hasattr(self.model, "classes_")

    def save(self) -> None:
        """Save the model, and start the journal anew with the rows that wait for labels.

        Only this thread changes the model: readers wait while its state is copied, not while it is written.
        """
        if not self.rows_since_save:
            return
        started = time.monotonic()
        with lock_of(self.model):
            state = state_to_save(self.model)
        write_state(self.folder, *state)
        with self._guard:
            waiting = [_wait_record(name, visit) for name, visit in self.room.visits.items()]
            self.journal.replace([self._start_record({}), *waiting])
        self.rows_since_save, self.save_seconds = 0, time.monotonic() - started
        self._rows_at_failure = 0

    def close(self) -> None:
        """Save, and let others use the folder."""
        try:
            self._try_to_save()
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Let others use the folder, without saving: the next service learns again what the journal has."""
        self._held.close()

    def _open(self, parameters: dict[str, Any], on_event: Callable[[Event], object] | None) -> GatedExperts:
        """Load the saved model, or build a new one by the parameters given when the folder was first used."""
        first = self.journal.records[0] if self.journal.records else None
        saved = any(self.folder.glob("checkpoint-*.json"))
        if parameters and (saved or first):
            raise ValueError(f"parameters: got {', '.join(parameters)} for {self.folder}, which has a model already")
        if saved:
            return GatedExperts.load(self.folder, on_event=on_event)
        return _new_model(first["parameters"] if first else parameters, on_event)

    def _start_record(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        counts = {"labelled": self.labelled, "right": self.right, "dropped": self.room.dropped}
        limit = {"waiting_rows": self.room.most_rows}
        return {"kind": "start", "parameters": dict(parameters), "rows": self.rows_seen, **limit, **counts}

    def _limit_waiting_rows(self) -> None:
        """Follow the present setting; the journal says since when, so that the same visits leave when it is read."""
        if self.room.most_rows != self.settings.waiting_rows:
            self.journal.append({"kind": "limit", "waiting_rows": self.settings.waiting_rows})
            self.room.limit(self.settings.waiting_rows)

    def _replay(self, record: dict[str, Any]) -> None:
        """Do again what was acknowledged; what the saved model has learned already is only counted."""
        kind = record["kind"]
        if kind == "start":
            self.labelled, self.right, self.room.dropped = (record[name] for name in ("labelled", "right", "dropped"))
            self.room.limit(record["waiting_rows"])
            if self.rows_seen < record["rows"]:
                raise ValueError(
                    f"{self.folder}: got a model of {self.rows_seen} rows, expected at least {record['rows']}: the "
                    "last saved one is damaged; delete the folder `service` to go on without the rows in between"
                )
        elif kind == "limit":
            self.room.limit(record["waiting_rows"])
        elif kind == "wait":
            self.room.add(record["id"], Visit(_unpack(record["rows"]), record["predicted"]))
        else:
            if kind == "label":
                visit = self.room.take(record["id"])
                self._count(visit, record["labels"])
                rows = visit.rows
            else:
                rows = _unpack(record["rows"])
            if record["at"] >= self.rows_seen:
                with suppress(TooLargeError):  # as it was then
                    self._learn_again(rows, record["labels"])

    def _learn_again(self, rows: FloatRows, labels: list[Label]) -> None:
        """Learn rows of the journal; rows that can no longer be learned must not keep the service from starting."""
        try:
            self._learn(rows, labels)
        except TooLargeError:
            raise
        except ValueError as error:
            warnings.warn(f"{self.folder}: {len(rows)} rows of the journal were not learned: {error}", stacklevel=2)

    def _waiting(self, name: str) -> Visit:
        try:
            return self.room.visits[name]
        except KeyError:
            raise UnknownIdError(
                f"id: got {name!r}, expected that of a prediction whose label has not come yet; if it was given, it "
                f"was among the oldest when more than {self.room.most_rows} rows waited"
            ) from None

    def _count(self, visit: Visit, labels: list[Label]) -> None:
        if visit.predicted is not None:
            self.labelled += len(labels)
            self.right += sum(a == b for a, b in zip(visit.predicted, labels, strict=True))

    def _learn(self, rows: FloatRows, labels: list[Label]) -> None:
        """Learn rows batch by batch, so that readers wait for no more than one."""
        size, targets = self.model.batch_size, check_targets(labels, rows)  # once: a part may be of another type
        for start in range(0, len(rows), size):
            self.model.partial_fit(rows[start : start + size], targets[start : start + size])
        self.rows_since_save += len(rows)

    def _save_if_due(self) -> None:
        if self.rows_since_save - self._rows_at_failure >= self.settings.save_every:
            self._try_to_save()

    def _try_to_save(self) -> None:
        """Save; a failure is a warning, since what was learned is in the journal. It is tried again later."""
        try:
            self.save()
        except OSError as error:
            self.saves_failed += 1
            self._rows_at_failure = self.rows_since_save
            warnings.warn(
                f"the model was not saved: {error.filename}: {error.strerror}; the last {self.rows_since_save} rows "
                "are in the journal only, from which they are learned again at the next start",
                stacklevel=2,
            )


def _new_model(parameters: Mapping[str, Any], on_event: Callable[[Event], object] | None) -> GatedExperts:
    unknown = sorted(set(parameters) - set(GatedExperts().get_params()))
    if unknown:
        raise ValueError(f"parameters: got {unknown[0]!r}, expected parameters of GatedExperts")
    model = GatedExperts(**parameters, on_event=on_event)
    check_parameters(model)  # now, not when rows have been accepted
    return model


def _wait_record(name: str, visit: Visit) -> dict[str, Any]:
    return {"kind": "wait", "id": name, "rows": _pack(visit.rows), "predicted": visit.predicted}


def _pack(rows: FloatRows) -> dict[str, Any]:
    """Return rows as JSON values, bit for bit."""
    return {"shape": rows.shape, "float32": base64.b64encode(rows.astype("<f4").tobytes()).decode()}


def _unpack(packed: Mapping[str, Any]) -> FloatRows:
    values = np.frombuffer(base64.b64decode(packed["float32"]), dtype="<f4")
    return values.astype(np.float32).reshape(packed["shape"])
