"""The defaults on streams of short tasks, and on calls with rows of several tasks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hge import GatedExperts


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 11, 12])
def test_tasks_of_twelve_batches_are_found(seed: int) -> None:
    data = load_digits()
    rng, model = np.random.default_rng(seed), GatedExperts(random_state=seed)
    for low in range(0, 10, 2):
        own = np.flatnonzero((data.target == low) | (data.target == low + 1))
        for _ in range(12):
            rows = rng.choice(own, 32)
            model.partial_fit(data.data[rows], data.target[rows])
    assert model.n_experts_ == 5
    assert model.score(data.data, data.target) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.2, 1.0])
def test_a_stationary_stream_has_one_expert(noise: float) -> None:
    rng = np.random.default_rng(20)
    centres, labels = rng.random((25, 10)), rng.integers(0, 4, 25)
    kind = rng.integers(0, 25, 6400)
    X, y = centres[kind] + 0.05 * rng.standard_normal((6400, 10)), labels[kind]
    wrong = rng.random(6400) < noise
    y[wrong] = rng.integers(0, 4, wrong.sum())
    model = GatedExperts()
    for start in range(0, 6400, 32):
        model.partial_fit(X[start : start + 32], y[start : start + 32], classes=range(4))
    assert model.n_experts_ == 1


@pytest.mark.parametrize("seed", range(2))
def test_a_task_of_a_hundred_rows_is_predicted_as_soon_as_it_has_an_expert(seed: int) -> None:
    """Three batches, with which the expert is created; the others have not been trained on more, either."""
    model, rng = GatedExperts(), np.random.default_rng(seed)
    means = 2 * rng.normal(size=(5, 2, 8))
    for task in range(5):
        labels = rng.integers(0, 2, 100)
        model.partial_fit(means[task, labels] + rng.normal(size=(100, 8)), labels + 2 * task)
    assert model.n_experts_ == 5
    for task in range(5):
        labels = rng.integers(0, 2, 200)
        assert model.score(means[task, labels] + rng.normal(size=(200, 8)), labels + 2 * task) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_a_call_of_rows_of_an_old_task_is_its_experts_though_single_rows_are_hard_to_tell_apart(seed: int) -> None:
    """Many inputs of which each says little. What an expert has learned it recognises far better than new rows."""
    model, rng = GatedExperts(random_state=seed), np.random.default_rng(seed)
    means = 0.15 * rng.normal(size=(3, 2, 500))

    def rows(task: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(0, 2, count)
        return means[task, labels] + rng.normal(size=(count, 500)), labels + 2 * task

    for task in range(3):
        model.partial_fit(*rows(task, 1000))
    for task in range(3):
        assert model.score(*rows(task, 200)) > 0.9


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_a_call_of_rows_of_some_tasks_of_many_is_of_no_single_expert(seed: int, classes: int) -> None:
    data = load_digits()
    rng, model = np.random.default_rng(seed), GatedExperts(random_state=seed)
    rows = rng.permutation(len(data.target))
    learned, new = rows[:1350], rows[1350:]
    for digit in range(10):
        own = learned[data.target[learned] == digit]
        model.partial_fit(data.data[own], data.target[own])
    for _ in range(5):
        some = new[np.isin(data.target[new], rng.permutation(10)[:classes])]
        assert model.score(data.data[some], data.target[some]) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_tasks_whose_labels_are_noisy_are_told_apart(seed: int) -> None:
    """Three tasks with the same labels, a tenth of them wrong: losses are within the bounds of the others' experts."""
    model, rng = GatedExperts(random_state=seed), np.random.default_rng(seed)
    directions, means = rng.normal(size=(3, 10)), rng.normal(size=(3, 10))
    directions -= directions.mean(axis=0)  # each task contradicts the others

    def rows(task: int, count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(count, 10))
        return X + means[task], (X @ directions[task] > 0) ^ (rng.random(count) < noise)

    for task in range(3):
        for _ in range(100):
            model.partial_fit(*rows(task, 32, noise=0.1))
    assert model.n_experts_ == 3
    for task in range(3):
        assert model.score(*rows(task, 500, noise=0.0)) > 0.88


@pytest.mark.parametrize("between", [100, 160])
@pytest.mark.parametrize("seed", range(2))
def test_a_short_task_is_kept_when_the_long_one_before_it_returns(seed: int, between: int) -> None:
    """Its expert's bound is still wide, so that it would accept the rows of the other."""
    model, rng = GatedExperts(random_state=seed), np.random.default_rng(seed)
    means = rng.normal(size=(2, 4, 20))
    for task, count in ((0, 1000), (1, between), (0, 1000)):
        labels = rng.integers(0, 4, count)
        model.partial_fit(means[task, labels] + rng.normal(size=(count, 20)), labels)
    assert model.n_experts_ == 2
    for task in range(2):
        labels = rng.integers(0, 4, 500)
        assert model.score(means[task, labels] + rng.normal(size=(500, 20)), labels) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("coded", ["number", "columns"])
