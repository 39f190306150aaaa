"""`hge data`: find, verify, download and import the data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from hge.cli.console import PlainConsole
from hge.data.dataset_registry import DATASETS
from hge.data.datasets import data_folder, find, get, import_files, verify

app = typer.Typer(help="Find, verify, download and import the data sets.", no_args_is_help=True)
console = PlainConsole()

DataFolder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data sets.", show_default="$HGE_DATA or the cache folder")
]


@app.command()
def status(data: DataFolder = None) -> None:
    """Show which data sets are available."""
    folder = data_folder(data)
    table = Table("set", "found", "where", title=str(folder), title_justify="left", box=None)
    for name in DATASETS:
        place = find(name, folder)
        table.add_row(name, "no" if place is None else "yes", "" if place is None else str(place.relative_to(folder)))
    console.print(table)


@app.command("verify")
def verify_command(data: DataFolder = None) -> None:
    """Compare every available data set with its known checksums; exit code 1 if any is damaged."""
    folder = data_folder(data)
    table = Table("set", "verified", "what it is", "detail", title=str(folder), title_justify="left", box=None)
    damaged = False
    for name in DATASETS:
        with console.status(f"reading {name}"):
            verification = verify(name, folder)
        missing = verification.found is None
        damaged |= not verification.ok and not missing
        mark = Text("yes", "green") if verification.ok else Text("missing") if missing else Text("NO", "red")
        table.add_row(name, mark, verification.variant, verification.detail)
    console.print(table)
    if damaged:
        raise typer.Exit(1)


@app.command("get")
def get_command(name: Annotated[str, typer.Argument(help=f"{', '.join(DATASETS)}.")], data: DataFolder = None) -> None:
    """Download a data set from its official source."""
    if name not in DATASETS:
        raise ValueError(f"name: got {name!r}, expected one of {', '.join(DATASETS)}")
    console.print(f"{name}: {get(name, data_folder(data), progress=console.is_terminal)}", soft_wrap=True)


@app.command("import")
def import_command(
    source: Annotated[Path, typer.Argument(help="A folder or archive with official files.")], data: DataFolder = None
) -> None:
    """Copy data sets from another location into the data folder."""
    names = import_files(source, data_folder(data))
    console.print(f"imported {', '.join(names)} into {data_folder(data)}", soft_wrap=True)
