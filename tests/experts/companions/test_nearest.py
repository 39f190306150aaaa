from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.neighbors import KNeighborsClassifier

from hge.experts.companions.nearest import NEIGHBOURS, ROWS_FOR_SCALE, NearestRows, common_scale

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


def kept(memory: NearestRows) -> list[tuple[int, float]]:
    return sorted(zip(memory.y.tolist(), memory.x[:, 0].tolist(), strict=True))


def test_the_most_frequent_class_loses_one_of_its_older_rows() -> None:
    memory = NearestRows(capacity=5)
    memory.add(np.arange(4, dtype=np.float32)[:, None], np.array([0, 0, 0, 1]))
    memory.add(np.arange(4, 8, dtype=np.float32)[:, None], np.array([2, 2, 2, 2]))
    assert np.bincount(memory.y).tolist() == [2, 1, 2]
    assert {(0, 2), (1, 3), (2, 7)} <= set(kept(memory))
    memory.add(np.arange(9, dtype=np.float32)[:, None], np.zeros(9, np.int64))
    assert np.bincount(memory.y).tolist() == [2, 1, 2]
    assert {(0, 8), (1, 3), (2, 7)} <= set(kept(memory))
    memory.add(np.array([[9.0]], np.float32), np.array([3]))
    assert kept(memory) == [(0, 8), (1, 3), *[row for row in kept(memory) if row[0] == 2], (3, 9)]


def test_rows_of_the_whole_past_are_kept_beside_the_latest() -> None:
    """An expert that followed a drift, or accepted several tasks, must be able to rehearse what came first."""
    memory = NearestRows(capacity=200)
    for start in range(0, 4000, 32):
        memory.add(np.arange(start, start + 32, dtype=np.float32)[:, None], np.arange(start, start + 32) % 2)
    assert set(range(3900, 4000)) <= {int(x) for x in memory.x[:, 0]}
    assert 15 <= (memory.x < 1000).sum() <= 35  # a quarter of the other hundred


@pytest.mark.parametrize("size", [1, 7, 200])
def test_what_is_kept_does_not_depend_on_the_calls(size: int) -> None:
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(200, 3)).astype(np.float32), rng.integers(0, 4, 200)
    memory, other = NearestRows(capacity=60), NearestRows(capacity=60)
    for start in range(0, 200, 32):
        memory.add(x[start : start + 32], y[start : start + 32])
    for start in range(0, 200, size):
        other.add(x[start : start + size], y[start : start + size])
    assert_array_equal(memory.x, other.x)
    assert_array_equal(memory.y, other.y)
    assert np.bincount(memory.y).tolist() == [15] * 4


@pytest.mark.parametrize("capacity", [ROWS_FOR_SCALE // 2, 2 * ROWS_FOR_SCALE])
def test_rows_are_measured_anew_when_they_are_replaced(capacity: int) -> None:
    """Distances are kept between calls; those of replaced rows must not be."""
    memory, fresh = NearestRows(capacity), NearestRows(capacity)
    asked = rows(20)[0]
    for _ in range(12):
        memory.add(*rows(40))
        found = memory.probabilities(asked, 3)
        fresh.load_state(memory.state())
        assert_array_equal(found, fresh.probabilities(asked, 3))


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
    for _ in range(2):  # the second time, rows have been replaced
        memory.add(*rows(200))
        other.load_state(memory.state())
        asked, more = rows(10)[0], rows(200)
        assert_array_equal(memory.probabilities(asked, 3), other.probabilities(asked, 3))
        for one in (memory, other):
            one.add(*more)
        assert_array_equal(memory.x, other.x)
        assert_array_equal(memory.probabilities(asked, 3), other.probabilities(asked, 3))


def test_a_remembered_row_is_left_out_for_itself() -> None:
    memory = NearestRows(capacity=10)
    memory.add(np.array([[0.0], [0.1], [9.0]], np.float32), np.array([0, 1, 2]))
    found = memory.probabilities(memory.x[:2], classes=3, places=np.array([0, 1]))
    assert found.argmax(axis=1).tolist() == [1, 0]
    assert found[[0, 1], [0, 1]].tolist() == [0.0, 0.0]
    assert memory.probabilities(memory.x[:2], classes=3).argmax(axis=1).tolist() == [0, 1]


def test_a_row_at_the_limit_of_the_inputs_has_a_distance() -> None:
    """In the units of an input that hardly varies, its square would be infinite."""
    x, y = rows(ROWS_FOR_SCALE)
    memory = NearestRows(capacity=500)
    memory.add(x * np.array([1e-6, 1e3, 1], np.float32), y)
    for _ in range(2):
        far = np.array([[1e15, 0, 0], [-1e15, 0, 0]], np.float32)
        assert_allclose(memory.probabilities(far, classes=3).sum(axis=1), 1)
        memory.add(far, np.array([0, 1]))


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_a_memory_in_common_units_says_nothing_of_the_units_of_inputs(unit: float) -> None:
    rng = np.random.default_rng(0)
    in_common, in_own = (NearestRows(capacity=500) for _ in range(2))
    for memory, spreads in ((in_common, np.ones(4)), (in_own, 1000.0 ** np.arange(4))):
        memory.add((unit * spreads * rng.normal(size=(300, 4))).astype(np.float32), np.zeros(300, np.int64))
    assert in_common.scale is not None
    assert in_own.scale is not None
    assert (in_common.scale[1] == 1).all()
    found = common_scale([in_common, in_own])
    assert found is not None
    np.testing.assert_allclose(found[1] * unit * 1000.0 ** np.arange(4), 1, rtol=0.3)


def test_inputs_that_never_changed_speak_against_rows_where_they_do() -> None:
    memory, (x, y) = NearestRows(capacity=100), rows(60)
    site = np.full((60, 1), 7, np.float32)
    memory.add(np.hstack([x, site])[:49], y[:49])
    asked = np.hstack([x[:2], [[7], [8]]]).astype(np.float32)
    assert memory.contradictions(asked).tolist() == [0, 0], "of few rows, much is constant by chance"
    memory.add(np.hstack([x, site])[49:], y[49:])
    assert_allclose(memory.contradictions(asked), [0, np.log(62)])
    other = NearestRows(capacity=100)
    other.load_state(memory.state())
    assert_allclose(other.contradictions(asked), [0, np.log(62)])
    memory.add(np.hstack([x[:1], [[8]]]).astype(np.float32), y[:1])
    assert memory.contradictions(asked).tolist() == [0, 0], "it changes"
