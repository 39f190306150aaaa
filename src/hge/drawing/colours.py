"""Colours, the same in every figure."""

from __future__ import annotations

from matplotlib import colormaps

REFUSED = "#c0392b"
BOUND = "#8d99ae"


def colour_of(number: int) -> str:
    """Return one of twenty colours, the same for an expert in every figure."""
    red, green, blue, _ = colormaps["tab10" if number < 10 else "tab20"](number % (10 if number < 10 else 20))
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
