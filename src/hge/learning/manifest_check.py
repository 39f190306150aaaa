"""Checks of a manifest's values: a checksum shows that a file is whole, not that its author meant well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Kind = Any
"""A type, a list of one kind, a dict of kinds by name, a tuple of alternatives, or None."""

LARGEST = 2**63
LOSSES: Kind = {"alpha": float, "signed": bool, "count": int, "mean": float, "deviation": float, "last": float}
BELIEF: Kind = {
    "in_use": int,
    "switched": float,
    "counts": [[[float]]],
    "aside": [[float]],
    "first": [[float]],
    "met": [int],
    "merged": [int],
}
LEARNER: Kind = {
    "steps": int,
    "last_used": int,
    "evaluations": {"*": int},
    "experts": [
        {
            "batches": int,
            "losses": LOSSES,
            "mistakes": LOSSES,
            "undone": int,
            "merged_into": (int, None),
            "knows_nothing": bool,
            "labels": [[int]],
            "seen": int,
            "remembered": [int],
        }
    ],
    "recent": {"previous_expert": int, "entries": [[(int, None)]]},
    "organisation": {"tree": [[int]], "probations": {"*": {"lower": [(bool, int)], "paths": [[(int, [int])]]}}},
    "outliers": int,
    "suspicion": float,
    "limited_told": int,
    "merging": ({"in_use": (int, None), "due": [[int]]}, None),
    "shortlist": ({"*": int}, None),
    "guard": ({"expert": int, "losses": LOSSES, "trained": int, "replay_loss": (float, None)}, None),
    "calibration": (
        {"usual_doubt": object, "readers": int, "batches_at_fit": [int], "stride": int},
        None,
    ),
    "memory": ({"belief": BELIEF, "classes": int, "limited": int}, None),
}
"""The values of a learner (hge/learning/state.py)."""


def check_learner(facts: Any) -> None:
    """Raise a ValueError unless the values are of their kinds and name experts that are there."""
    check_kinds(facts, LEARNER, "learner")
    recent, guard, memory = facts["recent"], facts["guard"], facts["memory"]
    named = [
        facts["last_used"],
        recent["previous_expert"],
        *(entry[1] for entry in recent["entries"] if entry[1] is not None),
    ]
    tree, probations = facts["organisation"]["tree"], facts["organisation"]["probations"]
    named += [*(node[0] for node in tree[1:]), *map(int, probations)]
    named += ([] if guard is None else [guard["expert"]]) + ([] if memory is None else [memory["belief"]["in_use"]])
    named += [fact["merged_into"] for fact in facts["experts"] if fact["merged_into"] is not None]
    for expert in named:
        if expert not in range(len(facts["experts"])):
            raise ValueError(f"learner: got expert {expert}, expected one of {len(facts['experts'])}")
    for place, (_, parent) in enumerate(tree[1:], start=1):
        if parent not in range(place):
            raise ValueError(f"learner: got node {parent} as the parent of node {place}, expected one before it")
    counts = [facts["steps"], facts["outliers"], *(e[name] for e in facts["experts"] for name in ("batches", "seen"))]
    if min(counts) < 0 or (facts["steps"] == 0 < max(counts)):
        raise ValueError("learner: got counts that are negative, or of no steps, expected those of a run")


def check_kinds(value: Any, kind: Kind, name: str) -> None:
    """Raise a ValueError that names the first value that is not of its kind; `object` allows anything.

    >>> check_kinds({"steps": [1, -7.5]}, {"steps": [int]}, "learner")
    Traceback (most recent call last):
    ValueError: learner.steps[1]: got -7.5, expected int
    """
    if isinstance(kind, tuple):
        _check_alternatives(value, kind, name)
    elif isinstance(kind, list):
        _require(isinstance(value, list), value, "list", name)
        for place, item in enumerate(value):
            check_kinds(item, kind[0], f"{name}[{place}]")
    elif isinstance(kind, dict):
        _require(isinstance(value, Mapping), value, "dict", name)
        for key in kind.keys() - {"*"}:
            if key not in value:
                raise ValueError(f"{name}: {key!r} is missing or of the wrong kind")
        for key, item in value.items():
            if key in kind or "*" in kind:
                check_kinds(item, kind.get(key, kind.get("*")), f"{name}.{key}")
    elif kind is float:
        _require(type(value) in (int, float), value, "a number", name)
    elif kind is int:
        _require(type(value) is int and -LARGEST < value < LARGEST, value, "int", name)
    elif kind is not object:
        _require(type(value) is type(None) if kind is None else type(value) is kind, value, str(kind), name)


def _check_alternatives(value: Any, kinds: tuple[Kind, ...], name: str) -> None:
    problems = []
    for kind in kinds:
        try:
            return check_kinds(value, kind, name)
        except ValueError as error:
            problems.append(str(error))
    raise ValueError(problems[0])


def _require(holds: bool, value: Any, expected: str, name: str) -> None:
    if not holds:
        raise ValueError(f"{name}: got {str(value)[:40]}, expected {expected}")
