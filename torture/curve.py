"""Plot of the soak test's memory curve: `python -m torture.curve` draws docs/soak.svg from results/torture.json."""

from __future__ import annotations

import json
from pathlib import Path

from hge.reporting.figures.overview import soak_figure

ROOT = Path(__file__).parent.parent

if __name__ == "__main__":
    soak = json.loads((ROOT / "results" / "torture.json").read_text(encoding="utf-8"))["soak"]
    (ROOT / "docs" / "soak.svg").write_text(soak_figure(soak["curve"]), encoding="utf-8")
