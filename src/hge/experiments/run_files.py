"""Writing and reading of a run's files: config.json, events.jsonl, trace.csv, result.json; each JSON has its schema.

`config.json` has the schema of the lines of `events.jsonl`, too. A run that tracks its accuracy has accuracy.csv.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
import torch

from hge.core.config import RunConfig
from hge.core.events import Event
from hge.core.files import read_json, sync_folder, write_json
from hge.core.own_folder import FolderKind
from hge.core.settings import by_name
from hge.learning.online import Step

EVENTS, TRACE, ACCURACY = "events.jsonl", "trace.csv", "accuracy.csv"
CONFIG, RESULT, REPORT, CHECKPOINTS = "config.json", "result.json", "report.html", "checkpoints"
FROM_THE_BEGINNING = "to start from the beginning, leave out --resume or delete the folder"
SETTINGS_SHOWN = 5
"""Most settings that an error about other settings names."""
FLUSH_EVERY = 0.5
"""Seconds after which what was written can be read by others, such as `hge watch`."""
TRACE_COLUMNS = ("step", "task", "expert", "loss", "bound", "set_aside", "queried")
ACCURACY_COLUMNS = ("step", "accuracy")
"""Accuracy in percent of a batch before it was learned; of those that the result has, too, but written on the way."""


def _is_of_a_run(path: Path) -> bool:
    """Return whether a file is beside the settings of a run."""
    try:
        return {"scenario", "method", "learner"} <= set(read_json(path.with_name(CONFIG)))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


FILES = re.compile("|".join(map(re.escape, (CONFIG, EVENTS, TRACE, ACCURACY, RESULT, REPORT, CHECKPOINTS))))
RUN = FolderKind("run", FILES, _is_of_a_run)


class RunRecorder:
    """Writes a run's files incrementally into a folder that is held; what was written before a Ctrl-C is kept.

    With `resume_at`, a return value of `position`, the files are truncated to that length and continued.
    """

    def __init__(self, folder: Path, config: RunConfig, resume_at: Mapping[str, int] | None = None) -> None:
        self.folder = folder
        for name, length in (resume_at or {}).items():
            if (found := (folder / name).stat().st_size) < length:
                raise ValueError(
                    f"{folder / name}: got {found} bytes, expected at least {length}; the file was truncated"
                )
        for stale in (RESULT, REPORT, *(() if resume_at else (ACCURACY,))):  # left from another run
            (folder / stale).unlink(missing_ok=True)
        write_json(folder / CONFIG, config.as_json())
        self._files = {
            name: _open(folder / name, None if resume_at is None else resume_at[name])
            for name in (EVENTS, TRACE, *((ACCURACY,) if config.track else ()))
        }
        self._tables = {name: csv.writer(file, lineterminator="\n") for name, file in self._files.items()}
        if resume_at is None:
            self._tables[TRACE].writerow(TRACE_COLUMNS)
            if config.track:
                self._tables[ACCURACY].writerow(ACCURACY_COLUMNS)
        sync_folder(folder)  # a checkpoint will rely on these files
        self._flushed = time.monotonic()

    def position(self) -> dict[str, int]:
        """Flush everything to disk; return the lengths of the files in bytes."""
        for file in self._files.values():
            with _named(file):
                file.flush()
                os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.values():
            with suppress(OSError) if error else _named(file):
                file.close()

    def step(self, task: int, step: Step, events: Sequence[Event]) -> None:
        """Append a row to the trace, and its events. The task is for readers only; the learner does not receive it."""
        self.events(events)
        loss, bound = f"{step.loss:.6g}", f"{step.bound:.6g}"
        self._row(TRACE, (step.step, task, step.expert, loss, bound, int(step.set_aside), step.queried))
        if time.monotonic() - self._flushed > FLUSH_EVERY:
            self._flushed = time.monotonic()
            for file in self._files.values():
                with _named(file):
                    file.flush()

    def events(self, events: Sequence[Event]) -> None:
        """Append events."""
        with _named(self._files[EVENTS]):
            for event in events:
                self._files[EVENTS].write(json.dumps(event.as_json()) + "\n")

    def accuracy(self, step: int, percent: float) -> None:
        """Append the accuracy of a batch that was predicted before it is learned."""
        self._row(ACCURACY, (step, percent))

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the result; its presence means that the run is finished and all other files are on disk."""
        self.position()
        write_json(self.folder / RESULT, result)

    def _row(self, name: str, values: Sequence[object]) -> None:
        with _named(self._files[name]):
            self._tables[name].writerow(values)


