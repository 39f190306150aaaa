"""The `hge run` and `hge demo` commands: a run with a progress line, a table of its figures, and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hge.cli.console import PlainConsole
from hge.cli.data import DataFolder
from hge.cli.options import not_empty
from hge.cli.places import folder_to_write
from hge.core.config import RunConfig
from hge.core.settings import override
from hge.experiments.build import check, check_resumable
from hge.experiments.jobs.plan import run_name
from hge.experiments.methods import METHODS
from hge.experiments.recipes import RECIPES, build_config
from hge.experiments.run_files import CHECKPOINTS, check_settings, read_finished
from hge.experiments.runner import CHECKPOINT_EVERY, run
from hge.experiments.tree_comparison import organise
from hge.experts.optim import resolve_device
from hge.learning.checkpoint import has_checkpoint
from hge.learning.online import OnlineLearner, Step
from hge.reporting.run_report import ORGANISATIONS, write_report

console = PlainConsole()

Seed = Annotated[int, typer.Option(help="Random seed.")]
Out = Annotated[Path, typer.Option(help="Folder for the run's files.", callback=folder_to_write)]


def demo_command(
    out: Out = Path("runs/demo"),
    seed: Seed = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
) -> None:
    """Learn Split Digits from a stream without task labels, in seconds, and write a report of the run."""
    console.print("Ten digits arrive in pairs: five tasks. The learner is not given task labels or boundaries.")
    torch.set_num_threads(1)  # 8×8 images are too small to parallelise; on a busy machine threads wait for each other
    config = replace(build_config("split-digits"), seed=seed, device=resolve_device(device))
    run_and_show(config, out)


def run_command(
    scenario: Annotated[str, typer.Argument(help="See `hge scenarios`.")],
    method: Annotated[str, typer.Option(help=f"{', '.join(METHODS)}.")] = "ge",
    recipe: Annotated[str, typer.Option(help=f"{', '.join(RECIPES)}.")] = "default",
    score: Annotated[
        str | None,
        typer.Option(help="sketch, class-sketch or autoencoder.", show_default="the recipe's", callback=not_empty),
    ] = None,
    routing: Annotated[str, typer.Option(help="Routing shown in the report: sample or batch.")] = "sample",
    tasks: Annotated[int | None, typer.Option(help="Number of tasks.", show_default="the scenario's")] = None,
    seed: Seed = 0,
    epochs_scale: Annotated[float, typer.Option(help="Multiplier of the recipe's epochs.")] = 1.0,
    mix: Annotated[
        str | None, typer.Option(help="Another scenario, whose tasks alternate with this one's.", callback=not_empty)
    ] = None,
    visits: Annotated[
        str | None,
        typer.Option(help='Order of tasks, with optional epoch factors: "0 1 0:0.5 2".', callback=not_empty),
    ] = None,
    blend: Annotated[int, typer.Option(help="Batches over which one task fades into the next.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    pool: Annotated[str, typer.Option(help="auto, eager (plain reference), stacked (fast).")] = "auto",
    precision: Annotated[str, typer.Option(help="Precision of products on a GPU: fp32, tf32, bf16.")] = "fp32",
    on_bad_batch: Annotated[
        str, typer.Option(help="raise or skip, for a batch with NaN, a wrong shape or unknown labels.")
    ] = "raise",
    track: Annotated[bool, typer.Option("--track", help="Record accuracy over the stream (slower).")] = False,
    data: DataFolder = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run's files.", show_default="runs/NAME", callback=folder_to_write),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: learner.epsilon=5."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume an interrupted run from its last checkpoint.")
    ] = False,
    checkpoint_every: Annotated[
        int, typer.Option(min=0, help="Batches between checkpoints; 0: none. A failure to write one is a warning.")
    ] = 2_000,
) -> None:
    """Run a scenario and write config.json, events.jsonl, trace.csv, result.json and report.html."""
    config = build_config(scenario, method, recipe, epochs_scale=epochs_scale)
    config = replace(config, seed=seed, device=resolve_device(device), blend=blend, track=track)
    config = replace(config, mix=mix or "", visits=visits or "")
    config = config if tasks is None else replace(config, tasks=tasks)
    assignments = [f"score.name={score}"] if score else []
    assignments += [f"routing={routing}", f"pool={pool}", f"precision={precision}", f"on_bad_batch={on_bad_batch}"]
    for assignment in [*assignments, *(set_ or [])]:
        config = override(config, assignment)
    folder = out or Path("runs") / run_name(config)
    run_and_show(config, folder, data, resume=resume, checkpoint_every=checkpoint_every)


def run_and_show(
    config: RunConfig,
    out: Path,
    data: Path | None = None,
    *,
    resume: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
) -> None:
    """Run with a progress bar and print the result; if stopped, say what is left and whether it can be resumed."""
    check(config)
    finished = resume and _is_finished(config, out)
    try:
        with _progress(config) as show:
            if config.method == "organise":
                result = organise(config, out, lambda done, total, phase: show(done, total, phase), data)
            else:
                result = run(
                    config,
                    out,
                    lambda step, total, learner: show(step.step + 1, total, _status(step, learner)),
                    data,
                    on_features=lambda done, total: show(done, total, f"features of {config.features}"),
                    on_replaced=lambda batches: _tell_what_is_replaced(out, batches),
                    resume=resume,
                    checkpoint_every=checkpoint_every,
                )
    except KeyboardInterrupt:
        hint = "; --resume continues" if checkpoint_every and has_checkpoint(out / CHECKPOINTS) else ""
        left = f"The events and the trace so far are in {out}{hint}." if out.is_dir() else "Nothing was written."
        console.print(f"Stopped. {left}", soft_wrap=True)
        raise
    if finished:
        console.print(f"The run in {out} is already finished; it is not repeated.", soft_wrap=True)
    console.print(_organise_table(config, result) if config.method == "organise" else _result_table(config, result))
    if result.get("dnf"):
        console.print("Did not finish: more than five experts within one task (runaway creation).")
    console.print(f"Report: {write_report(out)}", soft_wrap=True)


def _is_finished(config: RunConfig, out: Path) -> bool:
    """Return whether the run to resume is finished; say so if it has no checkpoint either."""
    check_resumable(config.method)
    if read_finished(out, config) is not None:
        return True
    if not has_checkpoint(out / CHECKPOINTS):
        check_settings(out, config)
        console.print(f"There is no checkpoint in {out}: the run starts from the beginning.", soft_wrap=True)
    return False


def _tell_what_is_replaced(out: Path, batches: int) -> None:
    told = f"{out} has an unfinished run of {batches:,} batches; it is replaced"
    console.print(f"{told} (--resume continues it, with the same settings).", soft_wrap=True)


@contextmanager
def _progress(config: RunConfig) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress line: batches done, status, time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=14),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console) as progress:
        line = progress.add_task(config.scenario, total=None, status="starting")
        yield lambda done, total, status: progress.update(line, completed=done, total=total, status=status)


def _status(step: Step, learner: OnlineLearner) -> str:
    return f"{len(learner.experts)} experts, now {step.expert}, loss {step.loss:.3f}"


def _organise_table(config: RunConfig, result: dict[str, Any]) -> Table:
    table = Table(
        "", "right expert", "experts queried", title=f"{config.scenario}, batches of {config.test_batch_size}"
    )
    for name, row in result["organisation"].items():
        about = ORGANISATIONS[name]
        table.add_row(about, f"{row['accuracy']:.2f} %", f"{row['experts_queried']:.2f} of {len(result['tasks'])}")
    return table


def _result_table(config: RunConfig, result: dict[str, Any]) -> Table:
    table = Table(
        "",
        "single samples",
        f"batches of {config.test_batch_size}",
        title=config.scenario,
        title_style="bold",
    )
    for name, title, form in (
        ("accuracy", "accuracy", "{:.2f} %"),
        ("gate_accuracy", "gate accuracy", "{:.2f} %"),
        ("experts_queried", "experts queried", "{:.2f}"),
    ):
        table.add_row(title, *(form.format(result[f"{name}_{routing}"]) for routing in ("sample", "batch")))
    if "calibration_error_sample" in result:  # not in results of earlier versions
        table.add_row("calibration error", f"{result['calibration_error_sample']:.2f} %", "–")
    if cost := result.get("cost"):  # not in results of earlier versions
        for name, title, form in (
            ("gate_multiply_adds", "gate, multiply-adds per row", "{:,}"),
            ("gate_expert_equivalents", "gate, expert-equivalents", "{:.3g}"),
            ("answer_ms_per_row", "prediction, ms per row", "{:.3g}"),
        ):
            table.add_row(title, *(form.format(cost[routing][name]) for routing in ("sample", "batch")))
    delay = result["switch_delay"]
    table.add_section()
    unpromoted = f", {result['experts_unpromoted']} unpromoted" if result["experts_unpromoted"] else ""
    table.add_row("experts", f"{result['experts']}{unpromoted}")
    table.add_row("switches found", str(result["switches_found"]))
    table.add_row("switches missed", str(result["switches_missed"]))
    table.add_row("switches false", str(result["switches_false"]))
    if result["batches_skipped"]:
        table.add_row("bad batches skipped", str(result["batches_skipped"]))
    table.add_row("delay", "–" if delay is None else f"{delay:.1f} batches")
    table.add_row("speed", f"{result['samples_per_second']:,.0f} samples/s")
    return table
