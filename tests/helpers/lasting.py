"""The part of a result that a second run with the same settings reproduces."""

from __future__ import annotations

from typing import Any


def lasting(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result without timings, the description of the machine, and the schema version of its file."""
    passing = ("samples_per_second", "training_seconds", "protocol", "schema")
    kept = {name: value for name, value in result.items() if name not in passing}
    if "cost" in kept:
        kept["cost"] = {name: _counted(value) for name, value in kept["cost"].items()}
    return kept


def _counted(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: count for name, count in value.items() if not name.endswith("_ms_per_row")}
