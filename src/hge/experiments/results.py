"""Comparison of the paper's tables with ours: both numbers, a verdict and our protocol for every cell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from hge.core.files import SCHEMA, read_json
from hge.data.catalogue import SCENARIOS
from hge.experiments.methods import METHODS
from hge.experiments.paper_tables import NOTES, ROUTE_SINGLE_SAMPLES, TITLES, Cell, paper_table
from hge.experiments.recipes import RECIPES, build_config
from hge.experiments.verdicts import RULE, Verdict, judge

OURS = {"GE": "ge", "GE w/o review": "ge-no-review", "HGE": "hge", "TAME": "tame", "Separate": "separate"}
"""The paper's name of a method -> ours; other rows of Table 4 are quoted."""
REQUIRED_PROTOCOL = {
    *("scenario", "method", "recipe", "score", "tasks"),
    *("epochs", "seed", "batch_size", "test_batch_size"),
}
"""Required fields of a result's protocol."""
REQUIRED_FIGURES = (
    *("accuracy_sample", "accuracy_batch", "gate_accuracy_sample", "gate_accuracy_batch"),
    *("experts_queried_sample", "experts_queried_batch", "experts", "experts_unpromoted"),
    *("switches_found", "switches_missed", "switches_false"),
)
"""Required fields of a run's result, besides its protocol."""
FIRST_VALIDATION_SEED = 100
"""Seeds from this one on are for choosing settings, not for reporting (docs/protocol.md)."""
Result = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One cell of the paper's table, and the result of one of our recipes for it."""

    scenario: str
    method: str
    figure: str
    paper: str
    ours: str
    """In batches, as far as rows are routed."""
    single_samples: str
    """The same figure with every sample routed by itself."""
    verdict: Verdict
    recipe: str
    routing: str
    """Routing of the paper's figure, by which the verdict is."""
    epochs: str
    """Number of our epochs " of " the paper's."""
    precision: str
    seeds: int
    unpromoted: str = ""
    """Mean number of experts per run that were never promoted."""
    rows_kept: str = ""
    """Mean number of rows of the stream in memory at its end."""

    @property
    def is_short(self) -> bool:
        """Whether our runs had fewer epochs than the paper's."""
        ours, _, papers = self.epochs.partition(" of ")
        return bool(self.epochs) and int(ours) < int(papers)

    @property
    def shown_verdict(self) -> str:
        """The verdict as displayed."""
        return f"{self.verdict} (short)" if self.is_short else self.verdict


HEADINGS = (
    "scenario",
    "method",
    "figure",
    "paper",
    "ours",
    "ours, single samples",
    "verdict",
    "recipe",
    "paper's routing",
    "epochs",
    "precision",
    "seeds",
    "unpromoted",
    "rows kept",
)


APART = ("superseded", "arena")


def read_results(folder: Path) -> list[Result]:
    """Return all results of runs below a folder, in the order of their paths; other JSON files are ignored.

    Folders named `superseded` (results of removed code) and `arena` (short runs, for another page) are ignored, too.
    """
    if not folder.is_dir():
        raise ValueError(f"results: got {folder}, expected a folder with results of runs")
    found = []
    for path in sorted(folder.rglob("*.json")):
        if any(part in APART for part in path.relative_to(folder).parts):
            continue
        try:
            content = read_json(path)
        except ValueError as error:
            raise ValueError(f"{path}: damaged, expected JSON ({error})") from None
        protocol = content.get("protocol") if isinstance(content, dict) else None
        is_result = (
            isinstance(protocol, dict) and protocol.keys() >= REQUIRED_PROTOCOL and protocol["method"] in METHODS
        )
        if is_result and ("accuracy_batch" in content or "organisation" in content):
            _check_fields(path, content)
            found.append(content)
    return found


def _check_fields(path: Path, result: Result) -> None:
    """Raise an error that names the file if a field needed by the tables or the report is missing or invalid."""
    protocol = result["protocol"]
    parts: list[tuple[str, Any, type]] = [(name, protocol[name], str) for name in ("scenario", "recipe", "score")]
    parts += [(name, protocol[name], int) for name in ("tasks", "epochs", "seed", "batch_size", "test_batch_size")]
    parts += [("tasks", result.get("tasks"), list)]
    if "organisation" in result:
        rows = result["organisation"] if isinstance(result["organisation"], dict) else {}
        parts += [(f"organisation.{name}", rows.get(name), dict) for name in ("ge", "hge", "upper")]
        parts += [("upper_statistics", result.get("upper_statistics"), dict)]
    else:
        parts += [(name, result.get(name), Real) for name in REQUIRED_FIGURES]
    for name, value, kind in parts:
        if not isinstance(value, kind) or isinstance(value, bool) or value == []:
            raise ValueError(f"{path}: damaged, expected a file written by `hge run` ({name}: {value!r})")


