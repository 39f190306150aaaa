"""A stream or a disk that misbehaves, and extremes that are legitimate: nothing is lost, nothing crashes."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cut_off import CutOffError, config_of, cut_off_at, outcome, whole_outcome
from helpers.digits import digits
from helpers.small_learners import BATCHES, MLP, POOLS, SETTINGS, learner_of
from hge import GatedExperts
from hge.core.events import ExpertReused
from hge.core.types import Batch
from hge.data.scenarios import Scenario
from hge.experiments.run_files import CHECKPOINTS, EVENTS, RunRecorder
from hge.experiments.runner import run
from hge.learning.learner import Learner

Break = Callable[[int], None]


def breaking(monkeypatch: pytest.MonkeyPatch, happen: Break) -> None:
    """Let something happen in the source before it gives the batch at a place of the stream."""
    stream = Scenario.stream

    def misbehaving(self: Scenario, size: int, epochs: int, keys: Any, start: int = 0) -> Iterator[tuple[int, Batch]]:
        for place, item in enumerate(stream(self, size, epochs, keys, start), start):
            happen(place)
            yield item

    monkeypatch.setattr(Scenario, "stream", misbehaving)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "place"),
    [(RuntimeError("the queue is gone"), 1), (KeyboardInterrupt(), 100), (OSError(5, "I/O error"), 131)],
)
def test_a_source_that_raises_loses_nothing(
    error: BaseException, place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came before the error is in a checkpoint, however seldom those are; so with a source that blocks, and a
    Ctrl-C."""
    expected = whole_outcome("ge")

    def happen(at: int) -> None:
        if at == place:
            raise error

    with monkeypatch.context() as patch:
        breaking(patch, happen)
        with pytest.raises(type(error)):
            run(config_of("ge"), tmp_path / "cut")
    begun: list[int] = []
    result = run(config_of("ge"), tmp_path / "cut", lambda step, *_: begun.append(step.step), resume=True)
    assert begun[0] == place
    assert outcome(tmp_path / "cut", result) == expected


def test_a_source_that_ends_early_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Scenario.stream
    monkeypatch.setattr(
        Scenario, "stream", lambda *a, **k: (x for _, x in zip(range(50), stream(*a, **k), strict=False))
    )
    with pytest.warns(UserWarning, match=r"the stream ended after 50 of \d+ batches"):
        assert run(config_of("ge"), tmp_path)["batches"] == 50


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_source_that_repeats_needs_no_second_expert(pool: str) -> None:
    for batches in ([BATCHES[0]] * 300, [batch for batch in BATCHES[:14] for _ in range(3)], BATCHES[:14] * 3):
        learner, _ = learner_of(SETTINGS["sticky"], pool, MLP)
        list(learner.learn_all(batches))
        assert len(learner.experts) == 1


def full_from(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let the disk be full from a call on that would give a checkpoint's file its name."""
    calls, replace = [0], Path.replace

    def full(self: Path, target: Path) -> Path:
        if CHECKPOINTS in self.parts:
            calls[0] += 1
            if calls[0] >= call:
                raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)


@pytest.mark.slow
def test_a_full_disk_costs_a_checkpoint_but_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole_outcome("ge")
    full_from(monkeypatch, 8)
    told = r"checkpoint at batch \d+: .*full.checkpoints.\S+: No space left on device; the run continues"
    with pytest.warns(UserWarning, match=told):
        result = run(config_of("ge"), tmp_path / "full", checkpoint_every=41)
    assert outcome(tmp_path / "full", result) == expected


@pytest.mark.slow
def test_the_old_checkpoint_is_whole_after_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole_outcome("ge")
    with monkeypatch.context() as patch:
        full_from(patch, 8)
        with pytest.warns(UserWarning, match="No space left"), pytest.raises(CutOffError):
            run(config_of("ge"), tmp_path / "cut", cut_off_at(140), checkpoint_every=41)
    assert not list((tmp_path / "cut" / CHECKPOINTS).glob(".*.tmp")), "what was half written takes no room"
    begun: list[int] = []
    result = run(config_of("ge"), tmp_path / "cut", lambda step, *_: begun.append(step.step), resume=True)
    assert 0 < begun[0] < 123
    assert outcome(tmp_path / "cut", result) == expected


@pytest.mark.slow
def test_events_that_cannot_be_written_end_the_run_which_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = whole_outcome("ge")
    write = RunRecorder.step

    def full(self: RunRecorder, task: int, step: Any, events: Any) -> None:
        if step.step == 100:
            self._files[EVENTS].close()
            self._files[EVENTS] = open("/dev/full", "w")  # noqa: SIM115
            self._files[EVENTS].write("x" * 100_000)
        write(self, task, step, events)

    with monkeypatch.context() as patch:
        patch.setattr(RunRecorder, "step", full)
        with pytest.raises(OSError, match="No space left on device"):
            run(config_of("ge"), tmp_path / "cut", checkpoint_every=41)
    result = run(config_of("ge"), tmp_path / "cut", resume=True)
    assert outcome(tmp_path / "cut", result) == expected


