"""Figures of `hge evaluate`, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from hge.drawing.colours import colour_of
from hge.drawing.svg import plain, svg_figure

OURS = "GatedExperts"
CREATED, RETURNED = "#212529", "#e8590c"
"""Colours of switches to a new expert and to a known one."""
PLAIN = {"no-change": (":", "#868e96"), "majority": ("--", "#adb5bd")}
"""Line and colour of the methods that do not use the inputs."""


def accuracy_over_time(result: Mapping[str, Any]) -> str:
    """Accuracy of every method over a sliding window, and the switches that GatedExperts found."""
    with svg_figure(10, 4.6) as (figure, svg):
        axes = figure.subplots()
        starts = [*result["segment_starts"], result["rows"]]
        for start, stop in zip(starts[::2], starts[1::2], strict=False):
            axes.axvspan(start, stop, color="#f1f3f5", lw=0, zorder=0)
        for number, method in enumerate(result["methods"]):
            style, colour = PLAIN.get(method["name"], ("-", colour_of(number)))
            width, above = (2.2, 3) if method["name"] == OURS else (1.1, 2)
            curve = method["curve"]
            axes.plot(
                curve["rows"],
                curve["accuracy"],
                style,
                color=colour,
                lw=width,
                label=plain(method["name"]),
                zorder=above,
            )
        _mark_switches(axes, [switch for method in result["methods"] for switch in method.get("switches", [])])
        axes.set(xlim=(0, result["rows"]), xlabel="row", ylabel=f"accuracy over {result['window']} rows, %")
        axes.grid(axis="y", color="#e9ecef")
        figure.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return svg.getvalue()


def retention_figure(result: Mapping[str, Any]) -> str:
    """Accuracy at the end of the stream on the held-out rows of each segment: one row per method."""
    names = [plain(method["name"]) for method in result["methods"]]
    values = np.array([method["by_segment"] for method in result["methods"]])
    segments = values.shape[1]
    with svg_figure(2.4 + 0.55 * segments, 0.9 + 0.36 * len(names)) as (figure, svg):
        axes = figure.subplots()
        low = min(50.0, float(values.min()))
        axes.imshow(values, cmap="Blues", vmin=low, vmax=100 + 0.3 * (100 - low), aspect="auto")
        for (method, segment), value in np.ndenumerate(values):
            colour = "white" if value > low + 0.62 * (100 - low) else "black"
            axes.text(segment, method, f"{value:.0f}", ha="center", va="center", fontsize=9, color=colour)
        axes.set_xticks(range(segments), [str(segment + 1) for segment in range(segments)])
        axes.set_yticks(range(len(names)), names)
        axes.set_xlabel("segment")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return svg.getvalue()


def _mark_switches(axes: Axes, switches: list[dict[str, Any]]) -> None:
    """Draw a line where an expert was created, and a tick at the bottom where a known one returned."""
    created = [switch["row"] for switch in switches if switch["new"]]
    returned = [switch["row"] for switch in switches if not switch["new"]]
    for number, row in enumerate(created):
        axes.axvline(row, color=CREATED, lw=1, ls="-", label=None if number else "switch to a new expert", zorder=1)
    if returned:
        across = axes.get_xaxis_transform()
        axes.vlines(
            returned, 0, 0.06, color=RETURNED, lw=2, label="switch to a known expert", transform=across, zorder=4
        )
