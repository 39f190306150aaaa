"""The `hge report` command: a page from the files of one run, or of many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hge.cli.console import PlainConsole
from hge.experiments.evaluation_files import is_evaluation
from hge.reporting.evaluation_report import write_evaluation_report
from hge.reporting.results_report import write_overview
from hge.reporting.run_report import write_report

console = PlainConsole()


def report_command(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run, or of the results of many runs.")],
) -> None:
    """Rewrite report.html: for a run from its files, or one page for all results below a folder."""
    if not folder.is_dir():
        raise ValueError(f"folder: got {folder}, expected an existing folder")
    if is_evaluation(folder):
        console.print(f"Report: {write_evaluation_report(folder)}", soft_wrap=True)
        return
    of_one_run = any((folder / name).is_file() for name in ("config.json", "result.json", "gates.json"))
    path = write_report(folder) if of_one_run else write_overview(folder)
    console.print(f"Report: {path}", soft_wrap=True)
