"""The arena: which runs it needs, what its leaderboard says of results, and the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.command import hge
from hge.experiments.arena import CONTESTANTS, arena_jobs, leaderboard
from hge.experiments.methods import METHODS


def result_of(method: str, seed: int, accuracy: float, **others: Any) -> dict[str, Any]:
    return {
        "protocol": {"method": method, "seed": seed, "changed": others.pop("changed", {})},
        "accuracy_sample": accuracy,
        "accuracy_batch": accuracy + 1,
        "rows_kept": 10,
        "parameters": 100,
        "training_seconds": 2.0,
        "cost": {"sample": {"answer_multiply_adds": 5, "answer_ms_per_row": 0.1}},
        "dnf": False,
        "switches_missed": 0,
        "switches_false": 1,
    } | others


def test_rows_are_means_over_seeds_and_times_relative_to_the_same_seed() -> None:
    rows = leaderboard(
        [
            result_of("naive", 0, 20.0, training_seconds=1.0),
            result_of("naive", 1, 22.0, training_seconds=2.0),
            result_of("er", 0, 80.0, training_seconds=3.0),
            result_of("er", 1, 90.0, training_seconds=2.0),
            result_of("er", 0, 95.0, changed={"baseline.memory": 500}),
        ]
    )
    assert [(row["method"], row["seeds"]) for row in rows] == [("er", [0]), ("er", [0, 1]), ("naive", [0, 1])]
    assert rows[1]["accuracy_sample"] == {"mean": 85.0, "deviation": 7.071}
    assert rows[1]["training_time"]["mean"] == 2.0, "the mean of 3 / 1 and 2 / 2"
    assert rows[1]["told"] == "nothing"
    assert rows[1]["forgetting"] is None, "not recorded"


def test_forgetting_is_of_the_accuracies_after_each_visit() -> None:
    tracked = {"after_visits": [[90.0, 0.0], [80.0, 70.0]], "prequential": [[1, 50.0]]}
    visits = [{"task": 0}, {"task": 1}]
    (row,) = leaderboard([result_of("naive", 0, 75.0, tracked=tracked, visits=visits)])
    assert (row["forgetting"]["mean"], row["incremental_accuracy"]["mean"]) == (10.0, 82.5)


def test_only_methods_that_find_switches_have_them() -> None:
    rows = {row["method"]: row for row in leaderboard([result_of(name, 0, 50.0) for name in CONTESTANTS])}
    assert {name for name, row in rows.items() if "switches_false" in row} == {"ge", "hge", "tame"}
    assert {name for name, row in rows.items() if row["told"] != "nothing"} >= {"separate", "expert-gate", "joint"}


def test_every_memory_is_run_and_names_are_distinct() -> None:
    jobs = arena_jobs("split-digits", memories=[0, 200], seeds=2)
    assert len({job.name for job in jobs}) == len(jobs)
    with_memory = [name for name in CONTESTANTS if METHODS[name].needs.rows == "memory"]
    assert len(jobs) == 2 * (len(CONTESTANTS) + len(with_memory))
    with pytest.raises(ValueError, match="methods: got 'organise', expected some of ge"):
        arena_jobs("split-digits", ["organise"])
    with pytest.raises(ValueError, match="seeds: got 0"):
        arena_jobs("split-digits", seeds=0)


@pytest.mark.slow
def test_the_command_writes_a_leaderboard_and_runs_only_what_is_missing(tmp_path: Path) -> None:
    command = ["arena", "split-digits", "--epochs-scale", "0.02", "--out", str(tmp_path / "arena")]
    first = hge(*command, "--methods", "er", "--memory", "100", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = hge(*command, "--methods", "er,gdumb", "--memory", "100", cwd=tmp_path)
    assert f"Runs: 3; already in {tmp_path / 'arena' / 'results'}: 2." in second.stdout
    board = json.loads((tmp_path / "arena" / "arena.json").read_text())
    assert {row["method"]: row["rows_kept"]["mean"] for row in board["methods"]} == {
        "naive": 0,
        "er": 100,
        "gdumb": 100,
    }
    page = (tmp_path / "arena" / "report.html").read_text()
    assert "end of stream" in page
    assert page.count("<svg") == 2
