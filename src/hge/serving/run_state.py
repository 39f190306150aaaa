"""What the live page shows of a run's folder: finished, running, or killed."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.files import read_json
from hge.experiments.run_files import ACCURACY, CONFIG, EVENTS, RESULT, TRACE, TRACE_COLUMNS
from hge.serving.live import state

POINTS = 1024
"""Batches that are shown; of a longer run, one for every 2, 3, 4…, those that were set aside first."""
SILENCE = 10.0
"""Seconds without a new batch after which a run without a result is said to have stopped."""

Trace = dict[str, np.ndarray[Any, np.dtype[np.float64]]]


def check_run(folder: Path) -> None:
    """Raise an error if the folder is not that of a run."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder}: no {CONFIG} found; expected the folder of a run, or the URL of `hge serve`")


def run_state(folder: Path) -> dict[str, Any]:
    """Read a run's files as far as they are written."""
    config, trace, events = read_json(folder / CONFIG), _trace(folder / TRACE), _events(folder / EVENTS)
    result = read_json(folder / RESULT) if (folder / RESULT).is_file() else None
    tree = result["tree"]["nodes"] if result and "tree" in result else _tree(events)
    accuracy, accuracy_name = _accuracy(folder, config, result)
    return state(
        _thinned(trace),
        events,
        _experts(trace, {expert for expert, _ in tree}),
        tree,
        title=f"{config['scenario']}, {config['method']}, seed {config['seed']}",
        status=_status(folder, result),
        batches=len(trace["step"]),
        rows=None,
        switches=sum(event["event"] == "expert_changed" for event in events),
        accuracy=accuracy,
        accuracy_name=accuracy_name,
    )


def _accuracy(folder: Path, config: dict[str, Any], result: dict[str, Any] | None) -> tuple[float | None, str]:
    """Return the accuracy at the end or, if it is tracked, so far; and what it is."""
    if result and "accuracy_batch" in result:
        return result["accuracy_batch"] / 100, "accuracy at the end, in batches of test rows"
    if not config.get("track"):
        return None, "accuracy so far: only of runs with --track"
    found = [float(line.partition(",")[2]) for line in _lines(folder / ACCURACY)[1:]]
    return float(np.mean(found)) / 100 if found else None, "accuracy so far, of batches before they were learned"


def _status(folder: Path, result: dict[str, Any] | None) -> str:
    if result is not None:
        return "finished"
    silent = time.time() - (folder / TRACE).stat().st_mtime if (folder / TRACE).is_file() else 0.0
    if silent < SILENCE:
        return "running"
    return f"no batch for {silent:,.0f} s: slow, or stopped; `hge run … --resume` continues a stopped run"


def _lines(path: Path) -> list[str]:
    """Return the complete lines of a file that may be growing."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return text[: text.rfind("\n") + 1].splitlines()


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in _lines(path)]


def _trace(path: Path) -> Trace:
    lines = _lines(path)[1:]
    table = np.loadtxt(lines, delimiter=",", ndmin=2) if lines else np.empty((0, len(TRACE_COLUMNS)))
    return dict(zip(TRACE_COLUMNS, table.T, strict=True))


def _thinned(trace: Trace) -> Trace:
    """Return at most `POINTS` batches: of each group, the first that was set aside or, if none was, the first."""
    groups = np.arange(len(trace["step"])) * POINTS // max(POINTS, len(trace["step"]))
    order = np.lexsort((trace["step"], -trace["set_aside"], groups))
    _, first = np.unique(groups[order], return_index=True)
    return {name: values[order[first]] for name, values in trace.items()}


def _experts(trace: Trace, promoted: set[int]) -> list[dict[str, Any]]:
    learned = trace["set_aside"] == 0
    batches = Counter(trace["expert"][learned].astype(int).tolist())
    shown = []
    for expert in sorted(batches):
        last = np.flatnonzero(learned & (trace["expert"] == expert))[-1]
        numbers = {"loss": float(trace["loss"][last]), "bound": float(trace["bound"][last])}
        known = expert in promoted
        shown.append({"id": expert, "promoted": known, "batches_trained": batches[expert], **numbers})
    return shown


def _tree(events: list[dict[str, Any]]) -> list[list[int]]:
    """Return the tree as far as promotions tell it: the first expert, and each promoted one below its parent."""
    nodes = [[-1, -1], [0, 0]]
    for event in events:
        if event["event"] == "expert_promoted":
            nodes.append([event["expert"], event["parent"] if event["parent"] < len(nodes) else 0])
    return nodes
