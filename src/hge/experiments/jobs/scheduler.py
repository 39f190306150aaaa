"""Many runs: every result is written as it comes, a failure leaves the others alone, what was cut off goes on later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.worker import Outcome
from hge.experiments.run_files import write_json

POLL_SECONDS = 0.25
SUBFOLDER = "reproduced"
"""Of the results' folder."""


class Executor(Protocol):
    """Who carries out jobs: `local_executor.LocalExecutor`, `ray_executor.RayExecutor`."""

    @property
    def at_once(self) -> int:
        """Jobs that run at the same time, at the most."""

    def start(self, jobs: Iterable[Job]) -> None:
        """Take on jobs."""

    def poll(self, seconds: float) -> list[Outcome]:
        """Wait for at most so long; return what has ended, every job once."""

    def stop(self) -> None:
        """End what is running; its checkpoints stay."""


def reproduce(
    jobs: Sequence[Job],
    executor: Executor,
    results: Path,
    on_poll: Callable[[list[Outcome]], None] = lambda ended: None,
) -> list[Outcome]:
    """Carry out the jobs and leave each result in `results`/reproduced/NAME.json; return what became of them all."""
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
