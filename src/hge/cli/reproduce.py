"""The `hge reproduce` command: the runs of a table or figure, with one progress display for all of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from hge.cli.console import PlainConsole, printable
from hge.cli.data import DataFolder
from hge.data.catalogue import SCENARIOS
from hge.data.datasets import data_folder, find
from hge.experiments.build import check
from hge.experiments.jobs.eta import Forecast
from hge.experiments.jobs.local import LocalExecutor
from hge.experiments.jobs.plan import (
    FIGURES,
    Job,
    build_jobs,
    filter_runs,
    missing_jobs,
    read_jobs,
    required_runs,
    table_numbers,
)
from hge.experiments.jobs.ray import RayExecutor
from hge.experiments.jobs.scheduler import SUBFOLDER, Executor, reproduce
from hge.experiments.jobs.worker import Outcome, Workspace, delete_progress, read_progress
from hge.experiments.methods import METHODS
from hge.experiments.results import read_results
from hge.experiments.runner import CHECKPOINT_EVERY
from hge.experts.optim import resolve_device

console = PlainConsole()
RECIPES = ("paper", "best")
EXECUTORS = ("local", "ray")
ALLOWED_WITH_JOBS = (
    *("jobs_file", "device", "executor", "ray_address", "workers"),
    *("results", "work", "data", "checkpoint_every", "dry_run"),
)
"""Options that set where and how jobs run, not which: allowed together with a file of jobs."""


def reproduce_command(
    context: typer.Context,
    table: Annotated[list[str] | None, typer.Option(help="Table of the paper, 1 to 5, or all.")] = None,
    figure: Annotated[list[int] | None, typer.Option(help=f"Figure, {', '.join(map(str, FIGURES))}.")] = None,
    scenario: Annotated[list[str] | None, typer.Option(help="Only this scenario; may be repeated.")] = None,
    method: Annotated[list[str] | None, typer.Option(help=f"Only this method: {', '.join(METHODS)}.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs with seeds 0 to N - 1.")] = 5,
    epochs_scale: Annotated[float, typer.Option(help="Multiplier of the paper's epochs.")] = 1.0,
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "paper",
    executor: Annotated[str, typer.Option(help="local, or ray: a cluster (pip install 'hge\\[cluster]').")] = "local",
    ray_address: Annotated[str, typer.Option(help="Address of a cluster.", show_default="one on this machine")] = "",
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; with ray: runs per GPU.")] = 1,
    jobs_file: Annotated[
        Path | None, typer.Option("--jobs", help="File of runs as printed by --dry-run, instead of a table.")
    ] = None,
    results: Annotated[Path, typer.Option(help="Folder of results; runs found there are skipped.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for runs in progress.")] = Path("runs/reproduce"),
    track: Annotated[bool, typer.Option("--track", help="Also record accuracy over the stream.")] = False,
    device: Annotated[str, typer.Option(help="auto (what this machine has), cpu, cuda.")] = "auto",
    precision: Annotated[str, typer.Option(help="Precision of products on a GPU: fp32, tf32, bf16.")] = "fp32",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the recipe: key=value; may be repeated.")
    ] = None,
    data: DataFolder = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Batches between checkpoints.")] = CHECKPOINT_EVERY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the jobs as JSON, one per line, and exit.")] = False,
) -> None:
    """Run the experiments of a table or figure; finished runs are skipped, interrupted ones are resumed."""
    for name, value, known in (("recipe", recipe, RECIPES), ("executor", executor, EXECUTORS)):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
    numbers = [number for text in table or [] for number in table_numbers(text)]
    device = resolve_device(device) if device == "auto" else device
    if jobs_file is not None:
        jobs = _jobs_from_file(jobs_file, context, device)
    else:
        chosen = filter_runs(required_runs(numbers, figure or []), scenario or [], method or [])
        if not chosen:
            raise ValueError("table: got nothing, expected --table, --figure, --jobs, or --scenario with --method")
        jobs = build_jobs(
            chosen,
            recipe=recipe,
            seeds=seeds,
            epochs_scale=epochs_scale,
            device=device,
            precision=precision,
            track=track,
            assignments=assignments or [],
        )
    left = missing_jobs(jobs, read_results(results) if results.is_dir() else [])
    if dry_run:
        for job in left:
            typer.echo(json.dumps(job.as_json()))
        typer.echo(f"To run: {len(left)}; already in {results}: {len(jobs) - len(left)}.", err=True)
        return
    console.print(f"Runs: {len(jobs)}; already in {results}: {len(jobs) - len(left)}.", soft_wrap=True)
    if left:
        local = executor == "local"
        if local:
            _check_all(left, data)
        for folder in (results / SUBFOLDER, work):
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise ValueError(f"{folder}: cannot be written to")
        at_once = min(workers, len(left))
        workspace = Workspace(work.absolute(), data.absolute() if data else None, checkpoint_every, at_once)
        on_gpu = any(job.config.device.startswith("cuda") for job in left)
        if local and on_gpu and workers > 1 and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ:
            console.print("The runs use the GPU in turn; with NVIDIA's MPS they share it (benchmarks/README.md).")
        chosen_executor: Executor = (
            LocalExecutor(workspace, workers) if local else RayExecutor(workspace, ray_address or None, workers)
        )
        _run_jobs(left, chosen_executor, workspace, results)
    _print_next_commands(numbers, results)


def _jobs_from_file(file: Path, context: typer.Context, device: str) -> list[Job]:
    """Read jobs, with the device replaced if `--device` was given; other settings of jobs are refused."""
    given = set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        # Compared by name: newer versions of typer bundle their own click, and with it their own class of sources.
        if source is not None and source.name == "COMMANDLINE":
            given.add(parameter.name)
            if parameter.name not in ALLOWED_WITH_JOBS:
                raise ValueError(
                    f"jobs: got {parameter.opts[0]} with --jobs, expected only options of where and how jobs run"
                )
    jobs = read_jobs(file)
    return [replace(j, config=replace(j.config, device=device)) for j in jobs] if "device" in given else jobs


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


def _run_jobs(jobs: Sequence[Job], executor: Executor, workspace: Workspace, results: Path) -> None:
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


def _print_next_commands(tables: Sequence[int], results: Path) -> None:
    commands = [f"hge table {number} --results {results}" for number in tables] + [f"hge report {results}"]
    console.print("See: " + "; ".join(commands), soft_wrap=True, highlight=False)
