"""The defaults on streams as users have them: one pass, raw units, test then train."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import make_classification

from helpers.digits import all_digits
from hge import GatedExperts
from hge.data.drift_streams import DriftStream, noise, random_rbf, sine, stagger, visit

ROWS = 32


def prequential(model: GatedExperts, stream: DriftStream) -> float:
    right = []
    for start in range(0, len(stream), ROWS):
        x, y = stream.x[start : start + ROWS], stream.y[start : start + ROWS]
        if start:
            right.append(model.predict(x) == y)
        model.partial_fit(x, y)
    return float(np.concatenate(right).mean())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # the inputs do not tell the tasks apart
def test_who_answers_when_the_inputs_do_not_tell() -> None:
    """STAGGER: the inputs of all concepts are alike. The right experts are found, and found again, by the labels."""
    model, rng = GatedExperts(), np.random.default_rng(100)
    assert prequential(model, visit([stagger(k) for k in range(3)], (0, 1, 0, 2, 1), 1500, rng)) > 0.96
    assert model.n_experts_ == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # likewise
def test_reversed_labels() -> None:
    model, rng = GatedExperts(), np.random.default_rng(100)
    assert prequential(model, visit([sine(0), sine(1)], (0, 1, 0, 1), 1000, rng)) > 0.92
    assert model.n_experts_ == 2


@pytest.mark.slow
@pytest.mark.parametrize("concept", [random_rbf(3), noise()], ids=["rbf", "noise"])
def test_a_stream_that_does_not_change_has_one_expert(concept: object) -> None:
    model = GatedExperts()
    prequential(model, visit([concept], (0,), 3000, np.random.default_rng(100)))  # type: ignore[list-item]
    assert model.n_experts_ == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 2])
def test_a_task_like_later_ones_is_not_lost(seed: int) -> None:
    """Tasks overlap: much of the first one's rows is sent to later experts, which did not exist when it was in use."""
    X, y = make_classification(4500, n_informative=14, n_redundant=0, n_classes=6, class_sep=0.7, random_state=seed)
    model, tasks, after = GatedExperts(), [np.flatnonzero(y // 2 == task) for task in range(3)], []
    for rows in tasks:
        model.partial_fit(X[rows[:1024]], y[rows[:1024]])
        after.append(model.score(X[rows[1024:]], y[rows[1024:]]))
    assert model.n_experts_ == 3
    for rows, learned in zip(tasks, after, strict=True):
        assert model.score(X[rows[1024:]], y[rows[1024:]]) > learned - 0.02


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # where an expert is found, that the change was gradual
@pytest.mark.parametrize("seed", [0, 1])
def test_tasks_that_fade_into_each_other_are_not_lost(seed: int) -> None:
    """Few batches are refused, so that one expert has several tasks: it must rehearse the first ones, too."""
    rng, tasks = np.random.default_rng(seed), []
    for task in range(4):
        X, y = make_classification(
            1900, 10, n_informative=8, n_classes=3, n_clusters_per_class=1, class_sep=1.5, random_state=4 * seed + task
        )
        tasks.append((X + rng.normal(0, 2, 10), y))
    order, model = (0, 1, 2, 3, 0), GatedExperts()
    for task, following in zip(order, (*order[1:], order[-1]), strict=True):
        share = np.clip((np.arange(700) - 300) / 400, 0, 1)
        concepts = np.where(rng.random(700) < share, following, task)
        rows = [(int(k), int(rng.integers(1500))) for k in concepts]
        X, y = (np.array([tasks[k][part][row] for k, row in rows]) for part in (0, 1))
        for start in range(0, 700, ROWS):
            model.partial_fit(X[start : start + ROWS], y[start : start + ROWS])
    assert min(model.score(X[1500:], y[1500:]) for X, y in tasks) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_a_task_soon_after_another_is_noticed(seed: int) -> None:
    """Four rules, and inputs that say which one holds. An expert of 28 batches must refuse the next one's rows."""
    rng = np.random.default_rng(seed)
    rules = rng.normal(size=(4, 10))

    def draw(task: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(rows, 10))
        return np.column_stack([X, np.eye(4)[np.full(rows, task)]]), (X @ rules[task] > 0).astype(int)

    model = GatedExperts()
    for task in (0, 1, 2, 3, 0, 2):
        model.partial_fit(*draw(task, 900))
    assert (model.n_experts_, model.n_switches_) == (4, 5)
    assert min(model.score(*draw(task, 300)) for task in range(4)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("calls", [7, 32])
def test_predictions_change_nothing_that_is_learned(calls: int) -> None:
    """What is computed for a prediction is used again when the same rows are learned: it must be the same."""
    X, y = all_digits()
    pairs = np.concatenate([np.flatnonzero(np.isin(y, pair))[:192] for pair in ((0, 1), (2, 3), (0, 1))])
    asked, silent = GatedExperts(), GatedExperts()
    for start in range(0, len(pairs), calls):
        rows = pairs[start : start + calls]
        if asked.__sklearn_is_fitted__():
            asked.predict(X[rows])
        for model in (asked, silent):
            model.partial_fit(X[rows], y[rows])
    one, other = (model.learner_.snapshot() for model in (asked, silent))
    assert one.facts == other.facts
    assert len(one.experts) == 2
    for own, expected in zip([one.tensors, *one.experts], [other.tensors, *other.experts], strict=True):
        assert own.keys() == expected.keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in own.items())


@pytest.fixture(scope="module")
def digit_by_digit() -> GatedExperts:
    """One pass over the ten digits, one after the other: four to six batches each."""
    X, y = all_digits()
    order = np.argsort(y, kind="stable")
    model = GatedExperts()
    for start in range(0, len(y), 20):
        model.partial_fit(X[order[start : start + 20]], y[order[start : start + 20]])
    return model.flush()


@pytest.mark.slow
def test_one_class_at_a_time_in_one_pass(digit_by_digit: GatedExperts) -> None:
    X, y = all_digits()
    assert digit_by_digit.score(X, y) > 0.93  # all rows mixed, in one call
    assert min(digit_by_digit.score(X[y == k], y[y == k]) for k in range(10)) > 0.9


@pytest.mark.slow
def test_a_saved_model_predicts_the_same_and_learns_the_same(digit_by_digit: GatedExperts, tmp_path: Path) -> None:
    X, y = all_digits()
    digit_by_digit.save(tmp_path / "model")
    loaded = GatedExperts.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X), digit_by_digit.predict_proba(X))
    for model in (loaded, digit_by_digit):
        model.partial_fit(X[:320], y[:320])
    np.testing.assert_array_equal(loaded.predict_proba(X), digit_by_digit.predict_proba(X))


