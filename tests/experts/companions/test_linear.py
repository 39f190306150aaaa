from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hge.experts.companions.linear import LinearModel


def separable(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def test_a_step_by_hand() -> None:
    """One row of two inputs: standardised to 0 each, so only the intercept moves, by ½ towards the label."""
    model = LinearModel(inputs=2)
    model.learn(np.array([[3.0, 4.0]], np.float32), np.array([1]))
    assert_allclose(model.weights, [[-0.5, 0.5], [0, 0], [0, 0]])


@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_one_pass_suffices_in_any_unit(unit: float) -> None:
    model, (x, y) = LinearModel(inputs=4), separable(640)
    for start in range(0, 640, 32):
        model.learn(x[start : start + 32] * np.float32(unit), y[start : start + 32])
    test_x, test_y = separable(500, seed=1)
    assert (model.probabilities(test_x * np.float32(unit), 2).argmax(axis=1) == test_y).mean() > 0.93


def test_classes_come_one_after_the_other() -> None:
    model = LinearModel(inputs=1)
    model.learn(np.zeros((4, 1), np.float32), np.zeros(4, np.int64))
    assert_array_equal(model.probabilities(np.zeros((1, 1), np.float32), 3), [[1, 0, 0]])
    for _ in range(20):
        model.learn(np.array([[0.0], [1.0], [2.0], [3.0]], np.float32), np.array([0, 0, 2, 2]))
    found = model.probabilities(np.array([[0.0], [3.0]], np.float32), 3)
    assert_array_equal(found.argmax(axis=1), [0, 2])
    assert_allclose(found.sum(axis=1), 1)


def test_a_row_that_is_far_away_moves_nothing_far() -> None:
    model, (x, y) = LinearModel(inputs=4), separable(640)
    model.learn(x, y)
    model.learn(np.full((1, 4), 1e30, np.float32), np.array([0]))
    assert np.isfinite(model.weights).all()
    test_x, test_y = separable(500, seed=1)
    assert (model.probabilities(test_x, 2).argmax(axis=1) == test_y).mean() > 0.9


def test_state_is_restored() -> None:
    model, other, (x, y) = LinearModel(inputs=4), LinearModel(inputs=4), separable(64)
    model.learn(x, y)
    other.load_state(model.state())
    model.learn(x, y)
    other.learn(x, y)
    assert_array_equal(model.weights, other.weights)


def test_an_input_that_was_constant_at_first_is_learned_later() -> None:
    model, (x, y) = LinearModel(inputs=4), separable(640)
    model.learn(np.zeros((32, 4), np.float32), np.zeros(32, np.int64))
    model.learn(x, y)
    test_x, test_y = separable(500, seed=1)
    assert (model.probabilities(test_x, 2).argmax(axis=1) == test_y).mean() > 0.9
