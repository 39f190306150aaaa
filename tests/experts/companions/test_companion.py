"""What a companion keeps of its last answer is never used for other rows, or after it has learned."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hge.experts.companions.companion import ROWS_KEPT, Companion

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
