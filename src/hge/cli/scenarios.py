"""The `hge scenarios` command: all scenarios, and which of them can run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.data.catalogue import SCENARIOS
from hge.data.dataset_registry import DATASETS
from hge.data.datasets import data_folder, find
from hge.experiments.recipes import build_config

console = PlainConsole()

BUNDLED = {
    "split-digits": (10, 1_437, 1_880),
    "permuted-digits": (10, 1_437, 9_000),
    "recurring-digits": (10, 1_437, 3_360),
}
"""What `build_and_count` returns for the scenarios that need no data set, so that listing them needs no torch."""


def scenarios_command(
    data: DataFolder = None,
    count: Annotated[
        bool, typer.Option("--count", help="Read the data sets, to count classes, images and batches.")
    ] = False,
) -> None:
    """List the scenarios, what they consist of, and whether their data are available."""
    folder = data_folder(data)
    table = Table(box=None, padding=(0, 1, 0, 0))
    table.add_column("scenario", no_wrap=True)
    for number in ("tasks", "classes", "images", "epochs", "batches"):
        table.add_column(number, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    table.add_column("about")
    absent = [name for name in DATASETS if find(name, folder) is None]
    for info in SCENARIOS.values():
        missing = not set(info.datasets).isdisjoint(absent)
        counts = ["", "", ""]
        if info.name in BUNDLED:
            counts = [str(number) for number in BUNDLED[info.name]]
        elif count and info.datasets and not missing:
            with console.status(f"reading {info.name}"):
                counts = [str(number) for number in build_and_count(info.name, folder)]
        available = Text("no", "red") if missing else Text("yours" if info.name == "image-folder" else "yes")
        epochs = str(info.paper.epochs)
        table.add_row(info.name, str(info.tasks), *counts[:2], epochs, counts[2], available, info.about)
    console.print(table)
    console.print(f"Data sets are looked for in {folder}; see `hge data`.", soft_wrap=True)
    if absent:
        console.print(f"Not found: {', '.join(absent)}.", soft_wrap=True)


def build_and_count(name: str, folder: Path) -> tuple[int, int, int]:
    """Return the numbers of classes, images and batches of a scenario with available data (default recipe, seed 0)."""
    # Imported here: they load torch, which is not needed without --count.
    from hge.core.randomness import Keys
    from hge.experiments.build import build_scenario

    config = build_config(name)
    scenario = build_scenario(config, Keys(0), folder)
    return scenario.classes, scenario.images, scenario.batches(config.batch_size, config.epochs)
