"""Runs a set of jobs: results are written as they arrive, failures are isolated, interrupted runs can resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from hge.core.files import write_json
from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.worker import Outcome

POLL_SECONDS = 0.25
SUBFOLDER = "reproduced"
"""Subfolder of the results folder."""


class Executor(Protocol):
    """Runs jobs; implemented by `local.LocalExecutor` and `ray.RayExecutor`."""

    @property
    def at_once(self) -> int:
        """Maximum number of jobs that run at the same time."""

    def start(self, jobs: Iterable[Job]) -> None:
        """Queue jobs for execution."""

    def poll(self, seconds: float) -> list[Outcome]:
        """Wait for at most `seconds`; return the outcomes of jobs that have ended, each job once."""

    def stop(self) -> None:
        """Stop running jobs; their checkpoints are kept."""


def reproduce(
    jobs: Sequence[Job],
    executor: Executor,
    results: Path,
    on_poll: Callable[[list[Outcome]], None] = lambda ended: None,
) -> list[Outcome]:
    """Run the jobs and write each result to `results`/reproduced/NAME.json; return all outcomes."""
    outcomes: list[Outcome] = []
    try:
        executor.start(jobs)
        while len(outcomes) < len(jobs):
            ended = executor.poll(POLL_SECONDS)
            for outcome in ended:
                if outcome.result is not None:
                    write_json(results / SUBFOLDER / f"{outcome.name}.json", outcome.result)
            outcomes += ended
            on_poll(ended)
    finally:
        executor.stop()
    return outcomes
