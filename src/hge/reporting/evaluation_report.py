"""A self-contained HTML page of what `hge evaluate` found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from hge.core.files import write_atomically
from hge.experiments.evaluation_files import REPORT, read_evaluation
from hge.reporting.figures.evaluation import accuracy_over_time, retention_figure
from hge.reporting.pages import render


def write_evaluation_report(folder: Path) -> Path:
    """Read result.json and write report.html beside it."""
    result = read_evaluation(folder)
    drawn = bool(result["methods"])
    page = render(
        "evaluate.html.j2",
        result=result,
        protocol={name: _shown(value) for name, value in result["protocol"].items() if value not in (None, [])},
        switches=any(method.get("switches") for method in result["methods"]),
        best={figure: _best(result["methods"], figure) for figure in ("accuracy", "retention")},
        curve_svg=Markup(accuracy_over_time(result)) if drawn else None,
        retention_svg=Markup(retention_figure(result)) if drawn else None,
    )
    write_atomically(folder / REPORT, page)
    return folder / REPORT


def _best(methods: list[dict[str, float]], figure: str) -> float | None:
    return max((method[figure] for method in methods), default=None)


def _shown(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
