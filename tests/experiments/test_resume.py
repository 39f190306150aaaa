"""A run that is cut off anywhere and resumed leaves the same bytes as one that was not."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from helpers.command import hge
from helpers.cut_off import CutOffError, config_of, cut_off_at, outcome, whole_outcome
from helpers.manifests import sealed
from hge.core.settings import override
from hge.experiments.recipes import build_config
from hge.experiments.run_files import CHECKPOINTS
from hge.experiments.runner import run
from hge.experts.joint.calibration import FitBudget

EVERY = 41


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ge", "tame"])
def test_a_run_that_is_cut_off_in_its_tests_need_not_learn_again(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, learned = config_of(method, "default"), list[int]()
    expected = whole_outcome(method)

    def cut_off(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("hge.experiments.runner.evaluate", cut_off)
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut", checkpoint_every=EVERY)
    result = run(config, tmp_path / "cut", lambda step, *_: learned.append(step.step), resume=True)
    assert outcome(tmp_path / "cut", result) == expected
    assert not learned
    assert result["samples_per_second"] > 0, "of the time before"


def test_a_run_without_checkpoints_leaves_none_of_another(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(config_of("ge", "default"), tmp_path, cut_off_at(EVERY + 1), checkpoint_every=EVERY)
    assert (tmp_path / CHECKPOINTS).exists()
    with pytest.raises(CutOffError):
        run(config_of("ge", "default"), tmp_path, cut_off_at(3), checkpoint_every=0)
    assert not (tmp_path / CHECKPOINTS).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "recipe"),
    [
        ("ge", "default"),
        ("hge", "default"),
        ("hge", "paper"),
        ("ge", "best"),
        ("separate", "default"),
        ("tame", "default"),
        ("der++", "default"),
        ("gdumb", "default"),
        ("joint", "default"),
        ("expert-gate", "default"),
        ("randumb", "default"),
        ("ewc-detected", "default"),
        ("si", "default"),
        ("lwf-every", "default"),
        ("bgd", "default"),
    ],
)
def test_cut_off_twice_and_resumed(method: str, recipe: str, tmp_path: Path) -> None:
    config, expected = config_of(method, recipe), whole_outcome(method, recipe)
    total, begun = expected[2]["batches"], list[int]()
    last = random.Random(method + recipe).randrange(EVERY + 1, total - 1)
    with pytest.raises(CutOffError):
        run(config, tmp_path, cut_off_at(last), checkpoint_every=EVERY)
    with pytest.raises(CutOffError):
        run(config, tmp_path, cut_off_at(min(last + 60, total - 1)), resume=True, checkpoint_every=EVERY)
    result = run(config, tmp_path, lambda step, *_: begun.append(step.step), resume=True, checkpoint_every=EVERY)
    assert begun[0] > 0, "it went on from the middle"
    assert outcome(tmp_path, result) == expected
    assert not (tmp_path / CHECKPOINTS).exists(), "a finished run needs none"


@pytest.mark.slow
def test_a_joint_that_looks_at_a_part_of_the_rows_goes_on_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How much it looks at, and of how many features, is no part of a checkpoint: both hang on the replay alone."""
    monkeypatch.setattr("hge.experts.joint.calibration.ROUGH", FitBudget(rows=150, iterations=10))
    monkeypatch.setattr("hge.experts.joint.calibration.FULL", FitBudget(rows=300, iterations=20))
    monkeypatch.setattr("hge.experts.joint.calibration.MAX_FEATURES_TOTAL", 60)
    config = override(config_of("ge", "best"), "track=true")
    expected = outcome(tmp_path / "whole", run(config, tmp_path / "whole"))
    with pytest.raises(CutOffError):
        run(config, tmp_path / "cut", cut_off_at(200), checkpoint_every=EVERY)
    result = run(config, tmp_path / "cut", resume=True, checkpoint_every=EVERY)
    assert outcome(tmp_path / "cut", result) == expected


def test_resuming_with_other_settings_is_an_error(tmp_path: Path) -> None:
    config = config_of("ge")
    with pytest.raises(CutOffError):
        run(config, tmp_path, cut_off_at(100), checkpoint_every=EVERY)
    before = (tmp_path / "events.jsonl").read_bytes()
    told = (
        f"resume: got other settings than those of the run in {tmp_path} (seed 7 instead of 0, learner.epsilon 5.0 "
        "instead of 4.0), expected the same; to start from the beginning, leave out --resume or delete the folder"
    )
    with pytest.raises(ValueError, match=re.escape(told)):
        run(override(override(config, "learner.epsilon=5"), "seed=7"), tmp_path, resume=True)
    assert (tmp_path / "events.jsonl").read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ge", "separate", "tame"])
@pytest.mark.parametrize("lacking", [("learner", "steps"), ("facts", "skipped")])
def test_a_checkpoint_that_lacks_something_is_told_and_kept(
    method: str, lacking: tuple[str, str], tmp_path: Path
) -> None:
    config = config_of(method)
    with pytest.raises(CutOffError):
        run(config, tmp_path, cut_off_at(EVERY + 1), checkpoint_every=EVERY)
    (manifest,) = (tmp_path / CHECKPOINTS).glob("*.json")
    body = json.loads(manifest.read_text())["body"]
    del body[lacking[0]][lacking[1]]
    manifest.write_text(sealed(body))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"{lacking[1]}.* is missing or of the wrong kind"):
        run(config, tmp_path, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_an_interrupt_at_the_very_last_batch_loses_nothing(tmp_path: Path) -> None:
    config = build_config("split-digits", epochs_scale=0.05)
    whole = run(config, tmp_path / "whole")

    def stop_at_the_last(step: Any, total: int, learner: Any) -> None:
        if step.step == total - 1:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run(config, tmp_path / "cut", stop_at_the_last, checkpoint_every=whole["batches"])
    finally:
        signal.signal(signal.SIGINT, before)
    steps: list[int] = []
    result = run(config, tmp_path / "cut", lambda step, total, learner: steps.append(step.step), resume=True)
    assert not steps, "all had been learned"
    assert result["accuracy_batch"] == whole["accuracy_batch"]


@pytest.mark.slow
def test_resuming_nothing_begins_at_the_beginning(tmp_path: Path) -> None:
    assert outcome(tmp_path, run(config_of("ge"), tmp_path, resume=True)) == whole_outcome("ge")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_kill_minus_nine(tmp_path: Path) -> None:
    """The command itself, killed at random moments, also while it writes a checkpoint."""
    options = ["run", "recurring-digits", "--epochs-scale", "0.15", "--device", "cpu", "--checkpoint-every", "7"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    assert hge(*options, "--out", "whole", cwd=tmp_path).returncode == 0
    folder, moments, kills = tmp_path / "killed", random.Random(7), 0
    for _ in range(2):  # torture_kills does it more often
        command = [sys.executable, "-m", "hge", *options, "--out", str(folder), "--resume"]
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not (folder / CHECKPOINTS).is_dir() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 1.0))
        if process.poll() is None:
            process.kill()
            kills += 1
        process.wait()
        if (folder / "result.json").is_file():
            break
    assert hge(*options, "--out", "killed", "--resume", cwd=tmp_path).returncode == 0
    assert kills >= 1
    for name in ("events.jsonl", "trace.csv"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
