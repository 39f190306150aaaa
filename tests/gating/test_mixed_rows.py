"""Whose rows are mixed ones, and whose all: probabilities by hand, and by summing over all possibilities."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.special import gammaln

from hge.gating.mixed_rows import UNEQUAL, log_probability_of_one, mixed

NEARLY_RIGHT = np.array([[0.98, 0.01, 0.01], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]])


def test_rows_of_one_by_hand() -> None:
    """Polya's urn: of 2 + 1 balls the first colour is drawn, then the second, then the first again."""
    found = log_probability_of_one(np.array([2, 1]), np.array([[2.0, 1.0], [1.0, 1.0]]))
    assert_allclose(np.exp(found), [2 / 3 * 1 / 4 * 3 / 5, 1 / 2 * 1 / 3 * 2 / 4])


def test_one_row_may_be_of_any_expert_that_is_possible() -> None:
    log_probability, owners = mixed(np.array([0, 1, 0]), NEARLY_RIGHT, np.array([1.0, 1.0, 0.0]))
    assert log_probability == pytest.approx(np.log((0.01 + 0.98) / 2))
    assert_allclose(owners[:, 1], [0.01 / 0.99, 0.98 / 0.99, 0])


def test_unequal_shares_are_nearly_as_probable_as_the_sum_over_all_owners_says() -> None:
    seen = np.array([5, 1, 1])
    choices = np.repeat(range(3), seen)
    exact = -np.inf
    for owners in product(range(3), repeat=len(choices)):
        counts = np.bincount(owners, minlength=3)
        of_shares = gammaln(counts + 1 / 3).sum() - 3 * gammaln(1 / 3) - gammaln(1 + len(choices))
        exact = np.logaddexp(exact, of_shares + np.log(NEARLY_RIGHT[owners, choices]).sum())
    equal = np.log(np.full(3, 1 / 3) @ NEARLY_RIGHT)[choices].sum()
    expected = np.logaddexp(np.log(1 - UNEQUAL) + equal, np.log(UNEQUAL) + exact)
    found, _ = mixed(seen, NEARLY_RIGHT, np.ones(3))
    assert expected - 0.2 < found <= expected  # a lower bound


def test_a_few_rows_of_another_expert_are_its_own() -> None:
    counted = 300 * NEARLY_RIGHT
    seen = np.array([170, 30, 0])
    as_many, owners = mixed(seen, NEARLY_RIGHT, np.ones(3))
    assert as_many > log_probability_of_one(seen, counted).max() + 5
    assert owners[1, 1] > 0.9 > 0.5 > owners[1, 0]


def test_rows_of_two_experts_of_many_are_not_those_of_one_that_errs() -> None:
    """Each is known from 33 rows. If all shares were equally probable, the eight absent ones would tell against it."""
    counted = 32 * np.eye(10) + 0.1
    seen = np.array([15, 15, *[0] * 8])
    as_many, owners = mixed(seen, counted / counted.sum(axis=1, keepdims=True), np.ones(10))
    assert as_many > log_probability_of_one(seen, counted).max() + 2
    assert owners[[0, 1], [0, 1]].min() > 0.9


def test_a_gate_that_errs_as_often_as_before_is_not_taken_for_mixed_rows() -> None:
    counted = 300 * np.array([[0.85, 0.15, 0.0], [0.01, 0.98, 0.01], [0.01, 0.01, 0.98]]) + 0.1
    emissions = counted / counted.sum(axis=1, keepdims=True)
    seen = np.array([170, 30, 0])
    as_many, _ = mixed(seen, emissions, np.ones(3))
    assert as_many < log_probability_of_one(seen, counted).max()


def test_an_expert_that_is_gone_owns_nothing() -> None:
    _, owners = mixed(np.array([10, 10, 10]), NEARLY_RIGHT, np.array([1.0, 0.0, 1.0]))
    assert (owners[1] == 0).all()
    assert_allclose(owners.sum(axis=0), 1)
