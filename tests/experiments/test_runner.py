"""Whole runs: the golden trace, the runaway, and that a seed decides everything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.lasting import lasting
from helpers.places import GOLDEN
from hge.core.settings import override
from hge.experiments.recipes import build_config
from hge.experiments.runner import run


def decisions(folder: Path) -> list[list[object]]:
    """Kind, step, expert of every event but for single outliers, whose number may hang on the last bit of a loss."""
    lines = (folder / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    kept = ("loss_reviewed", "expert_created", "expert_promoted", "expert_changed")
    return [[e["event"], e["step"], e["expert"]] for e in events if e["event"] in kept]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["split-digits", "recurring-digits"])
def test_golden_decisions(scenario: str, tmp_path: Path) -> None:
    """Recorded by `hge run SCENARIO --epochs-scale 0.5`. A change here is a change of algorithm: see CHANGELOG.md."""
    result = run(build_config(scenario, epochs_scale=0.5), tmp_path)
    expected = json.loads((GOLDEN / f"{scenario}.json").read_text())
    assert decisions(tmp_path) == expected
    assert (result["experts"], result["switches_missed"], result["switches_false"]) == (5, 0, 0)


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    config = build_config("split-digits", epochs_scale=0.1)
    results = [run(config, tmp_path / name) for name in ("a", "b")]
    for file in ("events.jsonl", "trace.csv", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert lasting(results[0]) == lasting(results[1])
    run(replace(config, seed=1), tmp_path / "c")
    assert (tmp_path / "c" / "events.jsonl").read_bytes() != (tmp_path / "a" / "events.jsonl").read_bytes()


@pytest.mark.slow
def test_signed_deviation_runs_away(tmp_path: Path) -> None:
    """Reading 2 of docs/paper.md: the deviation as printed, without review, breeds experts within one task."""
    literal = override(build_config("split-digits", "ge-no-review"), "learner.signed_deviation=true")
    assert run(literal, tmp_path / "signed")["dnf"]
    reviewed = override(build_config("split-digits"), "learner.signed_deviation=true")
    assert run(reviewed, tmp_path / "reviewed")["dnf"], "the review does not save it"
    absolute = run(build_config("split-digits", "ge-no-review", epochs_scale=0.25), tmp_path / "absolute")
    assert not absolute["dnf"]
    assert absolute["experts"] == 5


@pytest.mark.slow
def test_papers_recipe_finds_the_tasks(tmp_path: Path) -> None:
    result = run(build_config("split-digits", recipe="paper", epochs_scale=0.5), tmp_path)
    assert decisions(tmp_path) == json.loads((GOLDEN / "split-digits-paper.json").read_text())
    assert (result["experts"], result["switches_missed"], result["switches_false"]) == (5, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "experts", "seed"), [("split-digits", 5, 0), ("permuted-digits", 10, 0), ("recurring-digits", 5, 1)]
)
def test_promised_figures(scenario: str, experts: int, seed: int, tmp_path: Path) -> None:
    """What the README claims, on one of its five seeds; tests/test_results.py looks at the results of all."""
    result = run(replace(build_config(scenario), seed=seed), tmp_path)
    assert (result["experts"], result["switches_missed"], result["switches_false"]) == (experts, 0, 0)
    assert result["accuracy_sample"] >= 96
    assert result["accuracy_batch"] >= (96 if scenario == "permuted-digits" else 99)
