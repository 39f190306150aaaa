"""The `hge reproduce` command: the runs of a table or figure, with one progress display for all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.cli.jobs import JobPlace, run_jobs
from hge.cli.options import check_executor, not_empty
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
from hge.experiments.methods import METHODS
from hge.experiments.results import read_results
from hge.experiments.runner import CHECKPOINT_EVERY
from hge.experts.optim import resolve_device

console = PlainConsole()
RECIPES = ("paper", "best")
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
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a cluster.", show_default="one on this machine", callback=not_empty),
    ] = None,
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
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Batches between checkpoints; 0: none.")
    ] = CHECKPOINT_EVERY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the jobs as JSON, one per line, and exit.")] = False,
) -> None:
    """Run the experiments of a table or figure; finished runs are skipped, interrupted ones are resumed."""
    if recipe not in RECIPES:
        raise ValueError(f"recipe: got {recipe!r}, expected one of {', '.join(RECIPES)}")
    check_executor(executor, ray_address)
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
    place = JobPlace(executor, ray_address, workers, results, work, data, checkpoint_every)
    run_jobs(left, place, done=len(jobs) - len(left))
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


def _print_next_commands(tables: Sequence[int], results: Path) -> None:
    commands = [f"hge table {number} --results {results}" for number in tables] + [f"hge report {results}"]
    console.print("See: " + "; ".join(commands), soft_wrap=True, highlight=False)
