"""The figure and the page of a fitted `GatedExperts`, drawn as those of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib import pyplot
from matplotlib.axes import Axes

from hge.core.files import write_atomically
from hge.drawing.colours import colour_of
from hge.drawing.losses import draw_expert_strip, draw_losses, hoverable, strip_axes
from hge.drawing.pages import render
from hge.drawing.svg import svg_figure
from hge.estimator.stream_record import StreamRecord
from hge.estimator.summaries import decisions, summary


def plot_history(record: StreamRecord, ax: Axes | None) -> Axes:
    """Draw losses, bounds and switches on the axes, or on new ones of pyplot's."""
    axes: Axes = pyplot.subplots(figsize=(11, 4), layout="constrained")[1] if ax is None else ax
    _draw(axes, record)
    axes.set_xlabel("batch")
    return axes


def write_model_report(model: Any, path: Path) -> Path:
    """Write a self-contained page about a fitted model."""
    with svg_figure(11, 4.8) as (figure, svg):
        loss_axes, strip = figure.subplots(2, 1, sharex=True, height_ratios=[7, 1])
        _draw(loss_axes, model._events)
        if model._events.points:
            draw_expert_strip(strip, model.history_)
        strip_axes(strip, ["expert"])
    drawn = svg.getvalue()
    page = render(
        "model.html.j2",
        summary=summary(model),
        parameters=model.get_params(deep=False),
        experts=model.experts_,
        stride=model._events.stride,
        loss_svg=Markup(hoverable(drawn, loss_axes, model.history_) if model._events.points else drawn),
        decisions=decisions(model),
        rows=model.rows_seen_,
        switches=model.n_switches_,
        skipped=model.batches_skipped_,
        colour_of=colour_of,
    )
    write_atomically(path, page)
    return path


def _draw(axes: Axes, record: StreamRecord) -> None:
    if record.points:
        draw_losses(axes, record.columns(), [event.as_json() for event in record.switches])
