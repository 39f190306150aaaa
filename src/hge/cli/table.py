"""The `hge table` command: a table of the paper beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hge.cli.console import PlainConsole
from hge.cli.places import file_to_write
from hge.experiments.paper_tables import TITLES
from hge.experiments.results import FORMATS, Line, build_table, notes, read_results

TEXT = "text"
COLOURS = {"reproduced": "green", "better": "bold green", "worse": "red", "differs": "yellow", "unclear": "yellow"}


def table_command(
    number: Annotated[int, typer.Argument(help="Table of the paper, 1 to 5.")],
    results: Annotated[Path, typer.Option(help="Folder with results of runs.")] = Path("results"),
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join((TEXT, *FORMATS))}.")] = TEXT,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="the terminal", callback=file_to_write)
    ] = None,
) -> None:
    """Show the paper's numbers beside ours: mean ± standard deviation over seeds, a verdict, and the protocol."""
    if format_ not in (TEXT, *FORMATS):
        raise ValueError(f"format: got {format_!r}, expected one of {', '.join((TEXT, *FORMATS))}")
    lines = build_table(number, read_results(results))
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    if format_ == TEXT:
        if out is None:
            _print(number, lines, PlainConsole())
        else:
            with out.open("w", encoding="utf-8") as file:
                _print(number, lines, PlainConsole(file=file, width=140))
        return
    text = FORMATS[format_](number, lines)
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")


def _print(number: int, lines: Sequence[Line], console: Console) -> None:
    """Show a table that fits a terminal: a section per scenario and figure, the protocols as numbered notes."""
    title = f"Table {number}. {TITLES[number]}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for name in ("", "paper", *(["batches", "alone"] if number >= 4 else ["ours"]), "verdict", "note"):
        table.add_column(name, no_wrap=True)
    protocols = list(dict.fromkeys(_protocol(line) for line in lines if line.seeds))
    for titles, own in _sections(number, lines).items():
        table.add_section()
        table.add_row(*titles, style="bold")
        for name, line in own:
            colour = COLOURS.get(line.verdict, "dim")
            note = str(protocols.index(_protocol(line)) + 1) if line.seeds else ""
            short = " *" if line.is_short else ""  # a word would not fit
            verdict = Text(f"{line.verdict}{short}", colour)
            ours = (line.ours, line.single_samples) if number >= 4 else (line.ours,)
            table.add_row(name, line.paper, *ours, verdict, note)
    console.print(table)
    if number >= 4:
        console.print("Batches, alone: ours, routed in batches of one task, and every sample by itself.")
    if any(line.is_short for line in lines):
        console.print("*: short, after fewer epochs than the paper's.")
    for place, protocol in enumerate(protocols, start=1):
        console.print(f"{place}: {protocol}", highlight=False)
    for text in notes(number):
        console.print(text, highlight=False)


def _sections(number: int, lines: Sequence[Line]) -> dict[tuple[str, str], list[tuple[str, Line]]]:
    """Group the lines under titles; Table 3 has many figures of one method, the others few of several methods."""
    found: dict[tuple[str, str], list[tuple[str, Line]]] = {}
    for line in lines:
        figure = line.figure.replace("_", " ").replace(".", ", ")
        title, name = (line.method, figure) if number == 3 else (figure, line.method)
        found.setdefault((line.scenario, title), []).append((name, line))
    return found


def _protocol(line: Line) -> str:
    parts = [
        f"recipe {line.recipe}",
        f"{line.epochs} epochs",
        line.precision,
        f"{line.seeds} seed{'s' if line.seeds > 1 else ''}",
        f"the paper's in {line.routing}" if line.routing else "",
    ]
    if line.unpromoted not in ("", "0"):
        parts.append(f"{line.unpromoted} unpromoted")
    if line.rows_kept:
        parts.append(f"{line.rows_kept} rows kept")
    return ", ".join(filter(None, parts))
