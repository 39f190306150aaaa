"""Figures of accuracy and switches over the stream, from results alone, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hge.drawing.colours import REFUSED, colour_of
from hge.drawing.svg import plain, svg_figure

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FOUND = "#1e8449"
SHADES = ("#ced4da", "#e9ecef")


def stream_figure(result: Mapping[str, Any]) -> str:
    """Accuracy on each batch before it is learned, the tasks, and the creations of experts."""
    points = np.array(result["tracked"]["prequential"])
    with svg_figure(10, 3.2) as (figure, svg):
        axes = figure.subplots()
        _draw_visits(axes, result, bottom=0, height=110)
        axes.plot(points[:, 0], points[:, 1], ".", ms=4, color=colour_of(0), alpha=0.45)
        axes.plot(points[:, 0], _smooth(points[:, 1]), color=colour_of(0), lw=1.8)
        for step, expert in result["created"]:
            axes.axvline(step, color=colour_of(expert), lw=1.3, ls="--")
        for visit in result["visits"]:
            middle = (visit["start"] + visit["stop"]) / 2
            axes.text(middle, 105, _letter(visit["task"]), ha="center", va="center", color="#495057")
        axes.set(xlim=(0, result["batches"]), ylim=(0, 110), xlabel="batch", ylabel="accuracy before learning, %")
        axes.set_yticks(range(0, 101, 25))
    return svg.getvalue()


def matrix_figure(result: Mapping[str, Any]) -> str:
    """Accuracy of every task after each visit; tasks not yet visited are pale."""
    rows = np.array(result["tracked"]["after_visits"])
    visited = [visit["task"] for visit in result["visits"]][: len(rows)]
    visits, tasks = rows.shape
    with svg_figure(2.2 + 0.52 * tasks, 1.2 + 0.36 * visits) as (figure, svg):
        axes = figure.subplots()
        axes.imshow(rows, cmap="Blues", vmin=0, vmax=130, aspect="auto")
        for (row, task), value in np.ndenumerate(rows):
            seen = task in visited[: row + 1]
            colour = ("white" if value > 70 else "black") if seen else "#adb5bd"
            axes.text(task, row, f"{value:.0f}", ha="center", va="center", fontsize=9, color=colour)
        axes.set_xticks(range(tasks), [_letter(task) for task in range(tasks)])
        axes.set_yticks(range(visits), [f"after {_letter(task)}" for task in visited])
        axes.set(xlabel="accuracy of task, %")
        axes.xaxis.set_label_position("top")
        axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
        axes.spines[:].set_visible(False)
    return svg.getvalue()


def timeline_figure(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """When experts were created, and whether correctly; one strip per run."""
    with svg_figure(10, 0.7 + 0.42 * len(runs)) as (figure, svg):
        axes = figure.subplots()
        for place, result in enumerate(runs.values()):
            _draw_visits(axes, result, bottom=-place - 0.36, height=0.72, scale=result["batches"])
            for step, right in _judged(result):
                share = step / result["batches"]
                colour = FOUND if right else REFUSED
                axes.plot([share, share], [-place - 0.36, -place + 0.36], color=colour, lw=2.2)
        axes.plot([], [], color=FOUND, lw=2.2, label="expert created for a new task")
        axes.plot([], [], color=REFUSED, lw=2.2, label="false: for a known one")
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)
        axes.set_yticks([-place for place in range(len(runs))], [plain(name) for name in runs])
        axes.set(xlim=(0, 1), ylim=(-len(runs) + 0.4, 0.6), xlabel="share of the stream")
        axes.spines["left"].set_visible(False)
        axes.tick_params(left=False)
    return svg.getvalue()


def _draw_visits(axes: Axes, result: Mapping[str, Any], bottom: float, height: float, scale: float = 1.0) -> None:
    for number, visit in enumerate(result["visits"]):
        span = (visit["start"] / scale, (visit["stop"] - visit["start"]) / scale)
        axes.broken_barh([span], (bottom, height), color=SHADES[number % 2], lw=0)


def _judged(result: Mapping[str, Any]) -> list[tuple[int, bool]]:
    """Return (step, correct) for each creation; the first one of a task not yet known is correct (docs/protocol.md)."""
    known, judged = {result["visits"][0]["task"]}, []
    for step, _ in result["created"]:
        task = next(v["task"] for v in result["visits"] if v["start"] <= step < v["stop"])
        judged.append((step, task not in known))
        known.add(task)
    return judged


def _smooth(values: np.ndarray[Any, np.dtype[np.float64]], width: int = 3) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return running medians, which preserve the sharp drops at switches."""
    padded = np.pad(values, width // 2, mode="edge")
    medians: np.ndarray[Any, np.dtype[np.float64]] = np.median(
        np.lib.stride_tricks.sliding_window_view(padded, width), axis=1
    )
    return medians


def _letter(task: int) -> str:
    return LETTERS[task % 26] + ("" if task < 26 else str(task // 26))
