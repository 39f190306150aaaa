"""One line of advice from the figures of an evaluation. The rules are documented in docs/howto/evaluate.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

Figures = Mapping[str, Any]
"""`name`, `accuracy` and `retention` of a method, and for GatedExperts also `experts` and `switches`."""

OURS = "GatedExperts"
TRIVIAL = ("no-change", "majority")
FEW_ROWS = 500
"""With fewer counted rows no advice is given."""
LEAST_MARGIN = 1.0
"""In percentage points; smaller differences are ignored."""


def advise(methods: Sequence[Figures], counted: int, held_out: int) -> str:
    """Return a recommendation from the prequential accuracy, retention and switches of the methods.

    >>> ours = {"name": "GatedExperts", "accuracy": 90.0, "retention": 91.0, "experts": 1, "switches": []}
    >>> sgd = {"name": "SGDClassifier", "accuracy": 89.6, "retention": 92.0}
    >>> advise([ours, sgd], counted=9000, held_out=1000)
    'GatedExperts found no switch. SGDClassifier is as good (89.6 vs 90.0 %, retention 92.0 vs 91.0 %): use that.'
    """
    named = {figures["name"]: figures for figures in methods}
    if counted < FEW_ROWS:
        return f"Only {counted} rows are counted, too few for advice; {FEW_ROWS} or more are needed."
    others = [figures for figures in methods if figures["name"] not in (OURS, *TRIVIAL)]
    rows = _Rows(counted, held_out)
    if trivial := _trivial(named, others, rows):
        return trivial
    if OURS not in named or not others:
        best = max(methods, key=lambda m: float(m["accuracy"]) + float(m["retention"]))
        missing = "other methods" if OURS in named else f"{OURS} and others"
        return f"{best['name']} has the best figures of those compared; compare it with {missing}."
    return f"{_switches(named[OURS])} {_choice(named[OURS], others, rows)}"


class _Rows:
    """Numbers of rows behind the figures, and what differences between figures they support."""

    def __init__(self, counted: int, held_out: int) -> None:
        self.counts = {"accuracy": counted, "retention": held_out}

    def compare(self, one: Figures, other: Figures, figure: str) -> int:
        """Return 1 if the first method is better, -1 if the second one is, 0 if they are about equal."""
        difference = one[figure] - other[figure]
        share = (one[figure] + other[figure]) / 200
        margin = max(LEAST_MARGIN, 200 * sqrt(share * (1 - share) / self.counts[figure]))
        return 0 if abs(difference) <= margin else (1 if difference > 0 else -1)

    def both(self, one: Figures, other: Figures) -> tuple[int, int]:
        """Compare accuracy and retention."""
        return self.compare(one, other, "accuracy"), self.compare(one, other, "retention")


def _trivial(named: Mapping[str, Figures], others: Sequence[Figures], rows: _Rows) -> str:
    """Return advice if a method without inputs predicts the stream as well as any other one."""
    learned = [*others, *([named[OURS]] if OURS in named else [])]
    reasons = {
        "no-change": "labels come in long runs",
        "majority": "at this batch size the inputs do not predict the label",
    }
    for name, reason in reasons.items():
        if learned and name in named and all(rows.compare(m, named[name], "accuracy") <= 0 for m in learned):
            shown = f"{named[name]['accuracy']:.1f} %"
            return f"No method predicts the next batch better than {name} ({shown}): {reason}."
    return ""


def _switches(ours: Figures) -> str:
    found = ours["switches"]
    if not found:
        return f"{OURS} found no switch."
    new = sum(bool(switch["new"]) for switch in found)
    switches = "1 switch" if len(found) == 1 else f"{len(found)} switches"
    return f"{OURS} found {switches} ({new} to a new expert, {len(found) - new} back to a known one)."


def _choice(ours: Figures, others: Sequence[Figures], rows: _Rows) -> str:
    compared = [(other, rows.both(other, ours)) for other in others]
    better = [other for other, signs in compared if min(signs) >= 0 and max(signs) > 0]
    if better:
        best = max(better, key=lambda m: float(m["accuracy"]) + float(m["retention"]))
        return f"{best['name']} is better ({_versus(best, ours)}): use that."
    equal = [other for other, signs in compared if signs == (0, 0)]
    if equal:
        return f"{equal[0]['name']} is as good ({_versus(equal[0], ours)}): use that."
    ahead = [other for other, signs in compared if signs[0] > 0]
    if ahead:
        best = max(ahead, key=lambda m: float(m["accuracy"]))
        return (
            f"{best['name']} follows the stream more closely, {OURS} retains earlier segments better "
            f"({_versus(best, ours)}): use {OURS} if earlier segments return."
        )
    kept = [other for other, signs in compared if signs[1] > 0]
    if kept:
        best = max(kept, key=lambda m: float(m["retention"]))
        return (
            f"{best['name']} retains earlier segments better, {OURS} follows the stream more closely "
            f"({_versus(best, ours)}): use {best['name']} if earlier segments return."
        )
    best = max(others, key=lambda m: float(m["accuracy"]) + float(m["retention"]))
    apart = " The inputs distinguish the segments." if ours["experts"] > 1 else ""
    shown = f"the next is {best['name']} ({_versus(ours, best)})"
    return f"No other method matches it in both figures; {shown}: use {OURS}.{apart}"


def _versus(one: Figures, other: Figures) -> str:
    return (
        f"{one['accuracy']:.1f} vs {other['accuracy']:.1f} %, retention {one['retention']:.1f} vs "
        f"{other['retention']:.1f} %"
    )