def test_the_number_of_a_site_tells_its_expert(coded: str) -> None:
    """Sites with rules of their own, and inputs that are alike but for the site."""
    model, rng = GatedExperts(), np.random.default_rng(0)
    rules = rng.normal(size=(4, 30))

    def visit(site: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(size=(rows, 30))
        code = np.eye(4)[[site] * rows] if coded == "columns" else np.full((rows, 1), float(site))
        return np.hstack([x, code]), (x @ rules[site] > 0).astype(int)

    for site in range(4):
        model.partial_fit(*visit(site, 1500))
    assert model.n_experts_ == 4
    X, y = (np.concatenate(part) for part in zip(*(visit(site, 200) for site in range(4)), strict=True))
    order = rng.permutation(len(y))
    assert model.score(X[order], y[order]) > 0.9


@pytest.mark.parametrize("seed", range(2))
def test_mixed_rows_are_predicted_right_after_an_expert_was_created(seed: int) -> None:
    """The stream ends with the batch that creates the last expert."""
    data, rng, model = load_digits(), np.random.default_rng(seed), GatedExperts(random_state=seed)
    for task, batches in (((0, 1), 9), ((2, 3), 9), ((4, 5), 30)):
        own = np.flatnonzero(np.isin(data.target, task))
        before = model.n_experts_ if task != (0, 1) else 0
        for _ in range(batches):
            rows = rng.choice(own, 32)
            model.partial_fit(data.data[rows], data.target[rows])
            if task == (4, 5) and model.n_experts_ > before:
                break
    assert model.n_experts_ == 3
    mixed = rng.permutation(np.flatnonzero(data.target < 6))
    assert model.score(data.data[mixed], data.target[mixed]) > 0.9


def gaussian_task(rng: np.random.Generator, apart: float) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Return a function that draws rows of three classes of two clusters each."""
    means = apart * rng.normal(size=(3, 2, 10))

    def draw(rows: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(3, size=rows)
        return means[y, rng.integers(2, size=rows)] + 0.6 * rng.normal(size=(rows, 10)), y

    return draw


@pytest.mark.slow
@pytest.mark.parametrize("seed", [50, 51, 52])
def test_tasks_of_ten_batches_with_the_same_labels_are_found(seed: int) -> None:
    """Labels say nothing here: it is the loss alone that rises, when the first task has hardly been learned."""
    rng = np.random.default_rng(seed)
    tasks, model = [gaussian_task(rng, apart=1.2) for _ in range(5)], GatedExperts(random_state=seed)
    for draw in tasks:
        X, y = draw(320)
        for start in range(0, 320, 32):
            model.partial_fit(X[start : start + 32], y[start : start + 32])
    assert model.n_experts_ >= 4
    assert min(model.score(*draw(300)) for draw in tasks) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [50, 51, 52])
def test_a_few_rows_of_another_task_in_a_call_are_predicted_as_such(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tasks, model = [gaussian_task(rng, apart=2.0) for _ in range(3)], GatedExperts(random_state=seed)
    for draw in tasks:
        model.partial_fit(*draw(1200))
    (X, y), (few, labels) = tasks[0](160), tasks[1](40)
    right = model.predict(np.concatenate([X, few])) == np.concatenate([y, labels])
    assert right[:160].mean() > 0.95
    assert right[160:].mean() > 0.9


def test_one_batch_of_noise_does_not_answer_for_rows_of_all_tasks() -> None:
    data, rng = load_digits(), np.random.default_rng(0)
    model = GatedExperts(random_state=0)
    known = np.flatnonzero(data.target < 6)
    for low in range(0, 6, 2):
        own = known[data.target[known] // 2 == low // 2]
        model.partial_fit(data.data[own], data.target[own])
    model.flush()
    model.partial_fit(rng.uniform(0, 16, (32, 64)), rng.integers(0, 6, 32))
    rows = rng.choice(known, 60, replace=False)
    alone = np.concatenate([model.predict(data.data[[row]]) for row in rows])
    assert (alone == data.target[rows]).mean() > 0.85
    noise = model.predict_expert(rng.uniform(0, 16, (32, 64)))  # predicted by the batch set aside: no expert is sure
    assert noise[1].max() < 0.5
