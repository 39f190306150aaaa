"""Figures over many runs, as SVG text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from hge.drawing.colours import BOUND, colour_of
from hge.drawing.svg import svg_figure
from hge.experiments.results import Line

RECIPES = {"paper": colour_of(0), "best": colour_of(2), "default": colour_of(1), "backbone": colour_of(3)}
MEGABYTE = 2**20


def accuracy_figure(lines: Sequence[Line]) -> str:
    """Our accuracies beside the paper's, per scenario and method."""
    methods = list(dict.fromkeys(line.method for line in lines))
    scenarios = list(dict.fromkeys(line.scenario for line in lines))
    with svg_figure(10, 1.4 + 0.5 * len(scenarios)) as (figure, svg):
        panels = figure.subplots(1, len(methods), sharex=True, sharey=True, squeeze=False)[0]
        for axes, method in zip(panels, methods, strict=True):
            _draw_accuracies(axes, [line for line in lines if line.method == method], scenarios)
            axes.set_title(method, fontsize=11)
        panels[0].set_xlim(right=101)  # after all panels are drawn, because this freezes the left limit
        panels[0].set_yticks([-place for place in range(len(scenarios))], scenarios)
        _explain(panels[0], {line.recipe for line in lines})
        figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=9)
    return svg.getvalue()


def speed_figure(steps: Mapping[str, Mapping[int, float]]) -> str:
    """Time of plain training over that of Gated Experts, by the number of experts."""
    experts = sorted({n for ratios in steps.values() for n in ratios})
    height = 0.8 / len(experts)
    with svg_figure(9, 0.9 + 0.5 * len(steps)) as (figure, svg):
        axes = figure.subplots()
        for number, count in enumerate(experts):
            places = [-place - number * height + 0.4 - height / 2 for place in range(len(steps))]
            values = [ratios.get(count, np.nan) for ratios in steps.values()]
            label = f"{count} expert{'s' if count > 1 else ''}"
            axes.barh(places, values, height=0.9 * height, color=colour_of(number), label=label)
        axes.axvline(1.0, color="#495057", lw=1, ls=":")
        axes.set_yticks([-place for place in range(len(steps))], list(steps))
        axes.set_xlabel("speed, of plain training of one network (1: as fast)")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(experts), fontsize=9)
    return svg.getvalue()


def soak_figure(soak: Sequence[Sequence[float]]) -> str:
    """Memory use of a process during a long run."""
    batches, used = np.array(soak, dtype=np.float64).T
    with svg_figure(9, 3.0) as (figure, svg):
        axes = figure.subplots()
        axes.plot(batches, used / MEGABYTE, color=colour_of(0))
        axes.set(xlabel="batches learned", ylabel="memory, MB", ylim=(0, None))
    return svg.getvalue()


def number_of(text: str) -> tuple[float, float] | None:
    """Parse mean and deviation from a table cell; None if it holds no number.

    >>> number_of("99.10 ± 0.18"), number_of("97.9"), number_of("DNF (1 of 1)")
    ((99.1, 0.18), (97.9, 0.0), None)
    """
    mean, _, deviation = text.partition(" ± ")
    try:
        return float(mean), float(deviation or 0)
    except ValueError:
        return None


def _draw_accuracies(axes: Axes, lines: Sequence[Line], scenarios: Sequence[str]) -> None:
    for line in lines:
        place = -scenarios.index(line.scenario)
        paper = number_of(line.paper)
        if paper is not None:
            mean, deviation = paper
            axes.barh(place, 2 * deviation, left=mean - deviation, height=0.55, color=BOUND, alpha=0.35, lw=0)
            axes.plot([mean, mean], [place - 0.28, place + 0.28], color="#495057", lw=2)
        in_batches = "" if line.routing == "single samples" else line.ours
        for text, marker, lift in ((in_batches, "o", 0.12), (line.single_samples, "^", -0.12)):
            ours = number_of(text)
            if ours is not None:
                axes.errorbar(ours[0], place + lift, xerr=ours[1], fmt=marker, ms=6, color=RECIPES[line.recipe])
    axes.set_ylim(-len(scenarios) + 0.4, 0.6)
    axes.set_xlabel("accuracy, %")
    axes.grid(axis="x", color="#e9ecef")
    axes.set_axisbelow(True)


def _explain(axes: Axes, recipes: set[str]) -> None:
    axes.plot([], [], color="#495057", lw=2, label="the paper's, ± deviation")
    for recipe, colour in RECIPES.items():
        if recipe in recipes:
            axes.plot([], [], "s", color=colour, label=f"recipe {recipe}")
    axes.plot([], [], "ko", ms=6, label="batches")
    axes.plot([], [], "k^", ms=6, label="single samples")
