"""One page for a folder of results: the paper's tables beside ours, the streams, the trees, the gates, the speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from hge.core.files import read_json, write_atomically
from hge.data.catalogue import SCENARIOS
from hge.experiments.methods import METHODS
from hge.experiments.paper_tables import TITLES
from hge.experiments.prequential import average_incremental_accuracy, forgetting, has_tracked_accuracy
from hge.experiments.results import (
    FIRST_VALIDATION_SEED,
    Line,
    Result,
    build_table,
    notes,
    precision_of,
    read_results,
    spread,
)
from hge.reporting.figures.overview import accuracy_figure, soak_figure, speed_figure
from hge.reporting.figures.run import gates_figure
from hge.reporting.figures.stream import matrix_figure, stream_figure, timeline_figure
from hge.reporting.pages import render
from hge.reporting.run_report import ORGANISATIONS, trees_of
from hge.reporting.tree_drawing import tree_svg

MARKS = {"reproduced": "✓", "better": "▲", "worse": "▼", "unclear": "~", "differs": "≠", "not comparable": "○"}
"""Marks shown before our figure in a cell; what was not run has no figure."""
SURVIVAL = ("kills", "kills-settings", "kills-gpu", "inputs", "hostile", "flips", "saving", "soak")
"""Parts of `make torture`, in the order in which they are shown."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds, ordered by seed."""

    name: str
    runs: Sequence[Result]

    @property
    def first(self) -> Result:
        """The run with the lowest seed."""
        return self.runs[0]

    def spread(self, figure: str) -> str:
        """Format mean ± deviation of a figure over the runs that have it."""
        values = [float(run[figure]) for run in self.runs if run.get(figure) is not None]
        return spread(values) if values else "–"

    def total(self, figure: str) -> int:
        """Sum a count over the runs."""
        return sum(int(run[figure]) for run in self.runs)


def write_overview(folder: Path) -> Path:
    """Write report.html for all results below a folder."""
    results = [r for r in read_results(folder) if r["protocol"]["seed"] < FIRST_VALIDATION_SEED]
    if not results:
        raise ValueError(f"{folder}: no results found; expected the folder of a finished run, or one with results")
    groups = _groups(results)
    learned = [group for group in groups if "organisation" not in group.first]
    tables = {number: build_table(number, results) for number in TITLES}
    html = render(
        "overview.html.j2",
        runs=len(results),
        verdicts=Counter(line.verdict for lines in tables.values() for line in lines),
        short=Counter(line.verdict for lines in tables.values() for line in lines if line.is_short),
        marks=MARKS,
        tables=[_pivot(number, lines) for number, lines in tables.items()],
        accuracy=_accuracy(tables),
        learned=learned,
        streams=[_stream(group) for group in map(_tracked, learned) if group.runs],
        timeline=_timeline(learned),
        trees=_trees(groups),
        gates=_gates(folder / "gates"),
        speed=_speed(folder / "bench"),
        survival=_robustness(folder / "torture.json"),
    )
    path = folder / "report.html"
    write_atomically(path, html)
    return path


def _groups(results: Iterable[Result]) -> list[Group]:
    """Group runs that differ only in the seed; of several runs of one seed keep the last, preferably a tracked one."""
    found: dict[str, dict[int, Result]] = {}
    for result in sorted(results, key=has_tracked_accuracy):
        found.setdefault(_name(result["protocol"]), {})[result["protocol"]["seed"]] = result
    return [Group(name, [runs[seed] for seed in sorted(runs)]) for name, runs in sorted(found.items())]


