"""The page of `hge arena`: the leaderboard, and accuracy against memory and against cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hge.core.files import read_json, write_atomically
from hge.reporting.figures.arena import scatter
from hge.reporting.pages import render

ARENA = "arena.json"
COLUMNS = {
    "accuracy_sample": "single",
    "accuracy_batch": "batch",
    "forgetting": "forgotten",
    "incremental_accuracy": "incremental",
    "switches": "switches",
    "rows_kept": "rows",
    "parameters": "weights",
    "training_time": "training",
    "answering_time": "answering",
}
"""Figure of a row -> heading."""
CAPTION = (
    "Accuracy in % of single samples and of same-task batches; switches missed / false; rows stored; thousands of "
    "weights; times relative to naive."
)


def shown(row: dict[str, Any], name: str) -> str:
    """Return a figure of the leaderboard as it is displayed; "–" if the method has none."""
    if name == "switches":
        if "switches_missed" not in row:
            return "–"
        missed, false = row["switches_missed"]["mean"], row["switches_false"]["mean"]
        return f"{missed:g}/{false:g}" + (", DNF" if row["unfinished"] else "")
    figure = row[name]
    if figure is None:
        return "–"
    if name == "rows_kept":
        return f"{figure['mean']:,.0f}"
    if name == "parameters":
        return f"{figure['mean'] / 1000:,.0f} k"
    if name.endswith("_time"):
        return f"{figure['mean']:.2g}" if figure["mean"] < 9.95 else f"{figure['mean']:.0f}"
    spread = f" ± {figure['deviation']:.1f}" if len(row["seeds"]) > 1 else ""
    return f"{figure['mean']:.1f}{spread}"


def write_arena(folder: Path) -> Path:
    """Write report.html, memory.svg and cost.svg beside the leaderboard in arena.json; return the page."""
    board = read_json(folder / ARENA)
    plots = {
        "memory": scatter(board["methods"], "rows_kept", "rows of the stream that are stored"),
        "cost": scatter(board["methods"], "training_time", "training time, relative to naive"),
    }
    for name, plot in plots.items():
        write_atomically(folder / f"{name}.svg", plot)
    cells = [[row["method"], *(shown(row, name) for name in COLUMNS), row["told"]] for row in board["methods"]]
    page = render(
        "arena.html.j2",
        protocol=board["protocol"],
        headings=["method", *COLUMNS.values(), "told"],
        cells=cells,
        caption=CAPTION,
        summaries={row["method"]: row["summary"] for row in board["methods"]},
        plots={name: Markup(plot) for name, plot in plots.items()},
    )
    path = folder / "report.html"
    write_atomically(path, page)
    return path