def _open(path: Path, end: int | None) -> TextIO:
    """Open a file for writing: empty, or truncated to `end` bytes and continued."""
    if end is None:
        return path.open("w", encoding="utf-8", newline="")
    file = path.open("r+", encoding="utf-8", newline="")
    file.truncate(end)
    file.seek(0, os.SEEK_END)
    return file


@contextmanager
def _named(file: TextIO) -> Iterator[None]:
    """Add the file and the remedy to the message of a failed write."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, f"{error.strerror}; --resume continues from the last checkpoint", file.name
        ) from None


@dataclass(frozen=True)
class RunRecord:
    """A finished run, read back from its folder."""

    config: dict[str, Any]
    events: list[dict[str, Any]]
    trace: dict[str, np.ndarray[Any, np.dtype[np.float64]]]
    result: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> RunRecord:
        """Read a run's folder; an error names the file that is missing."""
        for name in (CONFIG, EVENTS, TRACE, RESULT):
            if not (folder / name).is_file():
                raise ValueError(f"{folder}: no {name} found; expected the folder of a finished run")
        return cls(
            _read(folder / CONFIG, _read_json),
            _read(folder / EVENTS, _read_events),
            _read(folder / TRACE, _read_trace),
            _read(folder / RESULT, _read_json),
        )


def read_finished(folder: Path, config: RunConfig) -> dict[str, Any] | None:
    """Return the result of a finished run with these settings in the folder; None if there is none."""
    try:
        result = _read_json(folder / RESULT)
        return result if is_run_of(folder, config) else None
    except (OSError, ValueError):
        return None


def delete_result(folder: Path) -> None:
    """Delete the result, so that the next run in the folder does not count as finished."""
    (folder / RESULT).unlink(missing_ok=True)


def is_run_of(folder: Path, config: RunConfig) -> bool:
    """Return whether the folder holds no run, or a run with these settings."""
    file = folder / CONFIG
    return not file.is_file() or bool(_read(file, _read_json) == config.as_json())


def check_settings(folder: Path, config: RunConfig) -> None:
    """Raise an error that names the settings in which the folder's run differs from these, if it has a run."""
    if not is_run_of(folder, config):
        raise settings_mismatch(folder, _read(folder / CONFIG, _read_json), config)


def settings_mismatch(folder: Path, found: Mapping[str, Any], config: RunConfig) -> ValueError:
    """Return the error for resuming with settings other than those found in the folder."""
    old, new = by_name(found), by_name(config.as_json())
    changed = [name for name in new | old if name not in old or name not in new or old[name] != new[name]]
    shown = [f"{name} {_shown(new, name)} instead of {_shown(old, name)}" for name in changed[:SETTINGS_SHOWN]]
    more = f" and {len(changed) - SETTINGS_SHOWN} more" if len(changed) > SETTINGS_SHOWN else ""
    return ValueError(
        f"resume: got other settings than those of the run in {folder} ({', '.join(shown)}{more}), expected the same; "
        f"{FROM_THE_BEGINNING}"
    )


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return repr(settings[name]) if name in settings else "(unknown)"


def read_result(folder: Path) -> dict[str, Any]:
    """Read a run's result.json; raise an error if it is missing or damaged."""
    if not (folder / RESULT).is_file():
        raise ValueError(f"{folder}: no result.json found; expected the folder of a finished run")
    result: dict[str, Any] = _read(folder / RESULT, _read_json)
    return result


def environment() -> dict[str, Any]:
    """Return the environment of the run: commit, versions, threads, machine."""
    packages = ("torch", "numpy", "scikit-learn")
    gpus = [torch.cuda.get_device_name()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "threads": torch.get_num_threads(),
        "machine": ", ".join([f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores", *gpus]),
    }


def _read(path: Path, reader: Callable[[Path], Any]) -> Any:
    try:
        return reader(path)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged, expected a file written by `hge run` ({error})") from None


def _read_json(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict) or not value:
        raise ValueError("it contains no settings or figures")
    return value


def _read_events(path: Path) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for event in events:
        _ = event["event"], event["step"]
    return events


def _read_trace(path: Path) -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    if not lines:
        raise ValueError("it contains no batch")
    return dict(zip(TRACE_COLUMNS, np.loadtxt(lines, delimiter=",", ndmin=2).T, strict=True))


def commit() -> str:
    """Return HGE_COMMIT if set, else the commit of the source tree, with + if there are uncommitted changes."""
    given = os.environ.get("HGE_COMMIT")
    if given:
        return given
    here = Path(__file__)
    try:
        # An installed package may be inside another project's tree, whose commit is irrelevant.
        _git(here.parent, "ls-files", "--error-unmatch", here.name)
        return _git(here.parent, "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *command: str) -> str:
    found = subprocess.run(["git", *command], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return found.stdout.strip()
