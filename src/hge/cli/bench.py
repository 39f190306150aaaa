"""`hge bench`: speed and memory, in ratios within one run."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer
from rich.table import Table

from hge.bench.calls import measure_calls
from hge.bench.data import bench_data
from hge.bench.plain_training import Precision, ScoreName
from hge.bench.population import PoolName
from hge.bench.run_profile import profile_run
from hge.bench.runs import bench_run
from hge.bench.suite import PARTS, BenchOptions, bench, device_name
from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.cli.places import file_to_write
from hge.core.files import write_json
from hge.experiments.recipes import RECIPES, build_config
from hge.experiments.run_files import commit
from hge.experts.optim import resolve_device

app = typer.Typer(help="Measure speed and memory, in ratios within one run.", no_args_is_help=True)
console = PlainConsole()

Device = Annotated[str, typer.Option(help="auto, cpu, cuda.")]
Net = Annotated[str | None, typer.Option(help="mlp or resnet18.", show_default="mlp; on a GPU, both")]
Score = Annotated[str | None, typer.Option(help="sketch or autoencoder.", show_default="both")]
Experts = Annotated[str | None, typer.Option(help='Numbers of experts: "1,5,20,100".', show_default="by part")]
Pool = Annotated[str, typer.Option(help=f"{', '.join(get_args(PoolName))}.")]
Arithmetic = Annotated[str, typer.Option("--precision", help=f"{', '.join(get_args(Precision))}.")]
Short = Annotated[bool, typer.Option("--short", help="Run a short version, as in the tests.")]
AsWritten = Annotated[bool, typer.Option(help="steps: also measure Algorithm 1 exactly as written.")]
Out = Annotated[
    Path | None,
    typer.Option(help="JSON file.", show_default="results/bench/DEVICE-PART.json", callback=file_to_write),
]
FiguresOut = Annotated[Path | None, typer.Option("--out", help="JSON file for the figures.", callback=file_to_write)]


COMMANDS = {
    "steps": (("steps",), "Training: Gated Experts against plain training of one expert, on the same batches."),
    "gates": (("gates", "switches"), "The gate alone, flat and with a shortlist, and the cost of a change of task."),
    "inference": (
        ("inference",),
        "Images predicted per second: routed one by one, by batches, and in calls of a single row.",
    ),
    "memory": (("memory",), "Bytes per expert, and the peak."),
    "all": (PARTS, "All of these, in a few minutes."),
}


def _command(name: str, parts: Sequence[str]) -> Callable[..., None]:
    """Return the command that measures these parts; all take the same options."""

    def measure(
        device: Device = "auto",
        net: Net = None,
        score: Score = None,
        experts: Experts = None,
        pool: Pool = "auto",
        precision: Arithmetic = "fp32",
        short: Short = False,
        literal: AsWritten = True,
        out: Out = None,
    ) -> None:
        options = BenchOptions(
            resolve_device(device),
            None if net is None else _one_of("net", net, ("mlp", "resnet18")),
            None if score is None else cast(ScoreName, _one_of("score", score, get_args(ScoreName))),
            None if experts is None else _numbers(experts),
            cast(PoolName, _one_of("pool", pool, get_args(PoolName))),
            cast(Precision, _one_of("precision", precision, get_args(Precision))),
            short,
            literal,
        )
        _measure_and_show(name, parts, options, out)

    return measure


for _name, (_parts, _about) in COMMANDS.items():
    app.command(_name, help=_about)(_command(_name, _parts))


@app.command("calls")
def calls_command(out: FiguresOut = None) -> None:
    """Compare `predict` then `partial_fit`, in calls of 32 rows, with a plain loop over the same network (CPU)."""
    with console.status("measuring"):
        figures = measure_calls()
    table = Table("", "", box=None, show_header=False)
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:.3g}")
    console.print(table)
    if out is not None:
        write_json(out, figures | {"load_average": os.getloadavg()[0], "commit": commit()})


@app.command("data")
def data_command(
    device: Device = "auto",
    data: DataFolder = None,
    out: FiguresOut = None,
) -> None:
    """Compare the cost of making batches with that of training on them (CIFAR-10, ResNet-18)."""
    with console.status("measuring"):
        figures = bench_data(resolve_device(device), data)
    table = Table("", "", box=None, show_header=False)
    for name in ("images", "load_seconds", "batch_ms", "training_step_ms", "data_share_percent"):
        table.add_row(name.replace("_", " "), str(figures[name]))
    console.print(table)
    if out is not None:
        write_json(out, figures)


@app.command("runs")
def runs_command(
    scenario: Annotated[str, typer.Option(help="See `hge scenarios`; the default needs no data.")] = "split-digits",
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "paper",
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each task.")] = 4,
    device: Device = "auto",
    precision: Arithmetic = "fp32",
    data: DataFolder = None,
    out: FiguresOut = None,
    profile: Annotated[
        Path | None, typer.Option(help="Text file for a profile of the run.", callback=file_to_write)
    ] = None,
) -> None:
    """Compare a whole run with plain training on the same batches, and show where the run's time goes."""
    arithmetic = cast(Precision, _one_of("precision", precision, get_args(Precision)))
    config = build_config(scenario, recipe=recipe)
    config = replace(config, epochs=epochs, device=resolve_device(device), precision=arithmetic)
    with console.status("measuring") as line:
        figures = bench_run(config, data, line.update)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_json(out, figures)
        if profile is not None:
            profile_run(config, data, profile, line.update)
    for table in _run_tables(figures):
        console.print(table)


