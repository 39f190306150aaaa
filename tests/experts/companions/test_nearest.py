from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.neighbors import KNeighborsClassifier

from hge.experts.companions.nearest import NEIGHBOURS, ROWS_FOR_SCALE, NearestRows

RNG = np.random.default_rng(0)


def rows(count: int, inputs: int = 3) -> tuple[np.ndarray, np.ndarray]:
    return RNG.normal(size=(count, inputs)).astype(np.float32), RNG.integers(0, 3, count)


def test_agrees_with_scikit_learn_about_the_neighbours() -> None:
    x, y = rows(200)
    memory = NearestRows(capacity=500)
    memory.add(x, y)
    asked = rows(50)[0]
    found = memory.probabilities(asked, classes=3)
    distance, nearest = KNeighborsClassifier(NEIGHBOURS).fit(x, y).kneighbors(asked)
    weight = 1 / (distance / distance.mean(axis=1, keepdims=True) + 0.1)
    expected = np.stack([(weight * (y[nearest] == k)).sum(axis=1) for k in range(3)], axis=1)
    assert_allclose(found, expected / expected.sum(axis=1, keepdims=True), rtol=1e-3)


def test_forgets_the_oldest_rows_of_the_most_frequent_class() -> None:
    memory = NearestRows(capacity=5)
    memory.add(np.arange(4, dtype=np.float32)[:, None], np.array([0, 0, 0, 1]))
    memory.add(np.arange(4, 8, dtype=np.float32)[:, None], np.array([2, 2, 2, 2]))
    assert_array_equal(memory.x.ravel(), [1, 2, 3, 6, 7])
    assert_array_equal(memory.y, [0, 0, 1, 2, 2])
    memory.add(np.arange(9, dtype=np.float32)[:, None], np.zeros(9, np.int64))
    assert_array_equal(memory.y, [1, 2, 2, 0, 0])
    assert_array_equal(memory.x.ravel(), [3, 6, 7, 7, 8])


@pytest.mark.parametrize("rows_seen", [20, 2 * ROWS_FOR_SCALE])
def test_inputs_of_very_different_scales_count_alike(rows_seen: int) -> None:
    """The label depends on the first input, the second is noise with a spread a million times larger."""
    x, _ = rows(rows_seen, inputs=2)
    y = (x[:, 0] > 0).astype(np.int64)
    memory = NearestRows(capacity=1000)
    memory.add(x * np.array([1, 1e6], np.float32), y)
    asked = rows(200, inputs=2)[0]
    clear = np.abs(asked[:, 0]) > 1
    answers = memory.probabilities(asked * np.array([1, 1e6], np.float32), classes=2).argmax(axis=1)
    assert (answers == (asked[:, 0] > 0))[clear].mean() > 0.9


def test_rows_far_from_zero_are_told_apart() -> None:
    x, _ = rows(200, inputs=2)
    y = (x[:, 0] > 0).astype(np.int64)
    memory = NearestRows(capacity=1000)
    memory.add(x + np.float32(10_000), y)
    asked = rows(200, inputs=2)[0]
    clear = np.abs(asked[:, 0]) > 0.5
    answers = memory.probabilities(asked + np.float32(10_000), classes=2).argmax(axis=1)
    assert (answers == (asked[:, 0] > 0))[clear].mean() > 0.95


def test_state_is_restored() -> None:
    memory, other = NearestRows(capacity=300), NearestRows(capacity=300)
    memory.add(*rows(200))
    other.load_state(memory.state())
    asked = rows(10)[0]
    assert_array_equal(memory.probabilities(asked, 3), other.probabilities(asked, 3))
    more = rows(200)
    memory.add(*more)
    other.add(*more)
    assert_array_equal(memory.probabilities(asked, 3), other.probabilities(asked, 3))
