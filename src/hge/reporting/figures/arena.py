"""Figures of `hge arena`, as SVG text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hge.drawing.colours import colour_of
from hge.drawing.svg import plain, svg_figure
from hge.experiments.methods import METHODS


def scatter(rows: Sequence[dict[str, Any]], figure_name: str, label: str) -> str:
    """Single-sample accuracy against another figure, a point per method; hollow if it is told boundaries or tasks."""
    with svg_figure(7.5, 4.4) as (figure, svg):
        axes = figure.subplots()
        for row in rows:
            if row[figure_name] is None:
                continue
            x, y = row[figure_name]["mean"], row["accuracy_sample"]["mean"]
            colour = colour_of(list(METHODS).index(row["method"]))
            face = colour if row["told"] == "nothing" else "none"
            axes.errorbar(x, y, yerr=row["accuracy_sample"]["deviation"], fmt="o", color=colour, mfc=face)
            axes.annotate(plain(row["method"]), (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)
        axes.set_xscale("symlog", linthresh=1)
        axes.set(xlabel=label, ylabel="accuracy of single samples, %")
        axes.margins(x=0.12)
        axes.grid(color="#e9ecef")
    return svg.getvalue()
