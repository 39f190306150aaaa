"""What the rows that no expert has accepted say at prediction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.small_learners import MLP, learner_of, stream
from hge.core.config import LearnerConfig
from hge.core.types import Batch
from hge.gating.switch_detection import RecentEntry

ROWS = torch.arange(24.0).reshape(4, 6)


def rows_beside(labels: list[int]) -> int:
    """Return how many rows predict while four rows with these labels are set aside; the expert knows 0 and 1."""
    learner, _ = learner_of(LearnerConfig(memory_rows=8, label_evidence=True), "eager", MLP)
    learner.learn(Batch(-ROWS, torch.tensor([0, 1, 0, 1])))
    learner.recent.clear()
    entry = RecentEntry(1, Batch(ROWS, torch.tensor(labels)))
    learner.recent.append(entry)
    assert learner.memory is not None
    return len(learner.memory.rows_aside(learner.recent, learner.experts[0]).x)


def test_rows_with_some_new_labels_add_to_what_the_expert_knows() -> None:
    assert rows_beside([0, 1, 1, 2]) == 8


def test_rows_with_known_labels_contradict_it_and_most_new_ones_replace_it() -> None:
    assert rows_beside([0, 1, 1, 0]) == 4
    assert rows_beside([2, 3, 2, 0]) == 4


@pytest.mark.parametrize("pool", ["eager", "stacked"])
def test_choices_are_kept_only_until_something_is_learned(pool: str) -> None:
    config = LearnerConfig(recent_capacity=5, memory_rows=60, label_evidence=True)
    learner, _ = learner_of(config, pool, MLP)
    first = None
    for batch in stream("01", 20):
        first = batch if first is None else first
        learner.learn(batch)
        if len(learner.experts) == 1:
            continue
        restored, _ = learner_of(config, pool, MLP)
        restored.restore(learner.snapshot())
        assert learner.memory is not None
        assert restored.memory is not None
        for rows in (first.x, batch.x, first.x, first.x.byte(), first.x.byte().float()):
            found, fresh = (memory.choices(rows, 2) for memory in (learner.memory, restored.memory))
            np.testing.assert_array_equal(found, fresh)
    assert len(learner.experts) == 2
