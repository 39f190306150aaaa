"""The `hge predict` command: a saved model's predictions for files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hge.cli.console import PlainConsole
from hge.cli.options import check_executor, not_empty
from hge.cli.places import file_to_write
from hge.data.input_file import INPUT_FORMATS, read_inputs
from hge.estimator.classifier import GatedExperts
from hge.serving.bulk import OUT_FORMATS, Answers, answer_here, answer_on_ray, check_out, write_answers

console = PlainConsole()


def predict_command(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.", show_default=False)],
    data: Annotated[
        Path, typer.Argument(help=f"Rows: {', '.join(INPUT_FORMATS)}; or a folder of images.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(help=f"File to write: {', '.join(OUT_FORMATS)}.", show_default=False, callback=file_to_write),
    ],
    ignore: Annotated[list[str] | None, typer.Option(help="Column to leave out; may be repeated.")] = None,
    executor: Annotated[str, typer.Option(help="local, or ray: on a cluster, a copy of the model per CPU.")] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="Address of a running Ray cluster.", show_default="start one here", callback=not_empty),
    ] = None,
) -> None:
    """Predict the rows of a file, or a folder of images, with a saved model.

    Writes one line per row: its number or file, the label, the probability of that label, and the expert.
    """
    check_out(out)
    check_executor(executor, ray_address)
    loaded = GatedExperts.load(model)
    inputs = read_inputs(data, tuple(loaded.input_shape_), tuple(ignore or ()))
    found: list[Answers] = []
    columns = (TextColumn("rows"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console) as progress:
        line = progress.add_task("rows", total=len(inputs.rows))
        on_ray = executor == "ray"
        answers = answer_on_ray(model, inputs.rows, ray_address) if on_ray else answer_here(loaded, inputs.rows)
        for part in answers:
            found.append(part)
            progress.advance(line, len(part.label))
    write_answers(out, inputs, found)
    console.print(f"{len(inputs.rows):,} predictions: {out}", soft_wrap=True)
