"""The report's figures, as SVG text."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hge.experiments.run_files import RunRecord
from hge.reporting.tree_drawing import colour_of

REFUSED = "#c0392b"
BOUND = "#8d99ae"

SCORES = ("sketch", "autoencoder", "class-sketch", "energy", "joint")
"""Scores of a leaderboard, in the order of their colours."""


def loss_figure(record: RunRecord) -> str:
    """The loss of every batch, the bound it was compared with, and the decisions."""
    with svg_figure(11, 5.2) as (figure, svg):
        loss_axes, task_axes = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
        _draw_losses(loss_axes, record)
        _draw_strips(task_axes, record)
        figure.align_ylabels()
    return svg.getvalue()


def switch_figure(record: RunRecord, step: int, before: int = 40, after: int = 40) -> str:
    """Losses of the batches around one detected switch."""
    trace = record.trace
    window = (trace["step"] >= step - before) & (trace["step"] < step + after)
    close = RunRecord(record.config, record.events, {k: v[window] for k, v in trace.items()}, record.result)
    with svg_figure(11, 3.2) as (figure, svg):
        axes = figure.subplots()
        _draw_losses(axes, close, size=16)
        axes.set_xlabel("batch")
    return svg.getvalue()


def routing_figure(record: RunRecord, routing: str) -> str:
    """Experts selected for each task, as percentages of the test groups."""
    routed = np.array(record.result["routed"][routing])
    tasks, experts = routed.shape
    with svg_figure(1.8 + 0.55 * experts, 1.1 + 0.42 * tasks) as (figure, svg):
        axes = figure.subplots()
        axes.imshow(routed, cmap="Blues", vmin=0, vmax=120, aspect="auto")
        for (t, e), value in np.ndenumerate(routed):
            if value:
                text, colour = f"{value:.0f}" if value >= 1 else "<1", "white" if value > 60 else "black"
                axes.text(e, t, text, ha="center", va="center", fontsize=9, color=colour)
        axes.set_xticks(range(experts), [str(e) for e in range(experts)])
        axes.set_yticks(range(tasks), [plain(name) for name in record.result["tasks"]])
        axes.set(xlabel="expert", ylabel="task")
        axes.spines[:].set_visible(False)
    return svg.getvalue()


def gates_figure(result: dict[str, Any]) -> str:
    """How often each score selects the right expert, by the number of rows known to belong together."""
    with svg_figure(7.5, 4.0) as (figure, svg):
        axes = figure.subplots()
        for row in result["scores"]:
            sizes, right = list(map(int, row["gate_accuracy"])), list(row["gate_accuracy"].values())
            axes.plot(sizes, right, "o-", color=colour_of(SCORES.index(row["score"])), label=row["score"])
        axes.set_xscale("log", base=2)
        axes.set_xticks(result["groups"], [str(size) for size in result["groups"]])
        axes.set(xlabel="rows that are known to belong together", ylabel="right expert, %")
        axes.legend(frameon=False)
    return svg.getvalue()


def roc_figure(unknown: dict[str, Any]) -> str:
    """ROC curve: detected rows of an unknown task against false alarms on known ones."""
    with svg_figure(4.2, 3.8) as (figure, svg):
        axes = figure.subplots()
        axes.plot(unknown["false_alarms"], unknown["found"], color=colour_of(0))
        axes.plot([0, 1], [0, 1], ":", color=BOUND)
        axes.set(xlabel="known rows that are suspected", ylabel="strangers that are found", xlim=(0, 1), ylim=(0, 1.01))
    return svg.getvalue()


def _draw_losses(axes: Axes, record: RunRecord, size: float = 5) -> None:
    trace = record.trace
    step, loss, refused = trace["step"], trace["loss"], trace["set_aside"].astype(bool)
    floor = max(1e-5, float(np.nanmin(loss[loss > 0], initial=1.0)) / 2)
    bound = np.where(np.isfinite(trace["bound"]), trace["bound"], np.nan)
    axes.plot(step, np.maximum(bound, floor), color=BOUND, lw=0.9, label="bound μ + εσ of the expert that was asked")
    for expert in np.unique(trace["expert"][~refused]).astype(int):
        rows = ~refused & (trace["expert"] == expert)
        axes.scatter(step[rows], np.maximum(loss[rows], floor), s=size, lw=0, color=colour_of(expert))
    axes.scatter(
        step[refused],
        loss[refused],
        s=2.5 * size,
        marker="x",
        lw=1,
        color=REFUSED,
        label="loss too high: set aside",
    )
    _mark_events(axes, record, int(step[0]), int(step[-1]))
    axes.set_yscale("log")
    axes.set_ylabel("loss of the batch")
    axes.set_xlim(step[0] - 1, step[-1] + 1)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)


def _mark_events(axes: Axes, record: RunRecord, first: int, last: int) -> None:
    styles = {"expert_created": ("-", "expert created"), "expert_promoted": (":", "expert promoted")}
    labelled = set()
    for event in record.events:
        if event["event"] in styles and first <= event["step"] <= last:
            line, label = styles[event["event"]]
            colour = colour_of(event["expert"])
            axes.axvline(event["step"], color=colour, ls=line, lw=1.4, label=None if label in labelled else label)
            labelled.add(label)


def _draw_strips(axes: Axes, record: RunRecord) -> None:
    """Draw two strips: the true task, hidden from the learner, and the expert that learned the batch."""
    for visit in record.result["visits"]:
        width = visit["stop"] - visit["start"]
        shade = "#e9ecef" if visit["task"] % 2 else "#ced4da"
        axes.broken_barh([(visit["start"], width)], (1, 0.9), color=shade)
        axes.text(visit["start"] + width / 2, 1.45, chr(ord("A") + visit["task"] % 26), ha="center", va="center")
    trace = record.trace
    for expert, start, stop in _runs(np.where(trace["set_aside"] == 1, -1, trace["expert"]).astype(int)):
        colour = REFUSED if expert < 0 else colour_of(expert)
        axes.broken_barh([(start, stop - start)], (0, 0.9), color=colour, lw=0)
    axes.set_yticks([0.45, 1.45], ["expert", "task (hidden)"])
    axes.set_xlabel("batch")
    axes.spines["left"].set_visible(False)
    axes.tick_params(left=False)


def _runs(
    values: Sequence[int] | np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Iterator[tuple[int, int, int]]:
    """Yield (value, start, stop) for each run of equal values.

    >>> list(_runs([4, 4, 7]))
    [(4, 0, 2), (7, 2, 3)]
    """
    array = np.asarray(values)
    edges = [0, *(np.flatnonzero(np.diff(array)) + 1).tolist(), len(array)]
    for start, stop in pairwise(edges):
        yield int(array[start]), start, stop


def plain(name: str) -> str:
    """Return a name as matplotlib shows it unchanged: a dollar sign would start a formula, and no font has controls."""
    return "".join(letter if letter.isprintable() else "�" for letter in name).replace("$", r"\$")


@contextmanager
def svg_figure(width: float, height: float) -> Iterator[tuple[Figure, io.StringIO]]:
    """Yield a figure and a buffer; on exit the figure's SVG, from its tag on for embedding, is in the buffer."""
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hge",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    svg = io.StringIO()
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser chooses the font
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, svg
        whole = io.StringIO()
        figure.savefig(whole, format="svg", metadata={"Date": None}, transparent=True)
    text = whole.getvalue()
    svg.write(text[text.index("<svg") :])
