"""Experts of the same task are merged, experts of different tasks are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.small_learners import MLP, SETTINGS, learner_of
from hge import GatedExperts
from hge.core.events import ExpertsMerged
from hge.core.types import Batch
from hge.data.drift_streams import stagger, visit
from hge.gating.promotion import Organisation
from hge.gating.stream_belief import StreamBelief
from hge.gating.switch_detection import RecentEntry
from hge.gating.tree import Tree
from hge.learning.learner import Learner
from hge.learning.merging import MATURE, MOST_COMPARED, Merging
from hge.learning.training import train_all

ROWS = 32


def rows(rng: np.random.Generator, task: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A batch; the inputs of all tasks are alike, the labels depend on another input in each."""
    x = rng.normal(size=(ROWS, 3))
    return 100 * x, (x[:, task] > 0).astype(int)


def switch_for_no_reason(learner: Learner) -> None:
    """Let a new, promoted expert be in use, as if a switch had been found; no longer young, it is not left again."""
    old, new = learner.experts[learner.last_used], learner.new_expert()
    again = [(kept.step, kept.batch) for kept in old.replay.kept] * 4
    train_all(learner, new, [RecentEntry(step, Batch(batch.x.clone(), batch.y.clone())) for step, batch in again])
    learner.tree.add(new.id)
    learner.last_used = new.id


@pytest.fixture
def duplicated() -> tuple[GatedExperts, np.random.Generator]:
    """A model with two experts of one task, a few batches before the second one is mature."""
    rng, model = np.random.default_rng(0), GatedExperts()
    for batch in range(45):
        if batch == 40:
            switch_for_no_reason(model.learner_)
        model.partial_fit(*rows(rng))
    assert model.n_experts_ == 2
    return model, rng


@pytest.mark.slow
def test_a_false_switch_heals(duplicated: tuple[GatedExperts, np.random.Generator], tmp_path: Path) -> None:
    model, rng = duplicated
    model.save(tmp_path / "before")
    loaded, batches = GatedExperts.load(tmp_path / "before"), [rows(rng) for _ in range(20)]
    for one in (model, loaded):
        for batch in batches[:15]:
            one.partial_fit(*batch)
    (merged,) = [event for event in model.events_ if isinstance(event, ExpertsMerged)]
    assert (merged.expert, merged.merged) == (1, 0)
    assert [expert.id for expert in model.experts_] == [1]  # the one in use keeps its number
    assert model.tree_.experts == [1]
    x, y = rows(rng)
    assert (model.predict(x) == y).mean() > 0.9
    model.save(tmp_path / "after")
    again = GatedExperts.load(tmp_path / "after")
    for one in (model, loaded, again):
        for batch in batches[15:]:
            one.partial_fit(*batch)
        np.testing.assert_array_equal(one.predict_proba(x), model.predict_proba(x))
        assert one.n_experts_ == 1
        for routing in ("sample", "batch", "window"):
            one.set_params(routing=routing)
            assert set(one.predict_expert(x)[0]) == {1}
        one.set_params(routing="stream")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # of many experts
