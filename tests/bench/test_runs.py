"""`hge bench runs` measures the run that `hge run` would do, and accounts for all of its time."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hge.bench.plain_training import Model, Trainer
from hge.bench.run_parts import PartTimes, time_parts
from hge.bench.runs import RunWatch, bench_run, ignore_step, learn_stream
from hge.cli.main import app
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.learning.online import Step

SHORT = replace(build_config("split-digits", recipe="paper"), tasks=2, epochs=2)


def test_timing_the_parts_changes_no_outcome(tmp_path: Path) -> None:
    timed, steps = list[Step](), list[Step]()
    times = PartTimes(time.process_time)
    _, seconds = learn_stream(SHORT, None, lambda step, *_: timed.append(step), lambda own: time_parts(own, times))
    run(SHORT, tmp_path, lambda step, *_: steps.append(step), checkpoint_every=0)
    assert timed == steps
    assert 0.5 * seconds < sum(times.seconds.values()) <= seconds
    assert {"gate", "loss check", "expert step", "autoencoder step", "data"} <= times.seconds.keys()


def test_the_figures_add_up() -> None:
    figures = bench_run(SHORT, None, lambda text: None)
    tasks = figures["tasks"]
    assert [task["task"] for task in tasks] == ["6 and 8", "2 and 7"]
    assert sum(task["batches"] for task in tasks) == figures["batches"]
    assert sum(task["refused"] for task in tasks) == figures["refused"] > 0  # those at the boundary
    assert sum(task["batches"] * task["milliseconds"] for task in tasks) == pytest.approx(
        figures["batches"] * figures["milliseconds"], rel=0.05
    )
    assert figures["ratio"] == pytest.approx(figures["plain_milliseconds"] / figures["milliseconds"], rel=0.01)
    assert 0 < figures["ratio"] < 1
    assert figures["calls"]["loss check"] >= 1
    assert all(spent >= 0 for spent in figures["parts"].values())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["default", "best"])
def test_recipes_with_sketches_are_measured_too(recipe: str) -> None:
    config = replace(build_config("split-digits", recipe=recipe), tasks=2, epochs=1)
    assert bench_run(config, None, lambda text: None)["batches"] == 18


def test_a_task_gets_the_time_of_its_own_batches() -> None:
    ticks = iter([1.0, 3.0, 4.0])
    watch = RunWatch(lambda: next(ticks))
    for number, refused in enumerate((False, True, False)):
        watch(Step(number, 0, 1.0, 2.0, refused, queried=number, trained=()), 3, None)  # type: ignore[arg-type]
    first, second = watch.rows(0.0, [0, 1, 0], ["A", "B"])
    assert (first.task, first.batches, first.milliseconds, first.asked, first.refused) == ("A", 2, 1000.0, 1.0, 0)
    assert (second.task, second.batches, second.milliseconds, second.asked, second.refused) == ("B", 1, 2000.0, 1.0, 1)


def test_plain_training_leaves_rows_that_are_floats_as_they_are() -> None:
    trainer, x = Trainer(Model(shape=(64,), outputs=2), torch.device("cpu")), torch.rand(8, 64)
    before = x.clone()
    trainer.step(x, torch.zeros(8, dtype=torch.int64))
    assert torch.equal(x, before)
    assert trainer.sketch is not None
    centred = before - 0.5
    assert float(trainer.sketch.moments[0, 1]) == pytest.approx(float(centred.norm(dim=1).log().sum()), rel=1e-4)


@pytest.mark.slow
def test_the_command_writes_figures_and_a_profile(tmp_path: Path) -> None:
    out, profile = tmp_path / "new" / "runs.json", tmp_path / "other" / "profile.txt"
    options = ("--epochs", "1", "--device", "cpu", "--out", str(out), "--profile", str(profile))
    done = CliRunner().invoke(app, ["bench", "runs", *options], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    for text in ("plain milliseconds", "ratio", "6 and 8", "expert step"):
        assert text in done.output
    figures = json.loads(out.read_text())
    assert figures["settings"]["recipe"] == "paper"
    assert "learn_in_runs" in profile.read_text()


def test_the_run_is_that_of_the_settings() -> None:
    session, seconds = learn_stream(SHORT, None, ignore_step)
    assert session.learner.steps == session.total
    assert seconds > 0
