"""What a run leaves behind: config.json, events.jsonl, trace.csv, result.json; and reading them back."""

from __future__ import annotations

import csv
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from hge.config import RunConfig
from hge.events import Event
from hge.learner import Step

TRACE_COLUMNS = ("step", "task", "expert", "loss", "bound", "set_aside", "queried")


class RunRecorder:
    """Writes a run's files as it goes; what was written before a Ctrl-C stays."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        (folder / "result.json").unlink(missing_ok=True)  # a stale one would belong to another run
        write_json(folder / "config.json", config.as_json())
        self._events = (folder / "events.jsonl").open("w", encoding="utf-8")
        self._trace_file = (folder / "trace.csv").open("w", encoding="utf-8", newline="")
        self._trace = csv.writer(self._trace_file, lineterminator="\n")
        self._trace.writerow(TRACE_COLUMNS)

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._events.close()
        self._trace_file.close()

    def event(self, event: Event) -> None:
        """Append an event."""
        self._events.write(json.dumps(event.as_json()) + "\n")

    def step(self, task: int, step: Step) -> None:
        """Append a row to the trace. The task stands here for the reader; the learner never saw it."""
        self._trace.writerow(
            (
                step.step,
                task,
                step.expert,
                f"{step.loss:.6g}",
                f"{step.bound:.6g}",
                int(step.set_aside),
                step.queried,
            )
        )

    def result(self, result: Mapping[str, Any]) -> None:
        """Write the result; its presence says that the run came to its end."""
        write_json(self.folder / "result.json", result)


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
        for name in ("config.json", "events.jsonl", "trace.csv", "result.json"):
            if not (folder / name).is_file():
                raise ValueError(f"{folder}: no {name} there; expected the folder of a finished run")
        events = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        columns = np.loadtxt(folder / "trace.csv", delimiter=",", skiprows=1, ndmin=2).T
        return cls(
            json.loads((folder / "config.json").read_text(encoding="utf-8")),
            [json.loads(line) for line in events],
            dict(zip(TRACE_COLUMNS, columns, strict=True)),
            json.loads((folder / "result.json").read_text(encoding="utf-8")),
        )


def environment() -> dict[str, Any]:
    """Say what the run ran on: commit, versions, threads, machine."""
    packages = ("torch", "numpy", "scikit-learn")
    return {
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "threads": torch.get_num_threads(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read too."""
    path.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _commit() -> str:
    """Return the commit of the source tree, with + if it was changed since; HGE_COMMIT where there is no git."""
    here = Path(__file__).parent
    try:
        command = ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"]
        found = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return os.environ.get("HGE_COMMIT", "unknown")
    return found.stdout.strip()
