from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hge.cli.main import app
from hge.core.randomness import Keys
from hge.data.holdout import content_part, validation_scenario
from hge.experiments.build import build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.score_leaderboard import gates, group_rows
from hge.learning.window_routing import follow


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    config = replace(build_config("split-digits", epochs_scale=0.4), seed=100, device="cpu")
    return gates(config, tmp_path_factory.mktemp("gates"), validation=True)


@pytest.mark.slow
def test_every_score_is_on_the_board_with_its_cost(result: dict[str, Any]) -> None:
    rows = {row["score"]: row for row in result["scores"]}
    assert list(rows) == ["sketch", "autoencoder", "class-sketch", "energy", "joint"]
    directions, width = 32, 35  # of a row: 1, two lengths, the coordinates
    products = width * (width + 1) // 2
    assert rows["sketch"]["multiply_adds"] == round(64 * directions / 5 + products), "projected once for all"
    assert rows["class-sketch"]["multiply_adds"] == round(64 * directions / 5 + 2 * products), "projected once for all"
    assert rows["energy"]["multiply_adds"] == 64 * 100 + 100 * 100 + 100 * 10
    assert rows["joint"]["multiply_adds"] > rows["energy"]["multiply_adds"] + rows["class-sketch"]["multiply_adds"]
    assert all(row["microseconds"] > 0 for row in rows.values())


@pytest.mark.slow
def test_the_joint_is_as_good_as_its_best_part(result: dict[str, Any]) -> None:
    gate = {row["score"]: row["gate_accuracy"] for row in result["scores"]}
    one_row = 100 / 16 / 5  # the validation part has about 16 rows a task
    assert gate["joint"]["1"] >= max(gate[name]["1"] for name in gate if name != "joint") - one_row
    assert gate["joint"]["8"] == 100
    assert result["mixture"] >= result["scores"][-1]["accuracy"]["1"] - one_row
    assert result["part"] == "validation"


@pytest.mark.slow
def test_the_command_writes_a_table_json_and_a_plot(tmp_path: Path) -> None:
    arguments = ["gates", "split-digits", "--epochs-scale", "0.05", "--no-autoencoder", "--validation", "--seed", "100"]
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu", "--out", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "class-sketch" in done.output
    assert json.loads((tmp_path / "gates.json").read_text())["part"] == "validation"
    assert "<svg" in (tmp_path / "gates.svg").read_text()


def test_the_validation_part_is_a_tenth_that_nobody_trains_on() -> None:
    config = replace(build_config("split-digits"), device="cpu")
    whole, chosen = (
        build_scenario(config, Keys(0), None),
        validation_scenario(build_scenario(config, Keys(0), None)),
    )
    for before, after in zip(whole.tasks, chosen.tasks, strict=True):
        train, held = set(after.train.rows.tolist()), set(after.test.rows.tolist())
        assert not train & held
        assert train | held == set(before.train.rows.tolist())
    share = sum(len(t.test) for t in chosen.tasks) / sum(len(t.train) for t in whole.tasks)
    assert 0.05 < share < 0.15


@pytest.mark.slow
def test_strangers_are_told_and_the_page_shows_it(result: dict[str, Any]) -> None:
    roc = result["unknown"]
    assert 80 < roc["area"] <= 100
    assert roc["found"] == sorted(roc["found"]), "more alarms find more"


@settings(max_examples=30, deadline=None)
@given(order=st.permutations(range(12)), dtype=st.sampled_from([torch.uint8, torch.float32]))
def test_a_row_stays_in_its_part_wherever_it_stands(order: list[int], dtype: torch.dtype) -> None:
    x = torch.randint(0, 255, (12, 5), generator=torch.Generator().manual_seed(1))
    x = x.to(torch.uint8) if dtype == torch.uint8 else x / 255
    assert torch.equal(content_part(x)[order], content_part(x[order]))


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4), group=st.integers(1, 9))
def test_groups_are_full_pure_and_disjoint(sizes: list[int], group: int) -> None:
    task = np.repeat(np.arange(len(sizes)), sizes)
    groups = group_rows(task, group, Keys(0))
    assert len(groups) == sum(size // group for size in sizes)
    assert (task[groups] == task[groups][:, :1]).all()
    assert len(np.unique(groups)) == groups.size


@settings(max_examples=30, deadline=None)
@given(experts=st.integers(1, 5), rows=st.integers(1, 20), seed=st.integers(0, 5))
def test_window_gives_probabilities_and_never_looks_ahead(experts: int, rows: int, seed: int) -> None:
    scores = np.random.default_rng(seed).exponential(size=(experts, rows))
    followed = follow(scores)
    np.testing.assert_allclose(np.exp(-followed).sum(axis=0), 1)
    np.testing.assert_allclose(follow(scores[:, :1])[:, 0], followed[:, 0])
    np.testing.assert_allclose(follow(scores[:, : rows // 2 + 1]), followed[:, : rows // 2 + 1])


def test_window_without_memory_is_each_row_by_itself() -> None:
    scores = np.random.default_rng(0).exponential(size=(4, 30))
    forgetful = follow(scores, change=0.75)  # with four experts, all equally likely next
    np.testing.assert_array_equal(forgetful.argmin(axis=0), scores.argmin(axis=0))


@pytest.mark.slow
def test_a_group_of_an_unknown_task_is_recognised_better_than_a_row(result: dict[str, Any]) -> None:
    unknown = result["unknown"]
    assert set(unknown["area_of_groups"]) <= {"8", "32", "128"}, "as far as there are so many rows"
    assert unknown["area_of_groups"]["8"] >= unknown["area"] > 60
