"""Runs many jobs from the command line, with one progress display for all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from hge.cli.console import PlainConsole, printable
from hge.cli.places import check_folder
from hge.data.catalogue import SCENARIOS
from hge.data.datasets import data_folder, find
from hge.experiments.build import check
from hge.experiments.jobs.eta import Forecast
from hge.experiments.jobs.local import LocalExecutor
from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.ray import RayExecutor
from hge.experiments.jobs.scheduler import SUBFOLDER, Executor, reproduce
from hge.experiments.jobs.worker import Outcome, Workspace, delete_progress, read_progress
from hge.experiments.methods import METHODS

console = PlainConsole()


@dataclass(frozen=True)
class JobPlace:
    """Where and how jobs run."""

    executor: str
    ray_address: str | None
    workers: int
    results: Path
    """Folder of the results of finished runs."""
    work: Path
    """Folder for runs in progress."""
    data: Path | None
    checkpoint_every: int


def run_jobs(jobs: Sequence[Job], place: JobPlace, done: int) -> None:
    """Run jobs; `done` others already have a result. Exits with code 1 if one fails."""
    console.print(f"Runs: {len(jobs) + done}; already in {place.results}: {done}.", soft_wrap=True)
    if not jobs:
        return
    local = place.executor == "local"
    if local:
        _check_all(jobs, place.data)
    for option, folder in (("results", place.results / SUBFOLDER), ("work", place.work)):
        check_folder(option, folder)
        folder.mkdir(parents=True, exist_ok=True)
    data = place.data.absolute() if place.data else None
    workspace = Workspace(place.work.absolute(), data, place.checkpoint_every, min(place.workers, len(jobs)))
    on_gpu = any(job.config.device.startswith("cuda") for job in jobs)
    if local and on_gpu and place.workers > 1 and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
        console.print("The runs use the GPU in turn; with NVIDIA's MPS they share it (benchmarks/README.md).")
    executor: Executor = (
        LocalExecutor(workspace, place.workers) if local else RayExecutor(workspace, place.ray_address, place.workers)
    )
    _run_all(jobs, executor, workspace, place.results)


def _check_all(jobs: Sequence[Job], data: Path | None) -> None:
    """Raise an error if a job cannot run here, before any starts; all missing data sets are reported at once."""
    folder, needed = data_folder(data), set[str]()
    for config in (job.config for job in jobs):
        check(config)
        needed |= {
            name for scenario in (config.scenario, config.mix) if scenario for name in SCENARIOS[scenario].datasets
        }
    missing = sorted(name for name in needed if find(name, folder) is None)
    if missing:
        commands = "; ".join(f"hge data get {name}" for name in missing)
        raise ValueError(f"data: got no {', '.join(missing)} in {folder}, expected all of them ({commands})")


def _run_all(jobs: Sequence[Job], executor: Executor, workspace: Workspace, results: Path) -> None:
    try:
        with _display(jobs, executor, workspace) as show:
            outcomes = reproduce(jobs, executor, results, show)
    except KeyboardInterrupt:
        console.print(
            f"Stopped. Finished runs are in {results / SUBFOLDER}; the same command continues.", soft_wrap=True
        )
        restarted = sorted({m for m in (job.config.method for job in jobs) if not METHODS[m].learns_a_stream})
        if restarted:
            console.print(f"Cut-off runs of {', '.join(restarted)} have no checkpoints and start again.")
        raise
    failed = [outcome for outcome in outcomes if outcome.result is None]
    if failed:
        names = ", ".join(outcome.name for outcome in failed)
        message = (
            f"{len(failed)} of {len(jobs)} runs failed: {names}. The errors are in {workspace.work}/NAME/error.txt."
        )
        console.print(message, soft_wrap=True, highlight=False)
        raise typer.Exit(1)


@contextmanager
def _display(
    jobs: Sequence[Job], executor: Executor, workspace: Workspace
) -> Iterator[Callable[[list[Outcome]], None]]:
    """Show one progress line for all runs, and one for each run in progress."""
    for job in jobs:
        delete_progress(workspace.folder(job.name))
    forecast = Forecast([job.name for job in jobs], [(j.config.scenario, j.config.method) for j in jobs])
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console) as progress:
        whole = progress.add_task("all runs", total=1.0, status="")
        lines: dict[str, TaskID] = {}

        def show(ended: list[Outcome]) -> None:
            for outcome in ended:
                completed = outcome.result is not None and not outcome.result.get("dnf")
                forecast.ended(outcome.name, time.monotonic(), whole=completed)
                if outcome.name in lines:
                    progress.remove_task(lines.pop(outcome.name))
                progress.console.print(_one_line(outcome), soft_wrap=True, highlight=False)
            for name in forecast.unfinished:
                seen = read_progress(workspace.folder(name))
                if seen is not None:
                    forecast.update(name, seen, time.monotonic())
                    if name not in lines:
                        lines[name] = progress.add_task(name, total=1.0, status="")
                    progress.update(
                        lines[name], completed=seen.done / seen.total, status=f"{seen.done:,} of {seen.total:,}"
                    )
            progress.update(whole, completed=forecast.share, status=forecast.status(executor.at_once))

        yield show


def _one_line(outcome: Outcome) -> str | Text:
    if outcome.result is None:
        return Text.assemble(("failed", "red"), f" {outcome.name}: {printable(outcome.error)}")
    if "organisation" in outcome.result:
        hge = outcome.result["organisation"]["hge"]
        return f"{outcome.name}: HGE {hge['accuracy']:.2f} % right, {hge['experts_queried']:.2f} experts queried"
    if outcome.result["dnf"]:
        return f"{outcome.name}: did not finish, more than five experts within one task"
    accuracy = outcome.result["accuracy_batch"]
    return f"{outcome.name}: {accuracy:.2f} % (batches), {outcome.result['accuracy_sample']:.2f} % (single samples)"
