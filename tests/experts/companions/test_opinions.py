from __future__ import annotations

import numpy as np
from numpy.testing import assert_allclose

from hge.experts.companions.companion import DOUBT, RATE, OpinionPool


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
