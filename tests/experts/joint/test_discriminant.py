"""The linear model that completes the joint score: against scikit-learn's, by hand, undone, and restored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from hge.core.types import Batch
from hge.experts.joint.discriminant import WEIGHT, Discriminant

HOST = torch.device("cpu")


def rows_of(labels: list[int], rows: int = 200, seed: int = 0) -> Batch:
    """Rows around a point of each class."""
    rng = np.random.default_rng(seed)
    y = rng.choice(labels, rows)
    points = np.random.default_rng(9).normal(size=(4, 5))
    return Batch(torch.from_numpy(points[y] + 0.8 * rng.normal(size=(rows, 5))).float(), torch.from_numpy(y))


def learned(*batches: Batch) -> Discriminant:
    own = Discriminant(outputs=4, size=5, device=HOST)
    for batch in batches:
        own.add(batch)
    own.solve()
    return own


def test_its_opinion_is_that_of_scikit_learns_whatever_the_order_of_the_rows() -> None:
    first, second, new = rows_of([0, 1]), rows_of([2, 3], seed=1), rows_of([0, 1, 2, 3], seed=2)
    x, y = torch.cat([first.x, second.x]).numpy(), torch.cat([first.y, second.y]).numpy()
    # scikit-learn shrinks each input towards its own variance, which here are nearly the same
    reference = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=5 / 405, priors=np.full(4, 0.25)).fit(x, y)
    nothing_known = np.full((len(new), 4), 0.25)
    found = learned(second, first).with_opinion(nothing_known, new.x)
    np.testing.assert_allclose(found, learned(first, second).with_opinion(nothing_known, new.x), atol=1e-9)
    opinion = found ** (1 / WEIGHT)
    opinion /= opinion.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(opinion, reference.predict_proba(new.x.numpy()), atol=0.04)


def test_it_weighs_half_as_much_as_what_it_completes() -> None:
    own, row = learned(rows_of([0, 1])), rows_of([0, 1], rows=1, seed=3).x
    opinion = own.with_opinion(np.full((1, 2), 0.5), row) ** (1 / WEIGHT)
    given = np.array([[0.3, 0.7]])
    expected = given * np.sqrt(opinion / opinion.sum())
    np.testing.assert_allclose(own.with_opinion(given, row), expected / expected.sum())


def test_classes_that_came_since_are_left_to_the_others() -> None:
    own = learned(rows_of([0, 1]))
    own.add(rows_of([2], rows=20, seed=4))
    sure = np.array([[0.05, 0.05, 0.9]])
    assert own.with_opinion(sure, rows_of([2], rows=1, seed=5).x).argmax() == 2
    own.solve()
    unsure = np.array([[0.35, 0.35, 0.3]])
    assert own.with_opinion(unsure, rows_of([2], rows=1, seed=5).x).argmax() == 2


def test_before_any_row_it_says_nothing() -> None:
    given = np.array([[0.2, 0.8]])
    np.testing.assert_array_equal(Discriminant(4, 5, HOST).with_opinion(given, torch.zeros(1, 5)), given)


def test_a_batch_can_be_taken_away() -> None:
    own, never = learned(rows_of([0, 1]), rows_of([2, 3], seed=1)), learned(rows_of([0, 1]))
    own.remove(rows_of([2, 3], seed=1))
    own.solve()
    given, x = np.full((8, 4), 0.25), rows_of([0, 1], rows=8, seed=6).x
    np.testing.assert_allclose(own.with_opinion(given, x), never.with_opinion(given, x), rtol=1e-9)


@pytest.mark.parametrize("solved", [True, False])
def test_it_goes_on_after_it_was_restored(solved: bool) -> None:
    own, other = learned(rows_of([0, 1])), Discriminant(4, 5, HOST)
    own.add(rows_of([2], seed=7))
    if solved:
        own.solve()
    other.load_state(own.state())
    given, x = np.full((8, 4), 0.25), rows_of([0, 1, 2], rows=8, seed=8).x
    for _ in range(2):
        np.testing.assert_array_equal(own.with_opinion(given, x), other.with_opinion(given, x))
        own.solve()
        other.solve()
