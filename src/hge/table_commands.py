"""The `hge table` command: a table of the paper beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hge.tables import FORMATS, build_table, read_results


def table_command(
    number: Annotated[int, typer.Argument(help="Table of the paper, 1 to 5.")],
    results: Annotated[Path, typer.Option(help="Folder with results of runs.")] = Path("results"),
    format_: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "markdown",
    out: Annotated[Path | None, typer.Option(help="File to write.  [default: the terminal]")] = None,
) -> None:
    """Show the paper's numbers beside ours: mean ± standard deviation over seeds, a verdict, and the protocol."""
    if format_ not in FORMATS:
        raise ValueError(f"format: got {format_!r}, expected one of {', '.join(FORMATS)}")
    text = FORMATS[format_](number, build_table(number, read_results(results)))
    if out is None:
        typer.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