def _name(protocol: dict[str, Any]) -> str:
    info = SCENARIOS.get(protocol["scenario"])
    parts = [protocol["scenario"], protocol["method"], protocol["recipe"], f"{protocol['epochs']} epochs"]
    if info is None or protocol["tasks"] != info.tasks:
        parts.append(f"{protocol['tasks']} tasks")
    for name, of_what in (("batch_size", "batches"), ("test_batch_size", "test batches")):
        if info is None or protocol[name] != info.batch_size:  # every recipe uses the scenario's size
            parts.append(f"{of_what} of {protocol[name]}")
    parts += _reduced_precision(protocol)
    parts += [f"{key} {protocol[key]}" for key in ("mix", "visits", "blend") if protocol.get(key)]
    parts += [f"{key}={value}" for key, value in protocol.get("changed", {}).items()]
    return ", ".join(parts)


def _reduced_precision(protocol: dict[str, Any]) -> list[str]:
    precision = precision_of(protocol)
    return [] if precision == "fp32" else [precision]


def _pivot(number: int, lines: Sequence[Line]) -> dict[str, Any]:
    """Lay a table out as the paper does: a column per scenario, a row per method and figure."""
    rows: dict[tuple[str, str], dict[str, list[Line]]] = {}
    for line in lines:
        figure = line.figure.replace("_", " ").replace(".", ", ")
        rows.setdefault((line.method, figure), {}).setdefault(line.scenario, []).append(line)
    scenarios = list(dict.fromkeys(line.scenario for line in lines))
    return {"number": number, "title": TITLES[number], "scenarios": scenarios, "rows": rows, "notes": notes(number)}


def _accuracy(tables: dict[int, list[Line]]) -> Markup | None:
    lines = [line for number in (4, 5) for line in tables[number] if line.figure == "accuracy" and line.seeds]
    return Markup(accuracy_figure(lines)) if lines else None


def _tracked(group: Group) -> Group:
    return Group(group.name, [run for run in group.runs if has_tracked_accuracy(run)])


def _stream(group: Group) -> dict[str, Any]:
    first = group.first
    visited = [[visit["task"] for visit in run["visits"]] for run in group.runs]
    matrices = [run["tracked"]["after_visits"] for run in group.runs]
    drops = [forgetting(matrix, own) for matrix, own in zip(matrices, visited, strict=True)]
    increments = [average_incremental_accuracy(matrix, own) for matrix, own in zip(matrices, visited, strict=True)]
    summary = Group("", [{"drops": f, "increments": i} for f, i in zip(drops, increments, strict=True)])
    return {
        "name": f"{group.name}, seed {first['protocol']['seed']}",
        "routing": "single samples" if first["tracked"]["routing"] == "sample" else "batches",
        "seeds": len(group.runs),
        "forgetting": summary.spread("drops"),
        "incremental": summary.spread("increments"),
        "plot": Markup(stream_figure(first)),
        "matrix": Markup(matrix_figure(first)),
    }


def _timeline(groups: Sequence[Group]) -> Markup | None:
    detected = {
        group.name: group.first for group in groups if "created" in group.first and not _is_given_tasks(group.first)
    }
    return Markup(timeline_figure(detected)) if detected else None


def _is_given_tasks(result: Result) -> bool:
    needs = METHODS[result["protocol"]["method"]].needs  # if tasks or boundaries are given, nothing is detected
    return needs.task_ids or needs.boundaries


def _trees(groups: Sequence[Group]) -> dict[str, dict[str, Markup]]:
    found = {}
    for group in groups:
        result = group.first
        if "trees" in result or _is_papers_tree(result["protocol"]):
            drawn = {name: tree for name, tree in trees_of(result).items() if name in ("hge", "upper")}
            name = f"{group.name}, seed {result['protocol']['seed']}"
            found[name] = {ORGANISATIONS[key]: Markup(tree_svg(tree)) for key, tree in drawn.items()}
    return found


def _is_papers_tree(protocol: dict[str, Any]) -> bool:
    """Return whether HGE built a tree: the default in the paper's recipe, where the others use a shortlist."""
    usual = "lca" if protocol["recipe"] == "paper" else "tree"
    organisation = protocol.get("changed", {}).get("learner.organisation", usual)
    return bool(protocol["method"] == "hge" and organisation == "lca")