def build_table(number: int, results: Iterable[Result]) -> list[Line]:
    """Compare every cell of the paper's table with ours: one line per recipe that was run, or one "not run"."""
    standard = [r for r in results if _is_standard(r["protocol"])]
    lines = []
    for cell in sorted(paper_table(number), key=lambda cell: list(SCENARIOS).index(cell.scenario)):
        method = "organise" if number in (2, 3) else OURS.get(cell.method, "")
        runs = [r for r in standard if (r["protocol"]["scenario"], r["protocol"]["method"]) == (cell.scenario, method)]
        by_recipe = {recipe: _longest([r for r in runs if r["protocol"]["recipe"] == recipe]) for recipe in RECIPES}
        found = [_line(cell, number, runs) for runs in by_recipe.values() if runs]
        lines += found or [_empty_line(cell, "not run" if method else "quoted")]
    return lines


def notes(number: int) -> list[str]:
    """Return the notes to a table."""
    methods = {cell.method for cell in paper_table(number)}
    about_switches = ["The paper gives one row for all CIFAR scenarios, and one for both of Tiny ImageNet."]
    about_methods = [note for method, note in NOTES.items() if method in methods]
    about_methods += [f"The paper's best method, by scenario: {_best_of_the_paper()}."] if number == 4 else []
    return [RULE, *(about_switches if number == 1 else about_methods)]


def _best_of_the_paper() -> str:
    """Return the best method of Table 4 per scenario, except Separate, which is given the tasks."""
    best: dict[str, Cell] = {}
    for cell in paper_table(4):
        if cell.figure == "accuracy" and cell.method != "Separate" and cell.mean is not None:
            known = best.get(cell.scenario)
            best[cell.scenario] = cell if known is None or cell.mean > (known.mean or 0) else known
    return ", ".join(f"{scenario} {cell.mean:g} ({cell.method})" for scenario, cell in best.items())


def spread(values: Sequence[float]) -> str:
    """Format mean ± sample standard deviation, as in the paper; a single value has none.

    >>> spread([0.0, 0.0, 0.0, 0.0, 1.25]), spread([1.25])  # the first is in the paper's Table 3
    ('0.25 ± 0.56', '1.25')
    """
    mean = f"{np.mean(values):.2f}"
    return f"{mean} ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else mean


def _is_standard(protocol: dict[str, Any]) -> bool:
    """Return whether the scenario was run unchanged, with the recipe's score and batches and a reporting seed."""
    known = protocol["scenario"] in SCENARIOS and protocol["recipe"] in RECIPES
    if not known or protocol["seed"] >= FIRST_VALIDATION_SEED:
        return False
    config = build_config(protocol["scenario"], protocol["method"], protocol["recipe"])
    changed = any(protocol.get(name) for name in ("mix", "visits", "blend", "changed"))
    same = all(protocol[name] == getattr(config, name) for name in ("tasks", "batch_size", "test_batch_size"))
    uses_score = protocol["method"] not in ("tame", "separate")  # these two use no score
    return same and not changed and (protocol["score"] == config.score.name or not uses_score)


def _longest(runs: Sequence[Result]) -> list[Result]:
    """Return the runs with most epochs, in the precision with most seeds; for equal seeds, the last by path."""
    most = max((r["protocol"]["epochs"] for r in runs), default=0)
    found: dict[str, dict[int, Result]] = {"fp32": {}}  # first, so that it wins ties
    for run in runs:
        if run["protocol"]["epochs"] == most:
            found.setdefault(precision_of(run["protocol"]), {})[run["protocol"]["seed"]] = run
    return list(max(found.values(), key=len).values())


def precision_of(protocol: dict[str, Any]) -> str:
    """Return the precision of a run; fp32 if an old result does not state it."""
    return str(protocol.get("precision", "fp32"))


