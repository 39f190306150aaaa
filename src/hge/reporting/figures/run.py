"""The report's figures, as SVG text."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hge.drawing.colours import BOUND, colour_of
from hge.drawing.losses import draw_expert_strip, draw_losses, hoverable, strip_axes
from hge.drawing.svg import plain, svg_figure
from hge.experiments.run_files import RunRecord

SCORES = ("sketch", "autoencoder", "class-sketch", "energy", "joint")
"""Scores of a leaderboard, in the order of their colours."""


def loss_figure(record: RunRecord) -> str:
    """The loss of every batch, the bound it was compared with, and the decisions."""
    with svg_figure(11, 5.2) as (figure, svg):
        loss_axes, task_axes = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
        draw_losses(loss_axes, record.trace, record.events)
        _draw_strips(task_axes, record)
        figure.align_ylabels()
    return hoverable(svg.getvalue(), loss_axes, record.trace)


def switch_figure(record: RunRecord, step: int, before: int = 40, after: int = 40) -> str:
    """Losses of the batches around one detected switch."""
    trace = record.trace
    window = (trace["step"] >= step - before) & (trace["step"] < step + after)
    close = {name: values[window] for name, values in trace.items()}
    with svg_figure(11, 3.2) as (figure, svg):
        axes = figure.subplots()
        draw_losses(axes, close, record.events, size=16)
        axes.set_xlabel("batch")
    return hoverable(svg.getvalue(), axes, close)


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


def _draw_strips(axes: Axes, record: RunRecord) -> None:
    """Draw two strips: the true task, hidden from the learner, and the expert that learned the batch."""
    for visit in record.result["visits"]:
        width = visit["stop"] - visit["start"]
        shade = "#e9ecef" if visit["task"] % 2 else "#ced4da"
        axes.broken_barh([(visit["start"], width)], (1, 0.9), color=shade)
        axes.text(visit["start"] + width / 2, 1.45, chr(ord("A") + visit["task"] % 26), ha="center", va="center")
    draw_expert_strip(axes, record.trace)
    strip_axes(axes, ["expert", "task (hidden)"])
