"""Trackers: what they are sent, how each package is called, and what it then has, as far as it is installed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, call

import pytest

from helpers.command import hge
from helpers.digits import digits
from hge import GatedExperts
from hge.core.files import read_json
from hge.tracking import MlflowTracker, ModelTracking, TensorBoardTracker, Tracker, WandbTracker, track_run


class Notes:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.numbers: list[tuple[int, dict[str, float]]] = []
        self.marks: list[tuple[int, str]] = []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.numbers.append((step, dict(values)))

    def mark(self, step: int, text: str) -> None:
        self.marks.append((step, text))


@pytest.mark.slow
def test_a_model_is_tracked_batch_by_batch() -> None:
    notes, model = Notes(), GatedExperts()
    tracking = ModelTracking(model, notes)
    tracking.update()
    assert not notes.numbers
    for low in (True, False):
        X, y = digits(low)
        for start in range(0, 480, 160):
            model.partial_fit(X[start : start + 160], y[start : start + 160])
            tracking.update(accuracy=0.5)
    losses = [(step, values) for step, values in notes.numbers if "loss" in values]
    assert [step for step, _ in losses] == list(range(30))
    assert [values["loss"] for _, values in losses] == model.history_["loss"].tolist()
    assert notes.numbers[-1] == (29, {"experts": 2.0, "rows": 960.0, "accuracy": 0.5})
    assert sum("was created" in text for _, text in notes.marks) == 1
    assert len(set(notes.marks)) == len(notes.marks)


@pytest.mark.slow
def test_a_run_is_tracked(tmp_path: Path) -> None:
    assert hge("run", "split-digits", "--tasks", "2", "--track", "--out", "run", cwd=tmp_path).returncode == 0
    notes = Notes()
    track_run(tmp_path / "run", notes)
    tracked = read_json(tmp_path / "run" / "result.json")["tracked"]["prequential"]
    found = [(step, values["accuracy"]) for step, values in notes.numbers if "accuracy" in values]
    assert found == [(step, percent / 100) for step, percent in tracked]
    experts = [values["experts"] for _, values in notes.numbers if "loss" in values]
    assert (experts[0], experts[-1], experts == sorted(experts)) == (1, 2, True)
    steps = [step for step, _ in notes.numbers]
    assert steps == sorted(steps)
    assert notes.numbers[-1][1]["accuracy_batch"] > 90
    assert any("was created" in text for _, text in notes.marks)


def track_digits(tracker: Tracker) -> list[float]:
    """Track a model that learns two tasks; return its losses."""
    model = GatedExperts()
    tracking = ModelTracking(model, tracker)
    for low in (True, False):
        model.partial_fit(*(part[:320] for part in digits(low)))
        tracking.update(accuracy=0.5)
    return model.history_["loss"].tolist()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the packages are not ours
def test_what_is_sent_is_in_the_files_of_tensorboard(tmp_path: Path) -> None:
    package = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = TensorBoardTracker(tmp_path)
    losses = track_digits(tracker)
    tracker.close()
    found = package.EventAccumulator(str(tmp_path)).Reload()
    assert [point.value for point in found.Scalars("loss")] == pytest.approx(losses)
    assert {"bound", "expert", "experts", "accuracy"} <= set(found.Tags()["scalars"])
    assert b"was created" in b"".join(t.tensor_proto.string_val[0] for t in found.Tensors("decisions/text_summary"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_sent_is_in_the_store_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run() as run:
        losses = track_digits(MlflowTracker())
    found = mlflow.MlflowClient()
    history = sorted(found.get_metric_history(run.info.run_id, "loss"), key=lambda point: point.step)
    assert [point.value for point in history] == pytest.approx(losses)
    assert {"bound", "expert", "experts", "accuracy"} <= set(found.get_run(run.info.run_id).data.metrics)
    assert any("was created" in text for text in found.get_run(run.info.run_id).data.tags.values())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_is_sent_is_in_an_offline_run_of_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    tracker = WandbTracker(project="digits", mode="offline", dir=str(tmp_path))
    losses = track_digits(tracker)
    found = dict(tracker.run.summary)
    tracker.run.finish()
    assert (found["loss"], found["batch"]) == (pytest.approx(losses[-1]), len(losses) - 1)
    assert {"bound", "expert", "experts", "accuracy", "decision"} <= set(found)
    assert list(tmp_path.rglob("*.wandb"))


def test_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", package)
    tracker = TensorBoardTracker(tmp_path)
    tracker.log(3, {"loss": 0.5})
    tracker.mark(3, "a decision")
    assert package.SummaryWriter.call_args == call(str(tmp_path))
    assert tracker.writer.mock_calls == [call.add_scalar("loss", 0.5, 3), call.add_text("decisions", "a decision", 3)]


def test_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    package = MagicMock()
    monkeypatch.setitem(sys.modules, "mlflow", package)
    tracker = MlflowTracker()
    tracker.log(3, {"loss": 0.5})
    tracker.mark(3, "a decision")
    expected = [call.log_metrics({"loss": 0.5}, step=3), call.set_tag("decision.0001", "batch 3: a decision")]
    assert package.mock_calls == expected


def test_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    run = MagicMock()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **settings: run if settings else None))
    tracker = WandbTracker(mode="offline")
    tracker.log(3, {"loss": 0.5})
    tracker.mark(2, "a decision")
    assert run.log.mock_calls == [call({"batch": 3, "loss": 0.5}), call({"batch": 2, "decision": "a decision"})]


@pytest.mark.parametrize(
    ("build", "module", "name"),
    [
        (MlflowTracker, "mlflow", "mlflow"),
        (WandbTracker, "wandb", "wandb"),
        (lambda: TensorBoardTracker("logs"), "torch.utils.tensorboard", "tensorboard"),
    ],
)
def test_what_is_missing_is_named(build: Any, module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        ValueError, match=rf"tracker: {name} is not installed; install it with: pip install 'hge\[{name}"
    ):
        build()