def test_of_many_experts_only_the_nearest_are_compared(
    duplicated: tuple[GatedExperts, np.random.Generator], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, rng = duplicated
    learner = model.learner_
    own = learner.experts[0].replay.kept[0]
    while len(learner.experts) < 3 * MOST_COMPARED:  # experts of the same labels whose inputs are elsewhere
        other, away = learner.new_expert(), Batch(own.batch.x + 1000.0 * len(learner.experts), own.batch.y)
        learner.tree.add(other.id)
        train_all(learner, other, [RecentEntry(own.step, away)])
    learner.last_used = 1
    compared, loss = set(), learner.pool.loss

    def counted(expert: int, batch: Batch, step: int) -> float:
        compared.update(e.id for e in learner.experts for old in e.replay.kept if old.batch is batch)
        return loss(expert, batch, step)

    monkeypatch.setattr(learner.pool, "loss", counted)
    for _ in range(15):
        model.partial_fit(*rows(rng))
    assert [(e.expert, e.merged) for e in model.events_ if isinstance(e, ExpertsMerged)] == [(1, 0)]
    assert len(compared - {1, len(learner.experts) - 1}) <= MOST_COMPARED  # beside itself and the last one in use


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # the inputs do not tell the tasks apart
def test_the_same_inputs_with_other_labels_are_not_merged() -> None:
    rng, model = np.random.default_rng(1), GatedExperts()
    for task in (0, 1, 0, 1):
        for _ in range(60):
            model.partial_fit(*rows(rng, task))
    assert {0, 1} <= {expert.id for expert in model.experts_}  # a third one may be created by chance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # likewise
def test_experts_that_guess_are_not_merged() -> None:
    """Visits so short that experts mix the concepts: their bounds are wide, but none explains the other's rows."""
    model, stream = (
        GatedExperts(),
        visit([stagger(k) for k in range(3)], (0, 1, 0, 2, 1), 800, np.random.default_rng(100)),
    )
    for start in range(0, len(stream), ROWS):
        model.partial_fit(stream.x[start : start + ROWS], stream.y[start : start + ROWS])
    assert not [event for event in model.events_ if isinstance(event, ExpertsMerged) and event.loss > 0.1]


def test_experts_are_merged_on_request_where_nothing_else_refers_to_them() -> None:
    asked = replace(SETTINGS["sticky"], merge_experts=True)
    assert learner_of(asked, "eager", MLP)[0].merging is not None
    for config in (SETTINGS["sticky"], replace(asked, organisation="tree"), replace(asked, joint=True)):
        assert learner_of(config, "eager", MLP)[0].merging is None


def test_a_merged_expert_has_no_node_and_no_probation() -> None:
    organisation = Organisation(replays=None, emit=print, window=5, promotion_rate=0.5, path_coverage=None)  # type: ignore[arg-type]
    organisation.created(1)
    organisation.created(2)
    organisation.merged(1, into=2)  # both are on probation
    assert organisation.newcomers == [2]
    organisation.merged(0, into=2)  # the place of a promoted one is a promotion
    assert organisation.newcomers == []
    assert organisation.tree.experts == [2]


def test_all_nodes_of_an_expert_are_replaced() -> None:
    tree = Tree()
    first, second = tree.add(0), tree.add(1)
    tree.add(0, parent=second)
    tree.replace(0, by=2)
    assert tree.experts == [2, 1]
    assert tree.path(first) == (first,)
    routes = tree.select(lambda ids, groups: np.array([[{1: 1.0, 2: 0.5}[int(i)]] for i in ids]), groups=1)
    assert routes.expert.tolist() == [2]


def test_nobody_believes_in_a_merged_expert() -> None:
    belief = StreamBelief(observers=1)
    for expert in (0, 1, 2, 1):
        belief.learned(expert, np.full((1, 32), expert), experts=3)
    belief.merged(1, into=0)
    assert belief.in_use == 0
    posterior = belief.posterior(np.array([[0, 2]]), experts=3)
    assert (posterior[1] == 0).all()
    np.testing.assert_allclose(posterior.sum(axis=0), 1)
    assert belief.counts.sum() == 4 * 32


def test_an_expert_is_compared_when_it_is_mature_and_at_once_when_it_comes_into_use() -> None:
    expert = SimpleNamespace(id=0, losses=SimpleNamespace(count=MATURE - 3))
    merging = Merging(SimpleNamespace(experts=[expert], last_used=0))  # type: ignore[arg-type]
    assert merging.batches_until_due(1, 0) == 3
    merging.due[0] = MATURE + 4
    assert merging.batches_until_due(1, 0) == 7
    expert.losses.count = MATURE + 5
    assert merging.batches_until_due(1, 0) == 0
    expert.losses.count, merging.in_use = 1, 1
    assert merging.batches_until_due(1, 0) == 0
