"""The `hge trees` command: the trees of runs, as text, on a page and for Graphviz."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hge.cli.console import PlainConsole
from hge.cli.places import file_to_write
from hge.core.files import write_atomically
from hge.experiments.run_files import read_result
from hge.reporting.run_report import trees_of, write_trees
from hge.reporting.tree_drawing import tree_dot, tree_text

console = PlainConsole()


def trees_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    out: Annotated[Path, typer.Option(help="Page with all trees side by side.", callback=file_to_write)] = Path(
        "runs/trees.html"
    ),
) -> None:
    """Show the trees of runs: as text here, side by side on a page, and as tree-NAME.dot for Graphviz."""
    page = write_trees(folders, out)  # first: it reads all runs, so an unreadable one fails before any output
    for folder in folders:
        for name, drawn in trees_of(read_result(folder)).items():
            console.print(f"{folder.name}: {name}", style="bold", highlight=False)
            console.print(tree_text(drawn.tree), highlight=False)
            write_atomically(folder / f"tree-{name}.dot", tree_dot(drawn))
    console.print(f"Page: {page}", soft_wrap=True)
