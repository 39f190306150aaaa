from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hge.experiments.replay_mlp import CAPACITY, ReplayMLP
from hge.experiments.stream_evaluation import evaluate_stream, plan_stream, sliding_accuracy
from hge.experiments.stream_opponents import (
    STREAM_METHODS,
    MajorityClass,
    NoChange,
    Standardised,
    WindowNeighbours,
    available_methods,
    build_methods,
)

Array = npt.NDArray[Any]


class Recorder:
    """Remembers the rows it was given; predicts 1."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[float]]] = []

    def learn(self, X: Array, y: Array) -> None:
        self.calls.append(("learn", X[:, 0].tolist()))

    def predict(self, X: Array) -> Array:
        self.calls.append(("predict", X[:, 0].tolist()))
        return np.ones(len(X), dtype=np.int64)


def numbered(rows: int) -> tuple[Array, Array]:
    return np.arange(rows, dtype=np.float64)[:, None], np.arange(rows) % 2


def two_regimes(rows: int = 1600) -> tuple[Array, Array]:
    """Two regimes of opposite labels, far apart in the inputs."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=rows)
    late = np.arange(rows) >= rows // 2
    X = rng.normal(0, 0.2, (rows, 4))
    X[:, 0] += np.where(late, 1 - y, y)
    X[:, 1] += 50.0 * late
    return X, y


def test_every_batch_is_predicted_before_it_is_learned_except_the_first() -> None:
    X, y = numbered(100)
    method = Recorder()
    found = evaluate_stream(X, y, {"it": method}, batch=30, held_out=0)
    kinds = [(kind, rows[0], len(rows)) for kind, rows in method.calls]
    assert kinds == [
        ("learn", 0, 30),
        *(("predict", 30, 30), ("learn", 30, 30)),
        *(("predict", 60, 30), ("learn", 60, 30)),
        *(("predict", 90, 10), ("learn", 90, 10)),
    ]
    assert found.counted.tolist() == list(range(30, 100))
    assert found.methods[0].accuracy == 50
    assert found.methods[0].retention is None


def test_held_out_rows_are_never_learned_and_predicted_once_per_segment_at_the_end() -> None:
    X, y = numbered(400)
    method = Recorder()
    evaluate_stream(X, y, {"it": method}, segments=4)
    learned = {row for kind, rows in method.calls if kind == "learn" for row in rows}
    last = method.calls[-4:]
    assert {kind for kind, _ in last} == {"predict"}
    for segment, (_, rows) in enumerate(last):
        assert len(rows) == 10
        assert all(100 * segment <= row < 100 * segment + 100 for row in rows)
    held_out = {row for _, rows in last for row in rows}
    assert learned.isdisjoint(held_out)
    assert len(learned | held_out) == 400
    assert len({row % 10 for row in held_out}) > 3, "a periodic stream would lose classes otherwise"


def test_known_concepts_that_return() -> None:
    X, y = numbered(400)
    concepts = np.tile(np.repeat([7, 3], 100), 2)
    plan = plan_stream(X, y, concepts=concepts)
    assert [len(rows) for rows, _ in plan.held_out] == [20, 20]
    for concept, (rows, _) in zip((3, 7), plan.held_out, strict=True):
        assert (concepts[rows[:, 0].astype(int)] == concept).all()


