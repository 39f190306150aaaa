"""What a companion keeps of its last answer is never used for other rows, or after it has learned."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from hge.experts.companions.companion import DOUBT, RATE, ROWS_KEPT, Companion, OpinionPool

RNG = np.random.default_rng(0)


def rows(count: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    x = RNG.normal(size=(count, 3)).astype(np.float32) + np.float32(shift)
    return x, (x[:, 0] > shift).astype(np.int64)


def trained(batches: int = 3) -> Companion:
    companion = Companion(inputs=3, memory_rows=50)
    for _ in range(batches):
        companion.learn(*rows(32), np.full((32, 2), 0.5))
    return companion


def answers(companion: Companion, x: np.ndarray, classes: int = 2) -> np.ndarray:
    return companion.probabilities(x, np.full((len(x), classes), 1 / classes))


def fresh(companion: Companion) -> Companion:
    """The same companion, which has not been asked anything."""
    other = Companion(inputs=3, memory_rows=50)
    other.load_state(companion.state())
    return other


@pytest.mark.parametrize("count", [1, 32, ROWS_KEPT + 1])
def test_an_answer_is_of_these_rows_and_classes(count: int) -> None:
    companion, x = trained(), rows(count)[0]
    for asked, classes in ((x, 2), (x, 2), (x + 1, 2), (x, 3), (x[: count // 2 + 1], 2), (x, 2)):
        assert_array_equal(answers(companion, asked, classes), answers(fresh(companion), asked, classes))


def test_an_answer_is_forgotten_when_the_companion_learns() -> None:
    companion, (x, y) = trained(), rows(32)
    before = answers(companion, x)
    companion.learn(x, 1 - y, np.full((32, 2), 0.5))
    assert_array_equal(answers(companion, x), answers(fresh(companion), x))
    assert (answers(companion, x) != before).any()


def test_an_answer_is_forgotten_when_a_state_is_loaded() -> None:
    companion, other, x = trained(), trained(batches=5), rows(32)[0]
    answers(companion, x)
    companion.load_state(other.state())
    assert_array_equal(answers(companion, x), answers(other, x))


def test_learning_is_the_same_whether_the_rows_were_predicted_or_not() -> None:
    one = trained()
    other = fresh(one)
    for _ in range(5):
        x, y = rows(32)
        network = RNG.dirichlet(np.ones(2), 32)
        one.probabilities(x, network)
        for companion in (one, other):
            companion.learn(x, y, network)
        for name, tensor in one.state().items():
            assert_array_equal(tensor, other.state()[name], err_msg=name)


def test_the_product_by_hand() -> None:
    pool = OpinionPool(models=2)
    pool.weights = np.array([1.0, 2.0])
    first, second = np.array([[0.5, 0.5]]), np.array([[0.8, 0.2]])
    high, low = (1 - DOUBT) * np.array([0.8, 0.2]) + DOUBT / 2
    assert_allclose(pool.probabilities([first, second]), [[high**2 / (high**2 + low**2), low**2 / (high**2 + low**2)]])


def test_a_step_of_the_weights_by_hand() -> None:
    """The gradient of log p(label) in a weight: the model's own log p(label) less the pool's expectation of it."""
    pool, opinions, y = OpinionPool(models=2), [np.array([[0.9, 0.1]]), np.array([[0.3, 0.7]])], np.array([0])
    before = pool.weights.copy()
    step = 1e-6
    gradient = []
    for model in range(2):
        values = []
        for sign in (1, -1):
            pool.weights = before.copy()
            pool.weights[model] += sign * step
            values.append(np.log(pool.probabilities(opinions)[0, 0]))
        gradient.append((values[0] - values[1]) / (2 * step))
    pool.weights = before.copy()
    pool.learn(opinions, y)
    assert_allclose(pool.weights - before, RATE * np.array(gradient), rtol=1e-5)


def test_the_model_that_is_right_prevails() -> None:
    rng, pool = np.random.default_rng(0), OpinionPool(models=3)
    for _ in range(100):
        y = rng.integers(0, 4, 32)
        right = np.where(np.eye(4)[y] > 0, 0.7, 0.1)
        noise = [rng.dirichlet(np.ones(4), 32) for _ in range(2)]
        pool.learn([noise[0], right, noise[1]], y)
    assert pool.weights[1] > 0.8
    assert pool.weights[[0, 2]].max() < 0.1