def test_rows_set_aside_predict_the_next_ones() -> None:
    """After one batch of a new task no expert has been trained on it, but its rows are remembered."""
    rng = np.random.default_rng(0)
    model = GatedExperts()
    for _ in range(12):
        x = rng.normal(size=(ROWS, 3))
        model.partial_fit(x, (x[:, 0] > 0).astype(int))
    x = rng.normal(size=(ROWS, 3)) + 20
    model.partial_fit(x, 2 + (x[:, 0] > 20).astype(int))
    assert model.n_experts_ == 1
    x = rng.normal(size=(200, 3)) + 20
    assert (model.predict(x) == 2 + (x[:, 0] > 20)).mean() > 0.75


@pytest.mark.slow
def test_an_outlier_does_not_predict_the_next_rows() -> None:
    rng, concept, model = np.random.default_rng(100), random_rbf(1000), GatedExperts()
    for _ in range(60):
        model.partial_fit(*concept(ROWS, rng))
    x, y = concept(ROWS, rng)
    model.partial_fit(x, rng.permutation(y))
    assert model.learner_.recent.trailing == 1
    x, y = concept(500, rng)
    assert (model.predict(x) == y).mean() > 0.9


@pytest.mark.parametrize("routing", ["stream", "sample", "batch", "window"])
def test_every_routing_gives_probabilities(routing: str) -> None:
    rng = np.random.default_rng(0)
    model = GatedExperts(routing=routing)
    for shift in (0, 10):
        for _ in range(6):
            x = rng.normal(size=(ROWS, 3)) + shift
            model.partial_fit(x, (x[:, 0] > shift).astype(int) + 2 * (shift > 0))
    x = rng.normal(size=(7, 3))
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1)
    expert, confidence = model.predict_expert(x)
    assert model.n_experts_ == 2
    assert set(expert) <= {0, 1}
    assert (confidence > 0).all()
    assert (confidence <= 1).all()


def test_the_network_alone() -> None:
    rng = np.random.default_rng(0)
    model = GatedExperts(memory_rows=0)
    for _ in range(40):
        x = rng.normal(size=(ROWS, 3))
        model.partial_fit(x, (x[:, 0] > 0).astype(int))
    x = rng.normal(size=(200, 3))
    assert (model.predict(x) == (x[:, 0] > 0)).mean() > 0.9
