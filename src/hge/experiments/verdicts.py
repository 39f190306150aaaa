"""The verdict on a cell of the paper's tables: whether our runs reproduce its figure."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Literal

import numpy as np
from scipy.special import stdtr  # scipy.stats takes a second to import

from hge.experiments.paper_tables import Cell

Verdict = Literal["reproduced", "better", "worse", "unclear", "differs", "not comparable", "not run", "quoted"]

NOT_COMPARABLE = frozenset({"mnist-kmnist", "imgnet-10", "imgnet-20", "cif-imgnet"})
"""Scenarios whose data differ from the paper's (docs/protocol.md)."""
PERCENTAGES = ("accuracy", "gate_accuracy")
MIN_HALF_WIDTH, ROUNDING = 0.5, 0.005
"""Minimum half-width of an interval: for means and medians of percentages; for all else (rounding in print)."""
PAPERS_RUNS = 5
LEVEL = 0.05
RULE = (
    "Reproduced: our mean lies within the paper's mean ± its standard deviation (means and medians of percentages: "
    "± 0.5 points at the least); where the paper has DNF, more than half of our runs did not finish either. Better, "
    "worse: outside of it, and different by Welch's test at 5 %, with the paper's five runs; a single run of ours is "
    "taken to vary as the paper's do, and a figure without a spread in the paper as exact. Unclear: outside, but not "
    "different by that test: too few runs, or too scattered. Where the paper has a number, a single run of ours that "
    "did not finish is worse. Differs: neither better nor worse, as spreads, baselines that finish here but not in the "
    "paper, and fewer experts queried because some are missing or were never promoted. Short: after fewer epochs than "
    "the paper's. Not comparable: other data than the paper's. Quoted: the paper has it from elsewhere, and it is not "
    "implemented here."
)


def judge(cell: Cell, values: Sequence[float] | None, failed: float = 1.0, missing: float = 0.0) -> Verdict:
    """Compare our runs with the paper's figure; None means DNF, in the share `failed` of our runs.

    `missing` is the mean number of experts never created or never promoted, which cannot be queried.

    >>> ge = Cell("smnist", "GE", "accuracy", mean=99.54, std=0.09)
    >>> judge(ge, [99.1]), judge(ge, [98.0]), judge(ge, [99.6, 97.0]), judge(ge, None)
    ('reproduced', 'worse', 'unclear', 'worse')
    """
    if cell.scenario in NOT_COMPARABLE:
        return "not comparable"
    if cell.mean is None:  # a baseline that did not finish; finishing is not a reproduction
        return "reproduced" if values is None and failed > 0.5 else "differs"
    if values is None:
        return "worse"
    mean = float(np.mean(values))
    figure, _, statistic = cell.figure.partition(".")
    is_average = statistic in ("", "mean", "median")
    least = MIN_HALF_WIDTH if is_average and figure in PERCENTAGES else ROUNDING
    if abs(mean - cell.mean) <= max(cell.std or 0.0, least) + 1e-9:
        return "reproduced"
    if not is_average:
        return "differs"  # a correlation or a spread is neither good nor bad
    if figure == "experts_queried" and mean < cell.mean and (cell.method == "GE" or missing):
        return "differs"  # GE queries all its experts, so one of them is missing
    if not _significant(cell.mean, cell.std or 0.0, values):
        return "unclear"
    return "better" if (mean > cell.mean) == (figure in PERCENTAGES) else "worse"


def _significant(papers: float, deviation: float, values: Sequence[float]) -> bool:
    """Return whether our mean differs from the paper's, given both spreads and numbers of runs."""
    mean, count = float(np.mean(values)), len(values)
    ours = float(np.std(values, ddof=1)) if count > 1 else deviation
    if not ours and not deviation:
        return mean != papers  # both exact
    if count == 1:
        distance, freedom = abs(mean - papers) / (deviation * sqrt(1 + 1 / PAPERS_RUNS)), float(PAPERS_RUNS - 1)
    else:  # Welch
        own, theirs = ours**2 / count, deviation**2 / PAPERS_RUNS
        distance = abs(mean - papers) / sqrt(own + theirs)
        freedom = (own + theirs) ** 2 / (own**2 / (count - 1) + theirs**2 / (PAPERS_RUNS - 1))
    return bool(2 * stdtr(freedom, -distance) < LEVEL)