@pytest.mark.slow
def test_the_command_says_which_file_and_what_to_do(tmp_path: Path) -> None:
    """Files may not grow beyond 8 kB: no checkpoint can be written, and after a while no trace."""
    options = ["--epochs-scale", "0.3", "--device", "cpu", "--checkpoint-every", "50", "--out", str(tmp_path / "run")]
    command = [sys.executable, "-m", "hge", "run", "split-digits", *options]
    limit = 8_192

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, preexec_fn=limited, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.search(
        r"checkpoint at batch 50: .*/state-\w+\.safetensors: File too large; the run continues", done.stderr
    )
    assert "trace.csv: File too large; --resume continues from the last checkpoint" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_record_that_was_shortened_is_told(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(config_of("ge"), tmp_path, cut_off_at(100), checkpoint_every=41)
    (tmp_path / "trace.csv").write_text("step\n")
    with pytest.raises(ValueError, match=r"trace\.csv: got 5 bytes, expected at least"):
        run(config_of("ge"), tmp_path, resume=True)


@pytest.mark.slow
def test_a_kill_before_the_first_checkpoint_was_finished_begins_anew(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(config_of("ge"), tmp_path, cut_off_at(3))
    (tmp_path / CHECKPOINTS).mkdir(parents=True)
    (tmp_path / CHECKPOINTS / ".state-0123456789abcdef.safetensors.tmp").write_bytes(b"half")
    assert run(config_of("ge"), tmp_path, resume=True)["batches"] > 100
    assert not (tmp_path / CHECKPOINTS).exists()


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"gate_score": "class-sketch", "joint": True}, {"organisation": "tree"}])
def test_a_task_of_a_single_class(parameters: dict[str, Any]) -> None:
    X, y = digits()
    model = GatedExperts(**parameters)
    for digit in (3, 7, 3):
        for _ in range(8):
            model.partial_fit(X[y == digit], y[y == digit])
    assert model.predict(X[y == 3]).tolist() == [3] * int((y == 3).sum())


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_batches_of_one_row(pool: Any, tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts(batch_size=1, lr=0.01, pool=pool)
    for row in range(80):
        model.partial_fit(X[row : row + 1], y[row : row + 1])
    model.save(tmp_path)
    twin = GatedExperts.load(tmp_path)
    for each in (model, twin):
        each.partial_fit(X[80:90], y[80:90])
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The number of unique classes")
def test_ten_thousand_classes_also_through_the_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((10_000, 8), dtype=np.float32)
    y = np.array([f"class {number}" for number in rng.permutation(10_000)])
    model = GatedExperts(class_capacity=10_000, batch_size=500).partial_fit(X, y)
    model.save(tmp_path)
    twin = GatedExperts.load(tmp_path)
    assert len(twin.classes_) == 10_000
    np.testing.assert_array_equal(model.predict(X[:100]), twin.predict(X[:100]))
    with pytest.raises(ValueError, match="got class number 10001, expected at most 10000"):
        twin.partial_fit(X[:1], ["one more"])


@pytest.mark.slow
def test_a_budget_on_experts_is_never_a_crash(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts(max_experts=2)
    for task in range(4):
        order = np.random.default_rng(task).permutation(64)
        for _ in range(8):
            model.partial_fit(X[:, order], (y + task) % 5)
    assert model.n_experts_ == 2
    assert any(isinstance(event, ExpertReused) for event in model.events_)
    model.save(tmp_path)
    assert GatedExperts.load(tmp_path).partial_fit(X[:, ::-1], y).n_experts_ == 2


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
def test_a_learner_may_be_given_its_batches_as_slowly_as_they_come(pool: str) -> None:
    """A source that blocks: batch by batch, each asked for only when the one before was learned, is the same."""
    whole, expected = learner_of(SETTINGS["sticky"], pool, MLP)
    steps = list(whole.learn_all(BATCHES))
    slow, events = learner_of(SETTINGS["sticky"], pool, MLP)

    def trickle(learner: Learner) -> Iterator[Batch]:
        for number, batch in enumerate(BATCHES):
            assert learner.steps == number, "nothing that came is held back"
            yield batch

    assert repr(list(slow.learn_all(trickle(slow)))) == repr(steps)
    assert repr(events) == repr(expected)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.pool.state(0).values(), slow.pool.state(0).values(), strict=True)
    )
