from __future__ import annotations

import numpy as np
import pytest

from hge.gating.switch_detection import LabelCounts


def test_new_labels_count_against_an_expert_that_knows_its_own() -> None:
    counts = LabelCounts([1, 2] * 100)
    assert counts.admits([1, 2, 2, 1] * 8)
    assert counts.admits([1] * 31 + [3])  # one stray label
    assert not counts.admits([1] * 20 + [3] * 12)  # a boundary inside the batch
    assert not counts.admits([3] * 32)


def test_many_classes_are_learned_as_they_come() -> None:
    """Forty classes in random order: half of the labels of the second batch are new, which is expected."""
    for seed in range(20):
        labels = np.random.default_rng(seed).integers(0, 40, (20, 32)).tolist()
        counts = LabelCounts()
        for batch in labels:
            assert counts.admits(batch)
            counts.update(batch)


@pytest.mark.parametrize("rows", [1, 2])
def test_few_rows_are_little_evidence(rows: int) -> None:
    assert LabelCounts([1, 2] * 4).admits([3] * rows)


def test_an_expert_without_labels_admits_any() -> None:
    assert LabelCounts().admits([1, 2, 3])
