"""The arena: methods on the same stream, with the same network, epochs and memory, and their leaderboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

from hge.core.config import RunConfig
from hge.core.settings import override
from hge.experiments.jobs.plan import Job
from hge.experiments.methods import METHODS
from hge.experiments.prequential import average_incremental_accuracy, forgetting, has_tracked_accuracy
from hge.experiments.recipes import build_config
from hge.experiments.results import Result

YARDSTICK = "naive"
"""The method whose time is 1: one network, one pass."""
CONTESTANTS = tuple(name for name, method in METHODS.items() if method.learns_a_stream and name != "ge-no-review")
"""All methods, without the ablation."""


def arena_jobs(
    scenario: str,
    methods: Sequence[str] = CONTESTANTS,
    *,
    memories: Sequence[int] = (0,),
    seeds: int = 1,
    recipe: str = "default",
    epochs_scale: float = 1.0,
    device: str = "cpu",
    assignments: Sequence[str] = (),
) -> list[Job]:
    """Return the runs, ordered by seed; a method with a memory runs once for each size (0: as many rows as GE).

    >>> [job.name for job in arena_jobs("split-digits", ["er", "ge"], memories=[0, 200], epochs_scale=0.1)]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['split-digits-naive-default-epochs4-seed0',
     'split-digits-er-default-epochs4-seed0',
     'split-digits-er-default-epochs4-baseline.memory-200-seed0',
     'split-digits-ge-default-epochs4-seed0']
    """
    if seeds < 1:
        raise ValueError(f"seeds: got {seeds}, expected at least 1")
    configs: list[RunConfig] = []
    for method in dict.fromkeys((YARDSTICK, *methods)):
        if method not in CONTESTANTS:
            raise ValueError(f"methods: got {method!r}, expected some of {', '.join(CONTESTANTS)}")
        own = build_config(scenario, method, recipe, epochs_scale=epochs_scale)
        for assignment in assignments:
            own = override(own, assignment)
        own = replace(own, device=device, routing="sample", track=METHODS[method].answers_any_time)
        sizes = memories if METHODS[method].needs.rows == "memory" else (0,)
        configs += [replace(own, baseline=replace(own.baseline, memory=size)) for size in sizes]
    made = [replace(config, seed=seed) for seed in range(seeds) for config in configs]
    return [Job.of(config) for config in made]


def leaderboard(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return a row for each method and size of memory, means over seeds, best single-sample accuracy first."""
    groups: dict[tuple[str, int], list[Result]] = {}
    for result in results:
        groups.setdefault((result["protocol"]["method"], _memory(result)), []).append(result)
    naive = {result["protocol"]["seed"]: result for result in groups.get((YARDSTICK, 0), [])}
    rows = [_row(method, found, naive) for (method, _), found in groups.items()]
    return sorted(rows, key=lambda row: -row["accuracy_sample"]["mean"])


def _memory(result: Result) -> int:
    return int(result["protocol"]["changed"].get("baseline.memory", 0))


def _row(method: str, results: Sequence[Result], naive: dict[int, Result]) -> dict[str, Any]:
    needs = METHODS[method].needs
    figures: dict[str, Callable[[Result], float | None]] = {
        "accuracy_sample": lambda result: result["accuracy_sample"],
        "accuracy_batch": lambda result: result["accuracy_batch"],
        "forgetting": lambda result: _tracked(result, forgetting),
        "incremental_accuracy": lambda result: _tracked(result, average_incremental_accuracy),
        "rows_kept": lambda result: result["rows_kept"],
        "parameters": lambda result: result["parameters"],
        "answer_multiply_adds": lambda result: result["cost"]["sample"]["answer_multiply_adds"],
        "training_time": lambda result: _relative(result, naive, lambda r: r["training_seconds"]),
        "answering_time": lambda result: _relative(result, naive, lambda r: r["cost"]["sample"]["answer_ms_per_row"]),
    }
    if detects_switches(method):
        figures |= {name: lambda r, name=name: r[name] for name in ("switches_missed", "switches_false")}  # type: ignore[misc]
    return {
        "method": method,
        "summary": METHODS[method].summary,
        "told": needs.told,
        "rows": needs.rows,
        "passes": needs.passes,
        "seeds": sorted(result["protocol"]["seed"] for result in results),
        "unfinished": sum(result["dnf"] for result in results),
        **{name: _mean(figure, results) for name, figure in figures.items()},
    }


def detects_switches(method: str) -> bool:
    """Return whether a method creates experts at switches that it finds by itself."""
    return METHODS[method].module in ("hge.learning.gated", "hge.baselines.tame")


def _mean(figure: Callable[[Result], float | None], results: Sequence[Result]) -> dict[str, float] | None:
    """Return mean and standard deviation over seeds; None if a result lacks the figure."""
    values = [value for value in map(figure, results) if value is not None]
    if len(values) < len(results):
        return None
    return {"mean": round(fmean(values), 3), "deviation": round(stdev(values), 3) if len(values) > 1 else 0.0}


def _tracked(result: Result, figure: Callable[[Any, Any], float | None]) -> float | None:
    """Return a figure of the accuracies after each visit, if they were recorded."""
    if not has_tracked_accuracy(result):
        return None
    return figure(result["tracked"]["after_visits"], [visit["task"] for visit in result["visits"]])


def _relative(result: Result, naive: dict[int, Result], value: Callable[[Result], float]) -> float | None:
    """Return a value relative to that of the yardstick with the same seed."""
    other = naive.get(result["protocol"]["seed"])
    return None if other is None else value(result) / value(other)
