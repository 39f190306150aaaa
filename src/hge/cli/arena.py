"""The `hge arena` command: methods side by side on one stream, as a table, as JSON and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.cli.jobs import JobPlace, run_jobs
from hge.cli.options import EXECUTORS, check_executor, not_empty
from hge.cli.places import folder_to_write
from hge.core.files import write_json
from hge.experiments.arena import CONTESTANTS, arena_jobs, leaderboard
from hge.experiments.jobs.plan import missing_jobs
from hge.experiments.recipes import RECIPES
from hge.experiments.results import read_results
from hge.experiments.runner import CHECKPOINT_EVERY
from hge.experts.optim import resolve_device
from hge.reporting.arena_report import ARENA, CAPTION, COLUMNS, shown, write_arena

console = PlainConsole()
ACCURACIES = 5
"""Number of the leaderboard's first columns, which say what a method reaches; the others say what it costs."""
SHARED = (
    *("scenario", "recipe", "tasks", "epochs", "batch_size", "test_batch_size"),
    *("device", "precision", "versions", "threads", "machine"),
)
"""Fields of a run's protocol that all methods share."""


def arena_command(
    scenario: Annotated[str, typer.Argument(help="See `hge scenarios`.")],
    methods: Annotated[
        str, typer.Option(help=f"Some of {', '.join(CONTESTANTS)}, with commas.", show_default="all")
    ] = ",".join(CONTESTANTS),
    memory: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Rows of replay memories; may be repeated. 0: as many as GE has in its replay."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs with seeds 0 to N - 1.")] = 1,
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "default",
    epochs_scale: Annotated[float, typer.Option(help="Multiplier of the recipe's epochs.")] = 1.0,
    executor: Annotated[str, typer.Option(help=f"{' or '.join(EXECUTORS)}, as for `hge reproduce`.")] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a cluster.", show_default="one on this machine", callback=not_empty),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time; with ray: runs per GPU.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder.", show_default="runs/arena/SCENARIO", callback=folder_to_write)
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of all methods: key=value; may be repeated.")
    ] = None,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Batches between checkpoints.")] = CHECKPOINT_EVERY,
) -> None:
    """Compare methods on one stream: accuracy, forgetting, memory, cost, and what each is told."""
    check_executor(executor, ray_address)
    jobs = arena_jobs(
        scenario,
        [name.strip() for name in methods.split(",")],
        memories=memory or [0],
        seeds=seeds,
        recipe=recipe,
        epochs_scale=epochs_scale,
        device=resolve_device(device),
        assignments=assignments or [],
    )
    folder = out or Path("runs/arena") / scenario
    results = folder / "results"
    left = missing_jobs(jobs, read_results(results) if results.is_dir() else [])
    place = JobPlace(executor, ray_address, workers, results, folder / "runs", data, checkpoint_every)
    run_jobs(left, place, done=len(jobs) - len(left))
    found = [result for result in read_results(results) if len(missing_jobs(jobs, [result])) < len(jobs)]
    board = write_leaderboard(folder, found)
    for table in tables_of(board):
        console.print(table)
    console.print(CAPTION)
    console.print(f"Page: {write_arena(folder)}", soft_wrap=True)


def write_leaderboard(folder: Path, results: list[dict[str, Any]]) -> dict[str, Any]:
    """Write arena.json; return its content."""
    protocols = [result["protocol"] for result in results]
    shared = {name: protocols[0][name] for name in SHARED}
    commits = sorted({protocol["commit"] for protocol in protocols})
    board = {"protocol": shared | {"commits": commits}, "methods": leaderboard(results)}
    write_json(folder / ARENA, board)
    return board


def tables_of(board: dict[str, Any]) -> tuple[Table, Table]:
    """Build the tables of the terminal: what the methods reach, and what they cost. Both fit into 80 columns."""
    protocol = board["protocol"]
    title = f"{protocol['scenario']}, {protocol['epochs']} epochs, recipe {protocol['recipe']}"
    reached, costs = list(COLUMNS)[:ACCURACIES], list(COLUMNS)[ACCURACIES:]
    first, second = (
        Table("method", *columns, title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))
        for title, columns in (
            (title, [COLUMNS[name] for name in reached]),
            ("cost", [*(COLUMNS[name] for name in costs), "told"]),
        )
    )
    for row in board["methods"]:
        first.add_row(row["method"], *(shown(row, name) for name in reached))
        second.add_row(row["method"], *(shown(row, name) for name in costs), row["told"])
    return first, second
