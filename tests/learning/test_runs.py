"""Which batches are learned in fast runs; tests of the state and of rollback show that they are learned alike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.small_learners import MLP, SETTINGS, learner_of, stream
from hge.core.types import Batch


@pytest.mark.parametrize("name", ["sticky", "literal"])
def test_what_the_expert_in_use_accepts_is_learned_in_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _ = learner_of(SETTINGS[name], "eager", MLP)
    by_one, usual = [], learner.learn

    def learn(batch: Batch) -> object:
        by_one.append(learner.steps)
        return usual(batch)

    monkeypatch.setattr(learner, "learn", learn)
    steps = list(learner.learn_all(stream("0", 14)))
    assert [step.step for step in steps] == list(range(14))
    assert not any(step.set_aside for step in steps)
    assert by_one == [0, 1, 2, 4, 8], "no bound yet, or a copy is due"


@pytest.mark.parametrize("pool", ["eager", "stacked"])
def test_labels_that_are_new_end_a_run(pool: str) -> None:
    """A loss within the bound is not enough if labels count as evidence, however the batches are given."""
    config = replace(SETTINGS["sticky"], label_evidence=True, epsilon=30.0)
    batches = [Batch(batch.x, batch.y + 4 * (step >= 20)) for step, batch in enumerate(stream("00", 20))]
    one_by_one, in_runs = (learner_of(config, pool, replace(MLP, outputs=8))[0] for _ in range(2))
    steps = [one_by_one.learn(batch) for batch in batches]
    assert list(in_runs.learn_all(batches)) == steps
    assert len(in_runs.experts) == len(one_by_one.experts) == 2


def test_a_run_begins_only_when_the_last_good_state_of_its_expert_is_kept() -> None:
    learner, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    batches = list(stream("0", 15))
    list(learner.learn_all(batches[:12]))
    learner.guard.expert = None  # as if another expert had been trained on an outlier
    list(learner.learn_all(batches[12:15]))
    assert learner.guard.expert is learner.experts[learner.last_used]


def test_no_run_begins_where_the_gate_last_chose_another_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, _ = learner_of(SETTINGS["literal"], "eager", MLP)
    tasks = list(stream("01", 40))
    list(learner.learn_all(tasks))
    assert (learner.last_used, learner.tree.experts) == (1, [0, 1])
    runs: list[int] = []
    usual = learner.pool.train_run

    def train_run(expert: int, *arguments: object) -> object:
        runs.append(expert)
        return usual(expert, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(learner.pool, "train_run", train_run)
    learner.last_node = next(node for node, own in enumerate(learner.tree.nodes) if own.expert == 0)
    list(learner.learn_all(tasks[-1:]))
    assert runs == []
    list(learner.learn_all(tasks[-3:-1]))
    assert runs == [1], "the gate has chosen expert 1 since"
