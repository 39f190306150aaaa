"""Rows that are no data, and experts that know nothing: what was learned stays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from helpers.digits import digits
from helpers.small_learners import MLP, learner_of, stream
from hge import GatedExperts
from hge.core.config import LearnerConfig
from hge.core.events import ExpertRolledBack, RowsLimited
from hge.core.types import Batch
from hge.gating.switch_detection import LossStats, RecentEntry
from hge.learning.forward import MOST_ASKED
from hge.learning.training import train_all, train_refused
from torture.outliers import torture_outliers


def ignore(line: str) -> None:
    pass


@pytest.mark.slow
def test_one_row_costs_no_task_a_point() -> None:
    found = torture_outliers(ignore, ["default"], ["a row of 255", "half a batch of 255"], [], ["late"], [])
    assert len(found["cases"]) == 2
    assert not found["wrong"]


@pytest.mark.slow
def test_a_row_in_the_first_batch_and_one_row_in_a_hundred_for_ever() -> None:
    rng, tasks = np.random.default_rng(0), [digits(low=low) for low in (True, False)]
    parameters: dict[str, Any] = {"scale": "none", "optimiser": "sgd", "lr": 0.05, "memory_rows": 0}
    model = GatedExperts(**parameters, routing="sample")
    for X, y in tasks:
        for _ in range(5):
            spoiled = X.copy()
            spoiled[rng.random(len(X)) < 0.01] = -999.0
            spoiled[0] = -999.0
            model.partial_fit(spoiled, y)
    assert min(model.score(X, y) for X, y in tasks) > 0.9
    told = [event.rows for event in model.events_ if isinstance(event, RowsLimited)]
    assert model.rows_limited_ >= told[-1] > 10
    assert all(later >= 2 * earlier for earlier, later in pairwise(told))


def test_far_rows_are_counted_by_the_estimator_and_saved(tmp_path: Any) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:320], y[:320])
    assert model.rows_limited_ == 0
    spoiled = X[:32].copy()
    spoiled[::8] = 1e6
    model.partial_fit(spoiled, y[:32])
    assert model.rows_limited_ == 4
    assert [event.rows for event in model.events_ if isinstance(event, RowsLimited)]  # said at once, not at the end
    model.save(tmp_path / "model")
    assert GatedExperts.load(tmp_path / "model").rows_limited_ == 4


def test_a_refused_batch_that_would_undo_an_expert_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, events = learner_of(LearnerConfig(), "stacked", MLP)
    batches = list(stream("0", 30))
    list(learner.learn_all(batches[:25]))
    expert = learner.experts[0]
    before, kept, loss = learner.pool.state(0), list(expert.replay.kept), expert.losses.mean
    train = learner.pool.train

    def ruinous(number: int, batch: Batch, step: int) -> float:
        found = train(number, batch, step)
        state = learner.pool.state(number)
        last = [name for name in state if name.startswith("net") and name.endswith("weight")][-1]
        state[last] *= -100
        learner.pool.load_state(number, state)
        return found

    monkeypatch.setattr(learner.pool, "train", ruinous)
    assert train_refused(learner, expert, RecentEntry(25, batches[26])) == ()
    assert [event.batches for event in events if isinstance(event, ExpertRolledBack)] == [1]
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.pool.state(0).items())
    assert expert.replay.kept == kept
    assert expert.losses.mean == loss


def two_experts() -> tuple[Any, list[list[Batch]]]:
    learner, _ = learner_of(LearnerConfig(sticky=True), "stacked", MLP)
    tasks = [list(stream(name, 14)) for name in "01"]
    for number, batches in enumerate(tasks):
        if number:
            learner.tree.add(learner.new_expert().id)
        entries = [RecentEntry(step, batch) for step, batch in enumerate(batches[:9])]
        train_all(learner, learner.experts[number], entries)
    return learner, tasks


def test_an_expert_that_knows_nothing_leaves_batches_to_one_that_does() -> None:
    learner, tasks = two_experts()
    hole = learner.experts[1]
    hole.losses = LossStats(count=100, mean=1.4, deviation=10.0)
    hole.knows_nothing, learner.last_used = True, hole.id
    taken = [learner.learn(batch).expert for batch in tasks[0][9:12]]
    assert taken == [0, 0, 0]


def test_whether_an_expert_knows_anything_is_seen_when_it_is_copied() -> None:
    learner, _ = two_experts()
    expert = learner.experts[0]
    for mean, knows_nothing in ((0.01, False), (5.0, True)):
        expert.losses = LossStats(count=100, mean=mean)
        learner.guard.watch(learner.experts[1], 0)
        learner.guard.watch(expert, 0)
        assert expert.knows_nothing is knows_nothing


def test_of_many_experts_only_some_are_asked_for_a_refused_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _ = learner_of(LearnerConfig(label_evidence=True), "stacked", MLP)
    batches = list(stream("0", 12))
    list(learner.learn_all(batches[:9]))
    while len(learner.experts) < 2 * MOST_ASKED:
        learner.tree.add(learner.new_expert().id)
    asked = set()
    loss = learner.pool.loss

    def counted(expert: int, batch: Batch, step: int) -> float:
        asked.add(expert)
        return loss(expert, batch, step)

    monkeypatch.setattr(learner.pool, "loss", counted)
    for expert in learner.experts:
        expert.losses = LossStats(count=2, mean=-1.0)
    learner.learn(batches[10])
    assert MOST_ASKED <= len(asked) <= MOST_ASKED + 2
