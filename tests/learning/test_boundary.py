"""Tasks that change in the middle of a batch: experts keep to their own rows, so that they are found again."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from hge import GatedExperts
from hge.core.events import BatchDivided, ExpertChanged
from hge.gating.switch_detection import change_point

ORDER, BATCH = (0, 1, 0, 2, 1), 32


@pytest.mark.slow
@pytest.mark.parametrize("call", [1, 7, 20, 32, 200])
def test_known_tasks_go_back_to_their_experts(call: int) -> None:
    """Pairs of digits A B A C B, 11 or 22 rows into a batch: expert 0 for A, 1 for B, 2 for C."""
    X, y = load_digits(return_X_y=True)
    rng, visit = np.random.default_rng(100), 15 * BATCH + 11
    rows = np.concatenate([rng.choice(np.flatnonzero(y // 2 == pair), visit) for pair in ORDER])
    model = GatedExperts()
    for start in range(0, len(rows), call):
        model.partial_fit(X[rows[start : start + call]], y[rows[start : start + call]])
    assert model.n_experts_ == 3
    assert [event.expert for event in model.events_ if isinstance(event, ExpertChanged)] == [1, 0, 2, 1]
    divided = [
        (event.batch * BATCH + event.rows, event.expert) for event in model.events_ if isinstance(event, BatchDivided)
    ]
    assert divided == [(visit, 1), (2 * visit, 0), (3 * visit, 2), (4 * visit, 1)]  # at the very row


@pytest.mark.slow
def test_the_same_labels_and_other_inputs() -> None:
    """The row of the change is found by the labels' probabilities, too, if no label is new."""
    rng, model = np.random.default_rng(0), GatedExperts()
    for shift, batches in ((0, 30), (8, 20), (0, 5)):
        x = rng.normal(size=(batches * BATCH + 16, 3))
        model.partial_fit(x + shift, (x[:, 0] * (1 if shift else -1) > 0).astype(int))
    assert model.n_experts_ == 2
    assert model.learner_.last_used == 0
    assert all(abs(event.rows - 16) <= 2 for event in model.events_ if isinstance(event, BatchDivided))


def test_a_batch_that_changes_at_its_first_or_last_row() -> None:
    likely, unlikely = np.log([0.9, 0.9]), np.log([0.1, 0.1])
    assert change_point(unlikely, likely) == 0
    assert change_point(likely, unlikely) == 2
    assert change_point(np.log([0.6, 0.1]), np.log([0.5, 0.9])) == 1, "a small difference is one, too"
