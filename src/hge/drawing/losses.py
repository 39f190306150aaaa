"""The figure of losses: the loss of every batch, the bound it was compared with, the decisions, the expert in use."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hge.drawing.colours import BOUND, REFUSED, colour_of

Trace = Mapping[str, np.ndarray[Any, np.dtype[np.float64]]]
"""Columns of equal length: step, expert, loss, bound, set_aside; a run's have more."""
MARKED = {"expert_created": ("-", "expert created"), "expert_promoted": (":", "expert promoted")}
"""By event: style of its line and name."""


def draw_losses(axes: Axes, trace: Trace, events: Iterable[Mapping[str, Any]], size: float = 5) -> None:
    """Draw losses, bounds and events (as JSON values)."""
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
    _mark_events(axes, events, int(step[0]), int(step[-1]))
    axes.set_yscale("log")
    axes.set_ylabel("loss of the batch")
    axes.set_xlim(step[0] - 1, step[-1] + 1)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4, frameon=False, fontsize=9)


def _mark_events(axes: Axes, events: Iterable[Mapping[str, Any]], first: int, last: int) -> None:
    labelled = set()
    for event in events:
        if event["event"] in MARKED and first <= event["step"] <= last:
            line, label = MARKED[event["event"]]
            colour = colour_of(event["expert"])
            axes.axvline(event["step"], color=colour, ls=line, lw=1.4, label=None if label in labelled else label)
            labelled.add(label)


def hoverable(svg: str, axes: Axes, trace: Trace, most: int = 3000) -> str:
    """Return the SVG of a figure with the numbers that a page shows under the pointer; axes as they were drawn."""
    place, stride = axes.get_position(), -(-len(trace["step"]) // most)
    columns = [trace[name][::stride].tolist() for name in ("step", "expert", "loss", "bound", "set_aside")]
    points = [
        [int(step), int(expert), _short(loss), _short(bound), int(aside)]
        for step, expert, loss, bound, aside in zip(*columns, strict=True)
    ]
    about = {"sides": [round(place.x0, 4), round(place.x1, 4)], "limits": list(axes.get_xlim()), "points": points}
    return svg.replace("<svg ", f"<svg data-hover='{json.dumps(about, separators=(',', ':'))}' ", 1)


def _short(value: float) -> float | None:
    return float(f"{value:.3g}") if isfinite(value) else None


def draw_expert_strip(axes: Axes, trace: Trace, bottom: float = 0.0) -> None:
    """Draw a strip of height 0.9: the expert that learned each batch, red where the batch was set aside."""
    edges = np.append(trace["step"], trace["step"][-1] + 1)
    for expert, start, stop in _runs(np.where(trace["set_aside"] == 1, -1, trace["expert"]).astype(int)):
        colour = REFUSED if expert < 0 else colour_of(expert)
        axes.broken_barh([(edges[start], edges[stop] - edges[start])], (bottom, 0.9), color=colour, lw=0)


def strip_axes(axes: Axes, names: Sequence[str]) -> None:
    """Label the strips from below, and leave out what strips do not need."""
    axes.set_yticks([place + 0.45 for place in range(len(names))], list(names))
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
