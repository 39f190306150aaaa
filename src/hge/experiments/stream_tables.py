"""The tables of docs/streams.md, from the files that `benchmarks/streams.py` wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.files import read_json
from hge.experiments.results import spread

KIND = "stream benchmark"
OURS = "GatedExperts"
AS_GOOD = 0.5
"""Two methods are as good as each other within this many percentage points (docs/protocol.md)."""
NOTHING = "| `results/streams` has no results yet |\n|---|\n| run `python benchmarks/streams.py`, then `make results` |"


@dataclass(frozen=True)
class StreamResults:
    """The results of one stream, one per seed, of the methods that all seeds have."""

    name: str
    runs: tuple[dict[str, Any], ...]

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order of the files."""
        return [name for name in self.runs[0]["methods"] if all(name in run["methods"] for run in self.runs)]

    @property
    def others(self) -> list[str]:
        """All methods but `GatedExperts`."""
        return [name for name in self.methods if name != OURS]

    def values(self, method: str, figure: str) -> list[float]:
        """Return a method's figure, one per seed; lists are counted."""
        found = [run["methods"][method][figure] for run in self.runs]
        return [float(len(value) if isinstance(value, list) else value) for value in found]

    def mean(self, method: str, figure: str = "accuracy") -> float:
        """Return the mean of a method's figure over seeds."""
        return float(np.mean(self.values(method, figure)))

    def best(self, methods: Sequence[str], figure: str = "accuracy") -> str:
        """Return the method with the highest mean."""
        return max(methods, key=lambda method: self.mean(method, figure))

    def lead(self, method: str, figure: str) -> float:
        """Return by how much a method is better than `GatedExperts`, in the mean; 0 if not by more than the spread.

        The spread is the standard deviation of the paired differences over seeds.
        """
        apart = np.subtract(self.values(method, figure), self.values(OURS, figure))
        clear = abs(apart.mean()) > (apart.std(ddof=1) if len(apart) > 1 else 0.0)
        return float(apart.mean()) if clear else 0.0


def read_stream_results(folder: Path, order: Sequence[str]) -> list[StreamResults]:
    """Read the results of all streams in a folder that have `GatedExperts` and another method, in a given order."""
    runs: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(folder.glob("*-seed*.json")):
        content = read_json(path)
        if content.get("kind") == KIND:
            if content["protocol"]["commit"].endswith("+") or content["protocol"]["commit"] == "unknown":
                raise ValueError(
                    f"{path}: got commit {content['protocol']['commit']}, expected that of a committed tree"
                )
            runs.setdefault(content["stream"], []).append(content)
    names = [name for name in order if name in runs] + sorted(set(runs) - set(order))
    found = [StreamResults(name, tuple(sorted(runs[name], key=lambda run: run["protocol"]["seed"]))) for name in names]
    return [stream for stream in found if OURS in stream.methods and stream.others]


def comparison_table(streams: Sequence[StreamResults]) -> str:
    """`GatedExperts` beside the most accurate other method, and the highest retention of the others."""
    lines = [
        f"| stream | n | {OURS}: accuracy | {OURS}: retention | most accurate other method | its accuracy "
        "| its retention | highest retention of another method |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stream in streams:
        rival, keeper = stream.best(stream.others), stream.best(stream.others, "retention")
        best = stream.best(stream.methods)
        accuracy = {m: _bold(spread(stream.values(m, "accuracy")), m == best) for m in (OURS, rival)}
        retention = {m: spread(stream.values(m, "retention")) for m in (OURS, rival, keeper)}
        cells = (accuracy[OURS], retention[OURS], rival, accuracy[rival], retention[rival])
        lines.append(f"| {stream.name} | {len(stream.runs)} | {' | '.join(cells)} | {retention[keeper]} ({keeper}) |")
    return "\n".join(lines) if streams else NOTHING


def outcome_table(streams: Sequence[StreamResults]) -> str:
    """Where `GatedExperts` is better than all other methods, where no clear difference is, where another is better."""
    lines = [
        f"| figure | {OURS} is better than all others | no clear difference | another method is better |",
        "|---|---|---|---|",
    ]
    for figure in ("accuracy", "retention"):
        better, equal, worse = list[str](), list[str](), list[str]()
        for stream in streams:
            rival = stream.best(stream.others, figure)
            lead = stream.lead(rival, figure)
            if lead > AS_GOOD:
                worse.append(f"{stream.name} ({rival}, by {lead:.1f})")
            else:
                (better if lead < -AS_GOOD else equal).append(stream.name)
        cells = " | ".join(f"{len(names)}: {', '.join(names)}" if names else "none" for names in (better, equal, worse))
        lines.append(f"| {figure} | {cells} |")
    return "\n".join(lines) if streams else NOTHING


def methods_table(streams: Sequence[StreamResults]) -> str:
    """Accuracy / retention of every method, means over seeds; the most accurate is bold."""
    methods = list(dict.fromkeys(method for stream in streams for method in stream.methods))
    lines = [f"| stream | {' | '.join(methods)} |", "|---|" + "---|" * len(methods)]
    for stream in streams:
        best = stream.best(stream.methods)
        cells = [
            f"{_bold(f'{stream.mean(m):.1f}', m == best)} / {stream.mean(m, 'retention'):.1f}"
            if m in stream.methods
            else "–"
            for m in methods
        ]
        lines.append(f"| {stream.name} | {' | '.join(cells)} |")
    return "\n".join(lines) if streams else NOTHING


def cost_table(streams: Sequence[StreamResults]) -> str:
    """Size of each stream, what `GatedExperts` found in it, and what it costs beside the most accurate other method."""
    lines = [
        "| stream | rows × inputs, classes | concepts, visits | experts | switches found | rows kept "
        f"| {OURS}: CPU s per 1,000 rows | most accurate other method: the same |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stream in streams:
        run, rival = stream.runs[0], stream.best(stream.others)
        size = f"{run['rows']:,} × {run['features']}, {run['classes']}"
        concepts = f"{run['concepts'] or '?'}, {run['visits'] or '?'}"
        experts, switches, kept = (f"{stream.mean(OURS, f):,.1f}" for f in ("experts", "switches", "rows_kept"))
        ours, theirs = (f"{stream.mean(m, 'cpu_seconds_per_1000_rows'):.2f}" for m in (OURS, rival))
        cells = (stream.name, size, concepts, experts, switches, kept.partition(".")[0], ours, f"{theirs} ({rival})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) if streams else NOTHING


def _bold(text: str, wanted: bool) -> str:
    return f"**{text}**" if wanted else text
