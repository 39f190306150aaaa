"""Runs one job in its own folder, where its progress, error and result can be monitored."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from hge.core.files import write_atomically
from hge.experiments.jobs.plan import Job
from hge.experiments.methods import METHODS
from hge.experiments.run_files import commit, delete_result, read_finished
from hge.experiments.runner import CHECKPOINT_EVERY, run
from hge.experiments.tree_comparison import organise

PROGRESS, ATTEMPT, ERROR = "progress.json", "attempt.txt", "error.txt"
PROGRESS_INTERVAL = 0.5
"""Minimum seconds between two updates of the progress file."""
PATIENCE = 60.0
"""Seconds that an older attempt has to notice a newer one and to let go of the folder."""


@dataclass(frozen=True)
class Workspace:
    """Folders and limits for running jobs. On a cluster all machines must have access to these folders."""

    work: Path
    """One subfolder per job: checkpoints, progress, the run's files."""
    data: Path | None = None
    """Folder of the data sets; None for the default."""
    checkpoint_every: int = CHECKPOINT_EVERY
    runs_at_once: int = 1
    """Maximum number of runs that share the device; needed to interpret a result's speed."""

    def folder(self, name: str) -> Path:
        """Return the folder of a job."""
        return self.work / name


@dataclass(frozen=True)
class Outcome:
    """The outcome of a job: a result or an error."""

    name: str
    result: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Progress:
    """Progress of a job, in batches."""

    done: int
    total: int
    began_at: int
    """Batches done when this attempt started; above 0 if it resumed from a checkpoint."""


def run_job(job: Job, workspace: Workspace) -> Outcome:
    """Run a job, from its last checkpoint if there is one; errors are returned in the outcome."""
    folder = workspace.folder(job.name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ERROR).unlink(missing_ok=True)
    try:
        finished = read_finished(folder, job.config)
        if finished and finished["protocol"]["commit"] == commit():
            return Outcome(job.name, finished)  # it had finished, but the outcome was not delivered
        delete_result(folder)
        result = _run(job, workspace, _ProgressWriter(folder))
        return Outcome(job.name, result | {"protocol": result["protocol"] | {"runs_at_once": workspace.runs_at_once}})
    except Exception as error:
        (folder / ERROR).write_text(traceback.format_exc(), encoding="utf-8")
        return Outcome(job.name, None, f"{type(error).__name__}: {error}")


def read_progress(folder: Path) -> Progress | None:
    """Return the progress of a job; None if it has not started."""
    try:
        return Progress(**json.loads((folder / PROGRESS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def delete_progress(folder: Path) -> None:
    """Delete the progress file of an earlier attempt."""
    (folder / PROGRESS).unlink(missing_ok=True)


class _ProgressWriter:
    """Writes a job's progress to its folder, and ends this attempt if there is a newer one.

    Two attempts overlap if a worker believed dead is still running: after a network failure, or as an orphan.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.attempt = uuid4().hex
        write_atomically(folder / ATTEMPT, self.attempt)
        self.began_at: int | None = None
        self.written_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        began_at = self.began_at = done - 1 if self.began_at is None else self.began_at
        if time.monotonic() - self.written_at >= PROGRESS_INTERVAL:
            self.written_at = time.monotonic()
            if (self.folder / ATTEMPT).read_text(encoding="utf-8") != self.attempt:
                raise RuntimeError("attempt: got a newer one in the same folder, expected to be the last")
            write_atomically(self.folder / PROGRESS, json.dumps({"done": done, "total": total, "began_at": began_at}))


def _run(job: Job, workspace: Workspace, report: _ProgressWriter) -> dict[str, Any]:
    folder = workspace.folder(job.name)
    if job.config.method == "organise":

        def report_batches(done: int, total: int, phase: str) -> None:
            if phase != "orders":  # the search for Upper is short compared with training and scoring
                report(done, total)

        return organise(job.config, folder, report_batches, workspace.data, patience=PATIENCE)
    return run(
        job.config,
        folder,
        lambda step, total, learner: report(step.step + 1, total),
        workspace.data,
        resume=METHODS[job.config.method].learns_a_stream,
        checkpoint_every=workspace.checkpoint_every,
        patience=PATIENCE,
    )
