"""The runs needed for each table and figure of the paper, and which of them are missing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

from hge.core.config import RunConfig
from hge.core.settings import override
from hge.experiments.methods import METHODS
from hge.experiments.paper_tables import TITLES, paper_table
from hge.experiments.recipes import build_config, changes, differences
from hge.experiments.results import OURS, Result, precision_of
from hge.experiments.runner import PROTOCOL_SETTINGS

FIGURES = {1: (("smnist", "hge"),), 2: (("cif10-inv", "organise"), ("mnist-kmnist", "organise"))}
"""Figure -> (scenario, method) of the trees that it shows."""
IDENTITY_SETTINGS = (*(name for name in PROTOCOL_SETTINGS if name not in ("routing", "seed")), "precision")
"""Settings, besides score and seed, in which two results of the same run agree."""
OPTIONS = {
    "seed": "--seeds",
    "epochs": "--epochs-scale",
    "device": "--device",
    "precision": "--precision",
    "track": "--track",
}
"""Settings that `hge reproduce` takes as options of their own."""


@dataclass(frozen=True)
class Job:
    """One run: a unique name and its settings; JSON-serialisable, for files and for other machines."""

    name: str
    config: RunConfig

    @classmethod
    def of(cls, config: RunConfig) -> Job:
        """Return the job of a run with these settings.

        >>> Job.of(replace(build_config("cif10", "hge", "paper"), seed=3, device="cuda")).as_json()
        {'scenario': 'cif10', 'method': 'hge', 'recipe': 'paper', 'settings': {'seed': 3, 'device': 'cuda'}}
        """
        return cls(run_name(config), config)

    def as_json(self) -> dict[str, Any]:
        """Return the recipe and the settings that differ from it, as plain JSON values."""
        recipe = {name: getattr(self.config, name) for name in ("scenario", "method", "recipe")}
        return recipe | {"settings": differences(self.config)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Job:
        """Read a job returned by `as_json`."""
        settings = values["settings"]
        if not isinstance(settings, dict):
            raise TypeError(f"settings: got {settings!r}, expected names and values")
        config = build_config(values["scenario"], values["method"], values["recipe"]).as_json()
        for name, value in settings.items():
            part, _, inner = name.rpartition(".")
            (config[part] if part else config)[inner] = value
        return cls.of(RunConfig.from_json(config))


def required_runs(tables: Iterable[int], figures: Iterable[int] = ()) -> list[tuple[str, str]]:
    """Return the (scenario, method) pairs needed for tables and figures; rows quoted by the paper need none.

    >>> required_runs([], [1])
    [('smnist', 'hge')]
    """
    needed = []
    for number in tables:
        for cell in paper_table(number):
            method = "organise" if number in (2, 3) else OURS.get(cell.method)
            needed += [(cell.scenario, method)] if method else []
    for number in figures:
        if number not in FIGURES:
            raise ValueError(f"figure: got {number}, expected one of {', '.join(map(str, FIGURES))}")
        needed += FIGURES[number]
    return list(dict.fromkeys(needed))


def table_numbers(text: str) -> list[int]:
    """Read a table's number, or `all`.

    >>> table_numbers("all"), table_numbers("4")
    ([1, 2, 3, 4, 5], [4])
    """
    if text == "all":
        return list(TITLES)
    if not text.isdecimal() or int(text) not in TITLES:
        raise ValueError(f"table: got {text!r}, expected 1 to {len(TITLES)}, or all")
    return [int(text)]


def filter_runs(
    needed: Sequence[tuple[str, str]], scenarios: Sequence[str], methods: Sequence[str]
) -> list[tuple[str, str]]:
    """Filter `needed` by scenarios and methods; if it is empty, return all their combinations."""
    if not needed:
        return list(dict.fromkeys((scenario, method) for scenario in scenarios for method in methods))
    for name, requested, known in (
        ("scenario", scenarios, [scenario for scenario, _ in needed]),
        ("method", methods, [method for _, method in needed]),
    ):
        for value in requested:
            if value not in known:
                raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(dict.fromkeys(known))}")
    chosen = [(s, m) for s, m in needed if (not scenarios or s in scenarios) and (not methods or m in methods)]
    if not chosen:
        raise ValueError(f"method: got {', '.join(methods)}, expected one needed for {', '.join(scenarios)}")
    return chosen


def build_jobs(
    chosen: Iterable[tuple[str, str]],
    *,
    recipe: str,
    seeds: int,
    epochs_scale: float,
    device: str,
    precision: str = "fp32",
    track: bool = False,
    assignments: Sequence[str] = (),
) -> list[Job]:
    """Return the runs, ordered by seed; `assignments` override the recipe (`key=value`)."""
    if seeds < 1:
        raise ValueError(f"seeds: got {seeds}, expected at least 1")
    for setting in (assignment.partition("=")[0] for assignment in assignments):
        if setting in OPTIONS:
            raise ValueError(f"{setting}: not allowed in --set; use {OPTIONS[setting]}")
    made = []
    for scenario, method in chosen:
        config = build_config(scenario, method, recipe, epochs_scale=epochs_scale)
        for assignment in (f"precision={precision}", *assignments):
            config = override(config, assignment)
        made.append(replace(config, device=device, track=track and METHODS[method].answers_any_time))
    return [Job.of(replace(config, seed=seed)) for seed in range(seeds) for config in made]


def read_jobs(file: Path) -> list[Job]:
    """Read jobs, one JSON object per line, as printed by `hge reproduce --dry-run`."""
    jobs: dict[str, Job] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(
            f"{file}: got a file that is not text, expected one job per line, as printed by --dry-run"
        ) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            job = Job.from_json(json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file}, line {number}: expected a job as printed by --dry-run ({error})") from None
        if job.name in jobs:
            raise ValueError(f"{file}, line {number}: got {job.name} again, expected every run once")
        jobs[job.name] = job
    if not jobs:
        raise ValueError(f"{file}: got no job, expected one per line, as printed by --dry-run")
    return list(jobs.values())


def missing_jobs(jobs: Iterable[Job], results: Iterable[Result]) -> list[Job]:
    """Return the jobs without a result."""
    available: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        available.setdefault(_identity(result["protocol"]), []).append(result)
    return [
        job
        for job in jobs
        if not any(_satisfies(job, found) for found in available.get(_identity_of_job(job.config), []))
    ]


def run_name(config: RunConfig) -> str:
    """Return a name unique to the settings that decide a run's outcome."""
    recipe = build_config(config.scenario, config.method, config.recipe)
    chosen = {name: getattr(config, name) for name in IDENTITY_SETTINGS if name != "epochs"}
    own = {name: value for name, value in chosen.items() if value != getattr(recipe, name)}
    # Quoted: visits contain spaces and colons, which some file systems do not allow.
    changed = "".join(f"-{name}-{quote_plus(str(value))}" for name, value in (own | changes(config)).items())
    return f"{config.scenario}-{config.method}-{config.recipe}-epochs{config.epochs}{changed}-seed{config.seed}"


def _identity_of_job(config: RunConfig) -> tuple[Any, ...]:
    chosen = {name: getattr(config, name) for name in IDENTITY_SETTINGS}
    return _identity(chosen | {"score": config.score.name, "seed": config.seed, "changed": changes(config)})


def _identity(protocol: dict[str, Any]) -> tuple[Any, ...]:
    own = protocol | {"precision": precision_of(protocol)}
    return (*(own.get(name) for name in (*IDENTITY_SETTINGS, "score", "seed")), str(own.get("changed") or ""))


def _satisfies(job: Job, result: Result) -> bool:
    return not job.config.track or "tracked" in result