def _run_tables(figures: dict[str, Any]) -> list[Table]:
    """Return tables of the run as a whole, of its tasks, and of the parts of its time."""
    whole = Table("", "", box=None, show_header=False)
    for name in ("milliseconds", "plain_milliseconds", "ratio", "batches", "asked", "refused", "experts"):
        whole.add_row(name.replace("_", " "), f"{figures[name]:.4g}")
    tasks = Table("task", "batches", "ms per batch", "asked", "refused", box=None)
    for row in figures["tasks"]:
        figures_of_task = (row["batches"], f"{row['milliseconds']:.3g}", f"{row['asked']:.2f}", row["refused"])
        tasks.add_row(row["task"], *map(str, figures_of_task))
    parts = Table("part", "ms per batch", "calls per batch", box=None)
    for name, milliseconds in sorted(figures["parts"].items(), key=lambda part: -part[1]):
        parts.add_row(name, f"{milliseconds:.3f}", f"{figures['calls'].get(name, 0):.2f}")
    return [whole, tasks, parts]


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
    return value


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise ValueError(f'experts: got {text!r}, expected whole numbers above 0: "1,5,20"')
    return tuple(int(word) for word in words)


def _measure_and_show(name: str, parts: Sequence[str], options: BenchOptions, out: Path | None) -> None:
    """Measure, write the file, show the tables."""
    machine = re.sub(r"[^a-z0-9]+", "-", device_name(options.device).lower()).strip("-")
    out = out or Path("results/bench") / f"{machine}-{name}{'-short' if options.short else ''}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    with console.status("measuring") as line:
        document = bench(parts, options, line.update, partial(write_json, out))
    console.print(f"{document['protocol']['device']}, {options.precision}, pool: {options.pool}")
    for part in parts:
        console.print(_table(part, document[part]))
    for row in document["left_out"]:
        console.print(f"Left out: {row['experts']} experts ({_subject(row)}): {row['reason']}.")
    console.print(f"Figures: {out}", soft_wrap=True)


COLUMNS: dict[str, dict[str, Callable[[dict[str, Any]], str]]] = {
    "steps": {
        "loop": lambda row: row["loop"],
        "ms per batch": lambda row: _spread(row["milliseconds"]),
        "ratio to eager": lambda row: _spread(row["ratio_to_eager"]),
        "ratio to graphed": lambda row: _spread(row["ratio_to_graphed"]),
        "refused": lambda row: f"{row['set_aside']} of {row['batches']}",
    },
    "gates": {
        "gate": lambda row: row["gate"],
        "ms per batch": lambda row: _spread(row["milliseconds"]),
        "queried": lambda row: f"{row['queried']:.1f}",
        "right": lambda row: f"{row['right_percent']:.0f} %",
    },
    "switches": {
        "expert": lambda row: row["to"],
        "ms per change": lambda row: _spread(row["milliseconds"]),
        "ms per batch without": lambda row: _spread(row["staying_milliseconds"]),
        "changes": lambda row: str(row["changes"]),
    },
    "inference": {
        "routing": lambda row: row["routing"],
        "images/s": lambda row: f"{row['images_per_second']['median']:,.0f}",
        "ms per call": lambda row: _spread(row["milliseconds"]),
        "ratio to plain": lambda row: _spread(row["ratio_to_plain"]),
    },
    "memory": {
        "MB per expert": lambda row: f"{row['bytes_per_expert'] / 1e6:.2f}",
        "MB on the device": lambda row: f"{row['device_bytes'] / 1e6:.1f}",
        "MB on the host": lambda row: f"{row['host_bytes'] / 1e6:.1f}",
        "peak MB": lambda row: f"{row['peak_bytes'] / 1e6:.0f}",
    },
}


def _table(part: str, rows: Sequence[dict[str, Any]]) -> Table:
    on_gpu = any(row.get("ratio_to_graphed") for row in rows)
    columns = {name: show for name, show in COLUMNS[part].items() if on_gpu or name != "ratio to graphed"}
    table = Table("", "experts", *columns, title=part, title_justify="left", box=None)
    for row in rows:
        table.add_row(_subject(row), str(row["experts"]), *(show(row) for show in columns.values()))
    return table


def _subject(row: dict[str, Any]) -> str:
    subject = row["subject"]
    usual = (subject["net"] == "mlp") == (subject["images"] == "28x28")
    return f"{subject['net']} {subject['score']}" + ("" if usual else f" {subject['images']}")


def _spread(value: dict[str, float] | None) -> str:
    return "–" if value is None else f"{value['median']:.3g} ({value['low']:.3g}–{value['high']:.3g})"
