"""The files of `hge evaluate`, in a folder that one process holds at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hge.core.files import read_json, write_json
from hge.core.own_folder import FolderKind
from hge.experiments.stream_advice import advise
from hge.experiments.stream_evaluation import MethodResult, StreamPlan, segment_starts, sliding_accuracy
from hge.experiments.stream_opponents import STREAM_METHODS

RESULT, REPORT = "result.json", "report.html"
KIND = "stream evaluation"
EVALUATION = FolderKind(KIND, re.compile(r"result\.json|report\.html"), lambda path: is_evaluation(path.parent))
WINDOWS = 50
"""The window of accuracy over time is this part of the stream."""


def clear_folder(folder: Path) -> None:
    """Delete the files of an earlier evaluation from a folder that is held."""
    for name in (RESULT, REPORT):
        (folder / name).unlink(missing_ok=True)


def is_evaluation(folder: Path) -> bool:
    """Return whether the folder holds the result of an evaluation."""
    try:
        return bool(read_json(folder / RESULT).get("kind") == KIND)
    except (OSError, ValueError, AttributeError):
        return False


def read_evaluation(folder: Path) -> dict[str, Any]:
    """Read the result of an evaluation."""
    if not is_evaluation(folder):
        raise ValueError(f"{folder}: no {RESULT} of an evaluation there; expected what `hge evaluate` wrote")
    result: dict[str, Any] = read_json(folder / RESULT)
    return result


def write_evaluation(
    folder: Path,
    plan: StreamPlan,
    found: Sequence[MethodResult],
    protocol: dict[str, Any],
    *,
    interrupted: bool = False,
) -> dict[str, Any]:
    """Write result.json; return its content."""
    window = max(plan.batch, len(plan.counted) // WINDOWS)
    methods = [_as_json(result, plan, window) for result in found]
    held_out = sum(len(y) for _, y in plan.held_out)
    advice = "Interrupted: no advice." if interrupted else advise(methods, len(plan.counted), held_out)
    result = {
        "kind": KIND,
        "interrupted": interrupted,
        "rows": len(plan.y),
        "rows_counted": len(plan.counted),
        "rows_held_out": held_out,
        "segment_starts": segment_starts(len(plan.y), len(plan.held_out)).tolist(),
        "window": window,
        "methods": methods,
        "advice": advice,
        "protocol": protocol,
    }
    write_json(folder / RESULT, result)
    return result


def _as_json(result: MethodResult, plan: StreamPlan, window: int) -> dict[str, Any]:
    places, accuracy = sliding_accuracy(result.correct, window)
    figures = dict(result.figures)
    if "switches" in figures:
        last = len(plan.learned) - 1
        figures["switches"] = [
            {"row": int(plan.learned[min(switch["learned"], last)]), "expert": switch["expert"], "new": switch["new"]}
            for switch in figures["switches"]
        ]
    return {
        "name": result.name,
        "about": STREAM_METHODS[result.name].about,
        "accuracy": round(result.accuracy, 3),
        "retention": None if result.retention is None else round(result.retention, 3),
        "by_segment": [round(value, 3) for value in result.by_concept],
        "seconds": round(result.seconds, 3),
        **figures,
        "curve": {"rows": plan.counted[places].tolist(), "accuracy": accuracy.round(2).tolist()},
    }