def _line(cell: Cell, number: int, runs: Sequence[Result]) -> Line:
    protocol, routed = runs[0]["protocol"], number >= 4
    values = {routing: _values(_reader(cell, number, routing), runs) for routing in ("batch", "sample")}
    single = cell.method in ROUTE_SINGLE_SAMPLES
    unpromoted, missed, failed = (
        float(np.mean([run.get(name, 0) for run in runs])) for name in ("experts_unpromoted", "switches_missed", "dnf")
    )
    kept = [run["rows_kept"] for run in runs if "rows_kept" in run]
    return Line(
        cell.scenario,
        cell.method,
        cell.figure,
        str(cell),
        _shown(values["batch"], runs),
        _shown(values["sample"], runs) if routed else "",
        judge(cell, values["sample" if single else "batch"], failed, unpromoted + missed),
        protocol["recipe"],
        "" if number == 1 else "single samples" if single else f"batches of {protocol['test_batch_size']}",
        f"{protocol['epochs']} of {SCENARIOS[cell.scenario].paper.epochs}",
        precision_of(protocol),
        len(runs),
        "" if number in (2, 3) else f"{unpromoted:g}",
        f"{np.mean(kept):g}" if len(kept) == len(runs) else "",
    )


def _reader(cell: Cell, number: int, routing: str) -> Callable[[Result], float]:
    """Return a function that reads the cell's figure from a result."""
    figure, _, statistic = cell.figure.partition(".")
    if number == 1:
        return lambda result: float(result[f"switches_{figure}"] / len(result["tasks"]))
    if number == 2:
        name = "accuracy" if figure == "gate_accuracy" else figure
        return lambda result: float(result["organisation"][cell.method.lower()][name])
    if number == 3:
        return lambda result: float(result["upper_statistics"][figure][statistic])
    return lambda result: float(result[f"{figure}_{routing}"])


def _values(read: Callable[[Result], float], runs: Sequence[Result]) -> list[float] | None:
    """Return a figure of each run; None if any of them did not finish."""
    return None if any(run.get("dnf") for run in runs) else [read(run) for run in runs]


def _shown(values: Sequence[float] | None, runs: Sequence[Result]) -> str:
    """Format the figures of all seeds."""
    return f"DNF ({sum(bool(run.get('dnf')) for run in runs)} of {len(runs)})" if values is None else spread(values)


def _empty_line(cell: Cell, verdict: Verdict) -> Line:
    return Line(cell.scenario, cell.method, cell.figure, str(cell), "", "", verdict, "", "", "", "", 0)


def as_markdown(number: int, lines: Sequence[Line]) -> str:
    """Format a table as Markdown."""
    rows = [
        " | ".join(HEADINGS),
        "|".join("---" for _ in HEADINGS),
        *(" | ".join(map(_markdown, _texts(line))) for line in lines),
    ]
    table = "\n".join(f"| {row} |" for row in rows)
    return "\n\n".join((f"**Table {number}. {TITLES[number]}**", table, *notes(number))) + "\n"


def as_latex(number: int, lines: Sequence[Line]) -> str:
    """Format a table as LaTeX."""
    rows = [" & ".join(map(_latex, texts)) + r" \\" for texts in (HEADINGS, *map(_texts, lines))]
    return "\n".join(
        [
            r"\begin{table*}",
            rf"\caption{{Table {number} of the paper, beside ours. {_latex(TITLES[number])}.}}",
            rf"\begin{{tabular}}{{{'l' * len(HEADINGS)}}}",
            r"\hline",
            rows[0],
            r"\hline",
            *rows[1:],
            r"\hline",
            r"\end{tabular}",
            *(rf"\par {_latex(note)}" for note in notes(number)),
            r"\end{table*}",
            "",
        ]
    )


def as_json(number: int, lines: Sequence[Line]) -> str:
    """Format a table as JSON."""
    content = {"table": number, "title": TITLES[number], "lines": [asdict(x) for x in lines], "notes": notes(number)}
    return json.dumps({"schema": SCHEMA, **content}, indent=2, ensure_ascii=False) + "\n"


def _texts(line: Line) -> list[str]:
    shown = asdict(line) | {"verdict": line.shown_verdict}
    return [str(value).replace("_", " ") or "–" for value in shown.values()]


def _markdown(text: str) -> str:
    return text.translate(_MARKDOWN)


def _latex(text: str) -> str:
    return text.translate(_LATEX)


_MARKDOWN = str.maketrans({"\n": " ", "<": "&lt;", **{sign: f"\\{sign}" for sign in "\\|`[]$"}})
_LATEX = str.maketrans(
    {
        "±": r"$\pm$",
        "–": "--",
        "\n": " ",
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        **{sign: f"\\{sign}" for sign in "%_&$#{}"},
    }
)

FORMATS = {"markdown": as_markdown, "latex": as_latex, "json": as_json}
