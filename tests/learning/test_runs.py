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
