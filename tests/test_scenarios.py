from __future__ import annotations

import numpy as np
import pytest
import torch

from hge.data.scenarios import SCENARIOS
from hge.keys import Keys


@pytest.mark.parametrize("name", SCENARIOS)
def test_streams_are_as_long_as_they_say(name: str) -> None:
    info, keys = SCENARIOS[name], Keys(1)
    scenario = info.build(info.tasks, keys)
    batches = list(scenario.stream(info.batch_size, 2, keys))
    assert len(batches) == scenario.batches(info.batch_size, 2)
    assert min(len(batch) for _, batch in batches) > 1
    assert {batch.x.dtype for _, batch in batches} == {torch.float32}
    assert 0 <= min(batch.x.min() for _, batch in batches) <= max(batch.x.max() for _, batch in batches) <= 1


def test_split_digits_pairs_all_classes_once() -> None:
    scenario = SCENARIOS["split-digits"].build(5, Keys(0))
    classes = [set(task.train.y.tolist()) for task in scenario.tasks]
    assert all(len(c) == 2 for c in classes)
    assert set.union(*classes) == set(range(10))
    for task, own in zip(scenario.tasks, classes, strict=True):
        assert set(task.test.y.tolist()) == own


def test_split_is_stratified_and_drawn_per_seed() -> None:
    for seed in (0, 1):
        scenario = SCENARIOS["split-digits"].build(5, Keys(seed))
        train, test = (sum(len(getattr(t, part)) for t in scenario.tasks) for part in ("train", "test"))
        assert (train, test) == (1437, 360)
        shares = [len(t.test) / (len(t.train) + len(t.test)) for t in scenario.tasks]
        np.testing.assert_allclose(shares, 0.2, atol=0.01)
    first, second = (SCENARIOS["split-digits"].build(5, Keys(seed)).tasks[0].name for seed in (0, 3))
    assert first != second


def test_training_and_test_rows_are_disjoint() -> None:
    task = SCENARIOS["permuted-digits"].build(1, Keys(0)).tasks[0]
    train = {row.tobytes() for row in task.train.x.numpy()}
    assert not [row for row in task.test.x.numpy() if row.tobytes() in train]


def test_permuted_digits_are_the_same_images_with_other_pixels() -> None:
    scenario = SCENARIOS["permuted-digits"].build(3, Keys(0))
    first, second, third = (task.train for task in scenario.tasks)
    assert torch.equal(first.y, second.y)
    assert torch.equal(first.x.sort(dim=1).values, second.x.sort(dim=1).values)
    assert not torch.equal(first.x, second.x)
    assert not torch.equal(second.x, third.x)


def test_recurring_digits_come_back() -> None:
    info = SCENARIOS["recurring-digits"]
    assert info.build(5, Keys(0)).visits == (0, 1, 0, 2, 1, 3, 0, 4, 2)
    assert info.build(2, Keys(0)).visits == (0, 1, 0, 1, 0)


def test_epochs_are_reshuffled_and_reproducible() -> None:
    scenario = SCENARIOS["split-digits"].build(1, Keys(0))
    first, again = (list(scenario.stream(32, 2, Keys(0))) for _ in range(2))
    assert all(torch.equal(a.x, b.x) for (_, a), (_, b) in zip(first, again, strict=True))
    half = len(first) // 2
    assert not torch.equal(first[0][1].x, first[half][1].x)
    for part in (first[:half], first[half:]):
        rows = torch.cat([batch.x for _, batch in part])
        assert torch.equal(rows.sort(dim=0).values, scenario.tasks[0].train.x.sort(dim=0).values)
