"""The live page, and the form of the state that it shows: of a served model, or of a run's folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any

import numpy as np

from hge.core.event_text import describe_events
from hge.core.events import json_value
from hge.drawing.colours import colour_of

DECISIONS = 100
"""Last decisions that are shown."""
COLUMNS = ("step", "expert", "loss", "bound", "set_aside")


def page_text(name: str) -> str:
    """Return a page: `live` loads nothing but `live`, beside it, again and again; `interface` only `openapi.json`."""
    return (files("hge.serving") / "pages" / f"{name}.html").read_text(encoding="utf-8")


def state(
    history: Mapping[str, np.ndarray[Any, np.dtype[np.float64]]],
    events: Iterable[Mapping[str, Any]],
    experts: list[dict[str, Any]],
    tree: list[list[int]],
    *,
    title: str,
    status: str,
    batches: int,
    rows: int | None,
    switches: int,
    accuracy: float | None,
    accuracy_name: str,
) -> dict[str, Any]:
    """Return a state as JSON values; `rows` is None where only batches are counted."""
    columns = {name: [json_value(value) for value in history[name].tolist()] if history else [] for name in COLUMNS}
    ids = sorted({int(expert) for expert in columns["expert"]} | {expert["id"] for expert in experts})
    return {
        "title": title,
        "status": status,
        "accuracy": accuracy,
        "accuracy_name": accuracy_name,
        "rows": rows,
        "batches": batches,
        "switches": switches,
        "experts": [{name: json_value(value) for name, value in expert.items()} for expert in experts],
        "tree": tree,
        "history": columns,
        "decisions": describe_events(events)[-DECISIONS:],
        "colours": {str(expert): colour_of(expert) for expert in ids},
    }
