"""A self-contained HTML report of a run, for readers who are new to the project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from hge.core.event_text import describe_events
from hge.core.files import read_json, write_atomically
from hge.drawing.colours import colour_of
from hge.experiments.prequential import has_tracked_accuracy
from hge.experiments.run_files import RunRecord, read_result
from hge.gating.tree import Tree
from hge.reporting.figures.run import gates_figure, loss_figure, roc_figure, routing_figure, switch_figure
from hge.reporting.figures.stream import matrix_figure, stream_figure
from hge.reporting.pages import render
from hge.reporting.tree_drawing import DrawnTree, tree_svg

GATES = "gates.json"
ORGANISATIONS = {
    "ge": "GE: flat",
    "hge": "HGE: Algorithm 3 in the order of the tasks",
    "upper": "Upper: the cheapest good tree of many orders, by the test batches",
    "selected": "The cheapest good tree of many orders, by the training batches",
    "shortlist": "Ours: shortlist of the best sketches",
}


def write_report(folder: Path) -> Path:
    """Read a run's files and write report.html beside them."""
    if (folder / GATES).is_file():
        return write_gates(folder)
    result = read_result(folder)
    html = _organise_page(result) if "organisation" in result else _run_page(RunRecord.read(folder))
    path = folder / "report.html"
    write_atomically(path, html)
    return path


def write_gates(folder: Path) -> Path:
    """Write report.html and gates.svg beside the leaderboard of scores in gates.json."""
    result = read_json(folder / GATES)
    plot, unknown = gates_figure(result), result["unknown"]
    write_atomically(folder / "gates.svg", plot)
    sizes = [str(size) for size in result["groups"] if str(size) in result["scores"][0]["gate_accuracy"]]
    roc = Markup(roc_figure(unknown)) if unknown else ""
    path = folder / "report.html"
    write_atomically(path, render("gates.html.j2", **result, sizes=sizes, plot=Markup(plot), roc=roc))
    return path


def write_trees(folders: Sequence[Path], path: Path) -> Path:
    """Write the trees of several runs side by side."""
    trees = {
        f"{folder.name}: {name}": Markup(tree_svg(drawn))
        for folder in folders
        for name, drawn in trees_of(read_result(folder)).items()
    }
    write_atomically(path, render("trees.html.j2", trees=trees))
    return path


def trees_of(result: dict[str, Any]) -> dict[str, DrawnTree]:
    """Return the trees of a run, by name."""
    trees = result["trees"] if "trees" in result else {result["protocol"]["method"]: result["tree"]}
    return {
        name: DrawnTree(Tree.from_json(tree["nodes"]), tree["reached"], domains_of_experts(result))
        for name, tree in trees.items()
    }


def domains_of_experts(result: dict[str, Any]) -> list[str]:
    """Return the domain of each expert: that of the task most often routed to it."""
    if "routed" not in result:  # trained separately: expert t is that of task t
        return list(result["domains"])
    return [result["domains"][task] for task in np.argmax(result["routed"]["batch"], axis=0)]


def _run_page(record: RunRecord) -> str:
    created = [e["step"] for e in record.events if e["event"] == "expert_created"]
    [drawn] = trees_of(record.result).values()
    return render(
        "report.html.j2",
        result=record.result,
        notices=notices(record.result),
        config=record.config,
        protocol=record.result["protocol"],
        learner=record.config["learner"],
        loss_svg=Markup(loss_figure(record)),
        switch_svg=Markup(switch_figure(record, created[0])) if created else None,
        first_creation=created[0] if created else None,
        routing_svg=Markup(routing_figure(record, record.config["routing"])),
        tree_svg=Markup(tree_svg(drawn)) if record.config["learner"]["organisation"] == "lca" else None,
        decisions=describe_events(record.events),
        stream_svg=Markup(stream_figure(record.result)) if has_tracked_accuracy(record.result) else None,
        matrix_svg=Markup(matrix_figure(record.result)) if has_tracked_accuracy(record.result) else None,
        colour_of=colour_of,
    )


def notices(result: dict[str, Any]) -> list[str]:
    """Return what a reader should know before the figures, and what can be done about it."""
    found = []
    if result["dnf"]:
        found.append(
            "This run did not finish: more than five experts were created within one task. Their losses vary more than "
            "the bound allows. Raise it (--set learner.epsilon=…), or learn larger batches."
        )
    if result.get("experts_unpromoted"):
        found.append(
            f"{result['experts_unpromoted']} of {result['experts']} experts were never promoted: the gate does not "
            "select them, so what they learned is not used. Longer visits of their tasks (--epochs-scale) give them "
            "more batches to be compared on; another score (--set score.name=…) may separate the tasks better."
        )
    if result.get("switches_missed"):
        changes = result["switches_found"] + result["switches_missed"]
        found.append(
            f"{result['switches_missed']} of {changes} changes of task were missed: the loss stayed within its bound, "
            "and one expert learned two tasks. Lower it (--set learner.epsilon=…), if that causes no false switches."
        )
    return found


def _organise_page(result: dict[str, Any]) -> str:
    trees = {name: Markup(tree_svg(drawn)) for name, drawn in trees_of(result).items()}
    known = {name: about for name, about in ORGANISATIONS.items() if name in result["organisation"]}
    return render("organise.html.j2", result=result, protocol=result["protocol"], trees=trees, names=known)
