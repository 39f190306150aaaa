"""The `hge evaluate` command: Gated Experts beside other methods on a user's stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from hge.cli.console import PlainConsole
from hge.cli.places import folder_to_write
from hge.core.own_folder import hold
from hge.data.table_file import FORMATS, read_table
from hge.experiments.evaluation_files import EVALUATION, clear_folder, write_evaluation
from hge.experiments.run_files import environment
from hge.experiments.stream_evaluation import MethodResult, StreamMethod, StreamPlan, plan_stream
from hge.experiments.stream_evaluation import Progress as Report
from hge.experiments.stream_opponents import STREAM_METHODS, available_methods, build_methods
from hge.reporting.evaluation_report import write_evaluation_report

console = PlainConsole()


def evaluate_command(
    file: Annotated[Path, typer.Argument(help=f"The stream, oldest row first: {', '.join(FORMATS)}.")],
    label: Annotated[
        str | None, typer.Option(help="Column of the labels. In npz files: an array.", show_default="y in npz files")
    ] = None,
    time: Annotated[
        str | None, typer.Option(help="Column to sort the rows by; not a feature.", show_default="file order")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    drop_missing: Annotated[bool, typer.Option("--drop-missing", help="Leave out rows with missing values.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of rows.", show_default="all")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows that are predicted, then learned, at once.")] = 32,
    segments: Annotated[int, typer.Option(min=1, help="Equal parts of the stream for retention.")] = 10,
    methods: Annotated[
        str | None,
        typer.Option(help=f"Some of {', '.join(STREAM_METHODS)}, with commas.", show_default="all installed"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for result.json and report.html.", callback=folder_to_write)] = Path(
        "runs/evaluate"
    ),
) -> None:
    """Compare Gated Experts with other methods on your stream, and write result.json and report.html."""
    with hold(out, EVALUATION):
        ignored = tuple(ignore or ())
        table = read_table(file, label, time=time, ignore=ignored, limit=limit, drop_missing=drop_missing)
        plan = plan_stream(table.X, table.y, batch=batch, segments=segments)
        torch.set_num_threads(1)  # the networks are too small to parallelise
        names = _names(methods)
        built = build_methods(names, table.X, table.y, seed)
        protocol = {
            "file": file.name,
            "label": label,
            "time": time,
            "ignored": list(ignored),
            "rows": len(table.y),
            "rows_dropped": table.dropped,
            "features": len(table.features),
            "classes": len(set(table.y.tolist())),
            "batch": batch,
            "segments": segments,
            "methods": names,
            "seed": seed,
            **_environment(names),
        }
        if table.dropped:
            console.print(f"Rows with missing values, left out: {table.dropped:,}")
        _evaluate(plan, built, out, protocol)


def _evaluate(plan: StreamPlan, methods: dict[str, StreamMethod], out: Path, protocol: dict[str, Any]) -> None:
    clear_folder(out)
    found: list[MethodResult] = []
    try:
        with _progress() as report:
            for name, method in methods.items():
                found.append(plan.run(name, method, report))
    except KeyboardInterrupt:
        write_evaluation(out, plan, found, protocol, interrupted=True)
        write_evaluation_report(out)
        finished = ", ".join(result.name for result in found) or "no method"
        console.print(f"Stopped. Finished: {finished}; their figures are in {out}.", soft_wrap=True)
        raise
    result = write_evaluation(out, plan, found, protocol)
    console.print(_table(result))
    console.print(result["advice"], highlight=False, soft_wrap=True)
    console.print(f"Report: {write_evaluation_report(out)}", soft_wrap=True)


def _names(methods: str | None) -> list[str]:
    """Return the names of the methods, however their capitals are written."""
    if methods is None:
        return available_methods()
    known = {name.lower(): name for name in STREAM_METHODS}
    names = [known.get(name.strip().lower(), name.strip()) for name in methods.split(",") if name.strip()]
    if not names:
        raise ValueError(f"methods: got nothing, expected some of {', '.join(STREAM_METHODS)}")
    return list(dict.fromkeys(names))


def _environment(names: list[str]) -> dict[str, Any]:
    found = environment()
    packages = {STREAM_METHODS[name].needs for name in names} - {""}
    return found | {"versions": found["versions"] | {package: version(package) for package in sorted(packages)}}


@contextmanager
def _progress() -> Iterator[Report]:
    """Show one progress line per method: rows done, accuracy so far, time left."""
    columns = (
        TextColumn("{task.description:<14}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeRemainingColumn(compact=True),
    )
    lines: dict[str, Any] = {}
    with Progress(*columns, console=console) as progress:

        def report(name: str, done: int, total: int, accuracy: float) -> None:
            if name not in lines:
                lines[name] = progress.add_task(name, total=total, accuracy="")
            progress.update(lines[name], completed=done, accuracy=f"{accuracy:.1f} %")

        yield report


def _table(result: dict[str, Any]) -> Table:
    protocol = result["protocol"]
    title = f"{protocol['file']}: {result['rows']:,} rows, batches of {protocol['batch']}"
    table = Table("method", title=title, title_style="bold")
    for heading in ("accuracy", "retention", "seconds"):
        table.add_column(heading, justify="right")
    best = {figure: max(method[figure] for method in result["methods"]) for figure in ("accuracy", "retention")}
    for method in result["methods"]:
        cells = [
            Text(f"{method[figure]:.1f} %", "bold" if method[figure] == best[figure] else "")
            for figure in ("accuracy", "retention")
        ]
        table.add_row(method["name"], *cells, f"{method['seconds']:.1f}")
    return table
