from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hge import GatedExperts
from hge.learning.novelty import Novelty
from hge.learning.routing import Answerer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model() -> GatedExperts:
    x, y = load_digits(return_X_y=True)
    model = GatedExperts(joint=True, gate_score="class-sketch", routing="sample")
    for part in (y < 3, y >= 7):
        model.partial_fit(x[part], y[part])
    return model.flush()


def test_single_rows_are_answered_by_all_experts_that_may_be_right(model: GatedExperts) -> None:
    """A blend of two digits of different experts is no certain row, however sure the chosen expert is of it."""
    x, y = load_digits(return_X_y=True)
    rows = torch.tensor((x[y == 1][:100] + x[y == 8][:100]) / 2, dtype=torch.float32)
    answers = Answerer(model.learner_)
    routes = answers.route(rows, "sample")
    expert = np.exp(-routes.scores)
    whole = answers.probabilities(rows, routes, 6)
    parts = sum(w[:, None] * answers._of_expert(e, rows, 6) for e, w in enumerate(expert))
    np.testing.assert_allclose(whole, parts, atol=2e-3)
    np.testing.assert_allclose(whole.sum(axis=1), 1)
    assert (whole.max(axis=1) <= expert.max(axis=0) + 2e-3).all()


def test_a_batch_is_answered_by_one_expert(model: GatedExperts) -> None:
    x, y = load_digits(return_X_y=True)
    rows = torch.tensor(x[y == 1][:20], dtype=torch.float32)
    answers = Answerer(model.learner_)
    routes = answers.route(rows, "batch")
    np.testing.assert_array_equal(
        answers.probabilities(rows, routes, 6), answers._of_expert(int(routes.expert[0]), rows, 6)
    )


def test_few_known_rows_are_unknown_and_most_rows_of_new_classes_are() -> None:
    x, y = load_digits(return_X_y=True)
    held_out = np.arange(len(y)) % 3 == 0
    model = GatedExperts(joint=True)
    for part in (y < 4, (y >= 4) & (y < 8)):
        for _ in range(4):
            model.partial_fit(x[part & ~held_out], y[part & ~held_out])
    model.flush()
    replay = np.concatenate([kept.batch.x.numpy() for e in model.learner_.experts for kept in e.replay.kept])
    for rate in (0.05, 0.2):
        known = model.is_unknown(x[held_out & (y < 8)], false_alarms=rate).mean()
        new = model.is_unknown(x[y >= 8], false_alarms=rate).mean()
        assert 0.4 * rate < known < 1.8 * rate
        assert new > 3 * known
        assert model.is_unknown(replay, false_alarms=rate).mean() < rate, "they are known by themselves, too"


def test_without_a_memory_the_replay_says_what_is_usual() -> None:
    x, y = load_digits(return_X_y=True)
    model = GatedExperts(joint=True, memory_rows=0, gate_score="class-sketch").fit(x[y < 5], y[y < 5])
    replay = np.concatenate([kept.batch.x.numpy() for e in model.learner_.experts for kept in e.replay.kept])
    assert model.is_unknown(replay, false_alarms=0.1).mean() == pytest.approx(0.1, abs=0.005)


@pytest.mark.parametrize("rate", [0, 1, -0.1, float("nan")])
def test_a_rate_of_false_alarms_is_between_0_and_1(model: GatedExperts, rate: float) -> None:
    with pytest.raises(ValueError, match="false_alarms: got"):
        model.is_unknown(np.zeros((1, 64)), false_alarms=rate)


def test_the_experts_that_are_left_answer_though_none_of_them_seems_right() -> None:
    """If newcomers do not answer, all that may may be improbable."""
    x, y = load_digits(return_X_y=True)
    model = GatedExperts(joint=True, newcomers_answer=False, routing="sample", organisation="lca", promotion_rate=0.99)
    for part in (y < 5, y >= 5):
        model.partial_fit(x[part], y[part])
    assert model.learner_.newcomers
    np.testing.assert_allclose(model.predict_proba(x).sum(axis=1), 1, rtol=1e-5)


def test_what_is_usual_follows_the_scores_when_a_stream_ends() -> None:
    x, y = load_digits(return_X_y=True)
    model = GatedExperts(joint=True, memory_rows=0).partial_fit(x[:320], y[:320])
    model.predict_unknown(x[:5])
    model.flush()
    usual = model.predict_unknown(x[:5])
    fresh = Novelty(Answerer(model.learner_))(torch.tensor(x[:5], dtype=torch.float32))
    np.testing.assert_allclose(usual, fresh)
