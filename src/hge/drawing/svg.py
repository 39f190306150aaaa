"""Figures as SVG text, for embedding in pages."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure


def plain(name: str) -> str:
    """Return a name as matplotlib shows it unchanged: a dollar sign would start a formula, and no font has controls."""
    return "".join(letter if letter.isprintable() else "�" for letter in name).replace("$", r"\$")


SMALL = 6.0
"""Width in inches up to which a figure is readable on a phone as a whole; wider ones are shown there in full size."""


@contextmanager
def svg_figure(width: float, height: float) -> Iterator[tuple[Figure, io.StringIO]]:
    """Yield a figure and a buffer; on exit the figure's SVG, from its tag on for embedding, is in the buffer."""
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hge",
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    svg = io.StringIO()
    with rc_context(style), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the reader's browser chooses the font
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, svg
        whole = io.StringIO()
        figure.savefig(whole, format="svg", metadata={"Date": None}, transparent=True)
    text = whole.getvalue()
    tag = '<svg class="small" ' if width <= SMALL else "<svg "
    svg.write(tag + text[text.index("<svg ") + len("<svg ") :])
