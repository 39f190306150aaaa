"""Accuracy over the stream: asking changes nothing, and a run that was cut off goes on asking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cut_off import CutOffError, config_of, cut_off_at, outcome, whole_outcome
from hge.experiments.prequential import POINTS, average_incremental_accuracy, forgetting
from hge.experiments.recipes import build_config
from hge.experiments.run_files import ACCURACY
from hge.experiments.runner import run


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["default", "paper", "best"])
def test_asking_changes_nothing(recipe: str, tmp_path: Path) -> None:
    events, trace, plain = whole_outcome("ge", recipe)
    tracked = run(replace(config_of("ge", recipe), track=True), tmp_path)
    found = tracked.pop("tracked")
    assert outcome(tmp_path, tracked) == (events, trace, plain)
    steps = [step for step, _ in found["prequential"]]
    assert len(steps) <= POINTS
    assert steps == sorted(set(steps))
    assert found["ends"] == [visit["stop"] for visit in plain["visits"]]
    assert len(found["after_visits"]) == len(plain["visits"])
    if recipe == "paper":  # the last row is the result itself, but for the joint score's last fit
        assert sum(found["after_visits"][-1]) / 5 == pytest.approx(plain["accuracy_sample"], abs=0.01)


@pytest.mark.slow
def test_cut_off_and_resumed(tmp_path: Path) -> None:
    config = replace(config_of("ge"), track=True)
    whole = run(config, tmp_path / "whole")
    with pytest.raises(CutOffError):
        run(config, tmp_path / "cut", cut_off_at(200), checkpoint_every=41)
    partial = [line.split(",") for line in (tmp_path / "cut" / ACCURACY).read_text().splitlines()[1:]]
    assert 0 < len(partial) < len(whole["tracked"]["prequential"])
    assert run(config, tmp_path / "cut", resume=True, checkpoint_every=41)["tracked"] == whole["tracked"]
    for folder in ("whole", "cut"):  # written on the way, so that it can be watched
        lines = (tmp_path / folder / ACCURACY).read_text().splitlines()
        found = [(int(step), float(percent)) for step, percent in (line.split(",") for line in lines[1:])]
        assert found == whole["tracked"]["prequential"]
    run(config_of("ge"), tmp_path / "whole")
    assert not (tmp_path / "whole" / ACCURACY).exists()


def test_baselines_cannot_be_asked_on_the_way(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"track: got method tame, expected one of agem, .*ge-no-review, .*hge"):
        run(replace(build_config("split-digits", "tame"), track=True), tmp_path)


def test_forgetting_begins_with_the_first_visit() -> None:
    rows = [[90.0, 50.0, 0.0], [70.0, 80.0, 0.0], [95.0, 60.0, 0.0], [85.0, 60.0, 99.0]]
    assert forgetting(rows, [0, 1, 0, 2]) == pytest.approx((10 + 20) / 2)
    assert forgetting(rows[:1], [0]) is None
    assert average_incremental_accuracy(rows, [0, 1, 0, 2]) == pytest.approx((90 + 75 + 77.5 + 244 / 3) / 4)