def _gates(folder: Path) -> list[dict[str, Any]]:
    boards: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for board in _documents(folder):
        protocol = board.get("protocol", {})
        if board.get("part") == "test" and protocol["seed"] < FIRST_VALIDATION_SEED:
            names = [protocol["scenario"], protocol["recipe"], protocol["net"], f"{protocol['epochs']} epochs"]
            names += _reduced_precision(protocol)
            boards.setdefault((", ".join(names), *(row["score"] for row in board["scores"])), []).append(board)
    return [{"name": name, **_mean_board(own)} for (name, *_), own in boards.items()]


def _documents(folder: Path) -> list[dict[str, Any]]:
    """Return the documents in a folder's JSON files; lists, which hge does not write, are skipped."""
    found = (read_json(path) for path in sorted(folder.glob("*.json")))
    return [document for document in found if isinstance(document, dict)]


def _mean_board(boards: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the leaderboard of the means over seeds, and its plot."""
    first, scores = boards[0], []
    for number, row in enumerate(first["scores"]):
        rows = [board["scores"][number] for board in boards]
        means = {
            figure: {size: float(np.mean([r[figure][size] for r in rows])) for size in row[figure]}
            for figure in ("gate_accuracy", "accuracy")
        }
        scores.append({"score": row["score"], "multiply_adds": row["multiply_adds"], **means})
    sizes = [str(size) for size in first["groups"] if str(size) in first["scores"][0]["gate_accuracy"]]
    board = {"scores": scores, "groups": first["groups"]}
    return {**board, "sizes": sizes, "seeds": len(boards), "plot": Markup(gates_figure(board))}


def _speed(folder: Path) -> Markup | None:
    """Draw speed relative to the fastest plain loop of the device: one CUDA graph per step, or eager on a CPU."""
    steps: dict[str, dict[int, float]] = {}
    for document in _documents(folder):
        steps_in = [] if document.get("settings", {}).get("short") else document.get("steps", [])
        for row in steps_in:
            subject = row["subject"]
            ratio = row["ratio_to_graphed"] or row["ratio_to_eager"]
            if row["loop"].startswith("GE") and ratio:
                name = f"{document['protocol']['device']}, {subject['net']}, {subject['score']}, {row['loop'][3:]}"
                steps.setdefault(name, {})[row["experts"]] = ratio["median"]
    return Markup(speed_figure(steps)) if steps else None


def _robustness(path: Path) -> dict[str, Any] | None:
    """Return the results of `make torture` as (what, how many, outcome), and the memory curve of a long run.

    Parts that have not been run are left out.
    """
    if not path.is_file():
        return None
    found = read_json(path)
    rows = [_robustness_row(part, found[part]) for part in SURVIVAL if part in found]
    return {"rows": rows, "memory": Markup(soak_figure(found["soak"]["curve"])) if "soak" in found else None}


def _robustness_row(part: str, found: dict[str, Any]) -> tuple[str, int, str]:
    if part == "inputs":
        wrong = f"{len(found['wrong'])} without a clear error, or with a changed state"
        return "bad inputs", found["examples"], wrong
    if part == "hostile":
        peak = max(found[kind]["peak_bytes"] for kind in ("images", "pickles", "manifests")) / 1e6
        return "hostile files of each kind", found["count"], f"{len(found['wrong'])} not refused; at most {peak:.0f} MB"
    if part == "flips":
        return "damaged checkpoint files", found["flips"], f"{len(found['wrong'])} unnoticed"
    if part == "saving":
        cost = f"cost {found['cost_percent']['median']:.1f} % of the time"
        return "checkpoints", len(found["seconds"]["with"]), cost
    if part == "soak":
        return "batches in one run", found["batches"], f"memory grew by {found['growth_bytes'] / 1e6:.1f} MB"
    under = {"kills-gpu": f" on one {found.get('gpu')}", "kills-settings": ", other methods and settings"}
    what = f"kill -9{under.get(part, '')}, then resumed"
    return what, found["kills"], f"{len(found['differences'])} differences from an uninterrupted run"
