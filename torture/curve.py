"""The soak's memory curve as a picture: `python -m torture.curve` draws docs/soak.svg from results/torture.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

ROOT = Path(__file__).parent.parent


def draw(soak: dict[str, Any], path: Path) -> None:
    """Draw resident memory and file handles over the batches."""
    batches, memory = zip(*soak["curve"], strict=True)
    with mpl.rc_context({"svg.hashsalt": "hge", "svg.fonttype": "none"}):
        figure = Figure(figsize=(7.2, 2.4), layout="constrained")
        axes = figure.subplots()
        axes.plot(batches, [m / 2**20 for m in memory], color="#4c72b0")
        axes.set(xlabel="batches learned", ylabel="resident memory, MiB", ylim=(0, 1.2 * max(memory) / 2**20))
        axes.set_title(f"{soak['handles'][0]} to {max(soak['handles'])} open files throughout", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads((ROOT / "results" / "torture.json").read_text())["soak"], ROOT / "docs" / "soak.svg")