def test_given_held_out_sets() -> None:
    X, y = numbered(100)
    found = evaluate_stream(X, y, {"it": Recorder()}, held_out=[(X[:4], np.ones(4)), (X[:4], np.zeros(4))])
    assert found.methods[0].by_concept == (100, 0)
    assert found.methods[0].retention == 50
    assert len(found.counted) == 100 - 32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: got 0"),
        ({"batch": 50}, "batch: got 50, expected at most 45: 90 rows"),
        ({"segments": 11}, "segments: got 11, expected 1 to 10 for 100 rows"),
        ({"concepts": [0, 1]}, "concepts: got shape"),
        ({"held_out": 1}, "held_out: got 1"),
        ({"concepts": np.arange(100) // 60, "held_out": 50}, "held_out: got 50"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, Any], message: str) -> None:
    X, y = numbered(100)
    with pytest.raises(ValueError, match=message):
        plan_stream(X, y, **options)
    with pytest.raises(ValueError, match="y: got 99 labels"):
        plan_stream(X, y[:99])


def test_progress() -> None:
    X, y = numbered(100)
    seen: list[Any] = []
    evaluate_stream(X, y, {"it": Recorder()}, batch=40, held_out=0, progress=lambda *values: seen.append(values))
    assert [(name, done, total) for name, done, total, _ in seen] == [
        ("it", 40, 100),
        ("it", 80, 100),
        ("it", 100, 100),
    ]
    assert seen[-1][3] == 50


def test_gated_experts_find_the_switch_and_keep_both_regimes() -> None:
    X, y = two_regimes()
    found = evaluate_stream(X, y, build_methods(["GatedExperts", "SGDClassifier"], X, y), segments=2)
    ours, linear = found.methods
    assert ours.figures["experts"] == 2
    [switch] = ours.figures["switches"]
    assert switch["new"]
    assert 800 * 0.9 <= switch["learned"] <= 800 * 0.9 + 8 * 32
    assert ours.retention is not None
    assert linear.retention is not None
    assert ours.retention > 90 > linear.retention


@pytest.mark.slow
@pytest.mark.parametrize("name", available_methods())
def test_every_method_learns_labels_of_any_kind_alike(name: str) -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(3, size=700)
    X = rng.normal(0, 0.3, (700, 3)) + 2 * np.eye(3)[codes]
    numbers, words = (
        evaluate_stream(X, y, build_methods([name], X, y), segments=2).methods[0]
        for y in (codes, np.array(["blue", "green", "red"])[codes])
    )
    assert numbers.accuracy > (25 if name in ("no-change", "majority") else 85)
    assert words.correct.tolist() == numbers.correct.tolist()


def test_batches_smaller_than_those_of_gated_experts() -> None:
    X, y = two_regimes(200)
    [result] = evaluate_stream(X, y, build_methods(["GatedExperts"], X, y), batch=5).methods
    assert len(result.correct) == 180 - 5


def test_unknown_methods_and_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = numbered(100)
    with pytest.raises(ValueError, match="methods: got 'tea', expected some of GatedExperts, no-change"):
        build_methods(["tea"], X, y)
    monkeypatch.setattr("hge.experiments.stream_opponents.find_spec", lambda _: None)
    assert "ARF" not in available_methods()
    with pytest.raises(ValueError, match="methods: got 'ARF', which needs river; install it with: pip install river"):
        build_methods(["ARF"], X, y)
    assert "ARF" in STREAM_METHODS


def test_no_change_and_majority() -> None:
    X, y = np.zeros((5, 1)), np.array([1, 1, 1, 0, 2])
    last, most = NoChange(), MajorityClass()
    for method in (last, most):
        method.learn(X, y)
    assert last.predict(X[:2]).tolist() == [2, 2]
    assert most.predict(X[:2]).tolist() == [1, 1]


def test_the_window_forgets() -> None:
    method = WindowNeighbours(window=10)
    method.learn(np.zeros((10, 1)), np.zeros(10))
    method.learn(np.zeros((10, 1)), np.ones(10))
    assert method.predict(np.zeros((1, 1))).tolist() == [1]


def test_inputs_are_standardised_by_the_given_rows() -> None:
    method = Recorder()
    scaled = Standardised(method, np.array([[1.0, 5.0], [3.0, 5.0]]))
    scaled.learn(np.array([[4.0, 5.0]]), np.array([1]))
    assert method.calls == [("learn", [2.0])]


def test_the_reservoir_is_a_sample_of_all_rows() -> None:
    method = ReplayMLP(1, np.array([0, 1]))
    X, y = numbered(4 * CAPACITY)
    for start in range(0, len(X), 100):
        method.learn(X[start : start + 100] / len(X), y[start : start + 100])
    assert method.seen == 4 * CAPACITY
    assert 0.45 < float(method.x.mean()) < 0.55
    assert len(method.x.unique()) == CAPACITY


def test_sliding_accuracy_has_few_points() -> None:
    places, accuracy = sliding_accuracy(np.ones(10_000, dtype=bool), window=100, points=50)
    assert (len(places), places[0], places[-1]) == (50, 99, 9_999)
    assert set(accuracy) == {100}
