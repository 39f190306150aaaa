"""Consecutive rows: what the forward pass of the hidden Markov model gives, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hge.learning.window_routing import follow


def test_the_first_row_is_routed_as_it_would_be_alone() -> None:
    alone = np.array([[0.7], [0.2], [0.1]])
    np.testing.assert_allclose(np.exp(-follow(-np.log(alone))), alone)


def test_a_row_is_weighed_by_the_one_before_and_the_chance_of_a_change() -> None:
    alone = np.array([[0.8, 0.3], [0.1, 0.6], [0.1, 0.1]])
    prior = 0.9 * alone[:, 0] + 0.1 * (1 - alone[:, 0]) / 2
    expected = prior * alone[:, 1] / (prior * alone[:, 1]).sum()
    np.testing.assert_allclose(np.exp(-follow(-np.log(alone), change=0.1))[:, 1], expected)


@pytest.mark.parametrize("scores", [[[0.3, 40.0]], [[np.inf, 2.0]]])
def test_a_single_expert_is_certain(scores: list[list[float]]) -> None:
    np.testing.assert_array_equal(follow(np.array(scores)), [[0.0, 0.0]])
