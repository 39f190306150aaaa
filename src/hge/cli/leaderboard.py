"""The `hge gates` command: the leaderboard as a table, as JSON and as a plot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.cli.places import folder_to_write
from hge.core.settings import override
from hge.experiments.jobs.plan import run_name
from hge.experiments.recipes import RECIPES, build_config
from hge.experiments.score_leaderboard import gates
from hge.experts.optim import resolve_device
from hge.reporting.run_report import write_gates

console = PlainConsole()


def gates_command(
    scenario: Annotated[str, typer.Argument(help="See `hge scenarios`.")],
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "default",
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.", show_default="the scenario's")] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    epochs_scale: Annotated[float, typer.Option(help="Multiplier of the recipe's epochs.")] = 1.0,
    validation: Annotated[bool, typer.Option(help="Evaluate on held-out training rows, not on test rows.")] = False,
    autoencoder: Annotated[bool, typer.Option(help="Also train the paper's score (slow).")] = True,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    data: DataFolder = None,
    out: Annotated[
        Path | None, typer.Option(help="Output folder.", show_default="runs/gates-NAME", callback=folder_to_write)
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: net=resnet18-cifar.")
    ] = None,
) -> None:
    """Compare all scores on the same experts: how often each selects the right expert, and at what cost."""
    config = replace(build_config(scenario, recipe=recipe, epochs_scale=epochs_scale), seed=seed)
    config = replace(config, device=resolve_device(device), tasks=config.tasks if tasks is None else tasks)
    for assignment in set_ or []:
        config = override(config, assignment)
    folder = out or Path("runs") / f"gates-{run_name(config)}"
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        line = progress.add_task(scenario, total=None)
        result = gates(
            config,
            folder,
            lambda done, total, phase: progress.update(line, completed=done, total=total, description=phase),
            data,
            validation=validation,
            autoencoder=autoencoder,
        )
    console.print(leaderboard(scenario, result))
    console.print(
        f"Each expert on its own task: {result['separate']:.2f} % accuracy. "
        f"Mixture of all experts, single samples: {result['mixture']:.2f} %.",
        soft_wrap=True,
    )
    if result["unknown"]:
        area = result["unknown"]["area"]
        console.print(
            f"Detection of the last task as unknown, without its expert: {area:.1f} % area under the ROC curve."
        )
    console.print(f"Report: {write_gates(folder)}", soft_wrap=True)


def leaderboard(scenario: str, result: dict[str, Any]) -> Table:
    """Build the table: right expert / accuracy by group size, and the cost."""
    sizes = [str(size) for size in result["groups"] if str(size) in result["scores"][0]["gate_accuracy"]]
    title = f"{scenario}, {result['part']} part: right expert / accuracy in %, by size of the group"
    table = Table("score", *sizes, "multiply-adds", "µs", title=title)
    table.columns[0].no_wrap = True
    for row in result["scores"]:
        cells = [f"{row['gate_accuracy'][s]:.1f} / {row['accuracy'][s]:.1f}" for s in sizes]
        table.add_row(row["score"], *cells, f"{row['multiply_adds']:,}", f"{row['microseconds']:.1f}")
    table.caption = "cost per image and expert"
    return table
