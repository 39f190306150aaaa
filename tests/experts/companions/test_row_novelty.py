from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from hge.experts.companions.nearest import NearestRows
from hge.experts.companions.row_novelty import RowNovelty

CENTRES = 10 * default_rng(7).standard_normal((4, 12)).astype(np.float32)


def rows_of(kind: int, rows: int, seed: int) -> NDArray[np.float32]:
    return (CENTRES[kind] + (1 + kind) * default_rng(seed).standard_normal((rows, 12))).astype(np.float32)


def memories(rows: int = 150, passes: int = 1) -> dict[int, NearestRows]:
    """Two experts of two classes each."""
    found = {}
    for expert in range(2):
        found[expert] = NearestRows(1000)
        for _ in range(passes):
            for label in range(2):
                kind = 2 * expert + label
                found[expert].add(rows_of(kind, rows, kind), np.full(rows, label))
    return found


@pytest.mark.parametrize("rows", [20, 150])
@pytest.mark.parametrize("passes", [1, 3])
def test_as_many_new_rows_of_known_kinds_are_novel_as_remembered_ones(rows: int, passes: int) -> None:
    novelty_of = RowNovelty(memories(rows, passes))
    new = np.concatenate([rows_of(kind, 500, 100 + kind) for kind in range(4)])
    for rate in (0.05, 0.2):
        alarms = (novelty_of(new) > np.quantile(novelty_of.usual, 1 - rate)).mean()
        assert rate / 3 < alarms < 2 * rate


@pytest.mark.parametrize("units", [(1, 5, 25), (1, 1e4, 1e6)])
@pytest.mark.parametrize("away", [0, 30])
def test_each_of_several_experts_with_values_of_its_own_size_knows_its_rows_and_no_others(
    units: tuple[float, ...], away: float
) -> None:
    def rows(kind: int, count: int, seed: int) -> NDArray[np.float32]:
        return (units[kind] * (away + rows_of(0, count, 10 * seed + kind))).astype(np.float32)

    memories = {kind: NearestRows(1000) for kind in range(3)}
    for kind, memory in memories.items():
        memory.add(rows(kind, 300, 0), np.zeros(300, np.int64))
    novelty_of = RowNovelty(memories)
    threshold = np.quantile(novelty_of.usual, 0.95)
    for kind, unit in enumerate(units):
        new = rows(kind, 500, 1)
        others = (new + unit * (CENTRES[1] - CENTRES[0])).astype(np.float32)
        assert 0.02 < (novelty_of(new) > threshold).mean() < 0.1
        assert (novelty_of(others) > threshold).mean() > 0.95


def test_an_expert_whose_rows_are_all_the_same_has_what_is_usual_for_others() -> None:
    found = memories()
    found[2] = NearestRows(100)
    found[2].add(np.zeros((20, 12), np.float32), np.zeros(20, np.int64))
    novelty_of = RowNovelty(found)
    same, alike, other = novelty_of(np.float32([[0.0] * 12, [0.1] * 12, [3.0] * 12]))
    assert same <= alike < np.quantile(novelty_of.usual, 0.95) < other


def test_rows_of_another_kind_are_novel() -> None:
    novelty_of = RowNovelty(memories())
    known = np.concatenate([rows_of(kind, 50, 100 + kind) for kind in range(4)])
    between = ((CENTRES[0] + CENTRES[1]) / 2 + default_rng(3).standard_normal((50, 12))).astype(np.float32)
    novelty = novelty_of(np.concatenate([known, between]))
    assert roc_auc_score(np.repeat([0, 1], [200, 50]), novelty) > 0.99


def test_remembered_rows_are_no_strangers_though_they_count_only_by_the_others() -> None:
    novelty_of = RowNovelty(memories())
    assert (novelty_of(novelty_of.compared) < novelty_of.usual).mean() > 0.95


def test_many_rows_are_thinned_out_class_by_class() -> None:
    """Labels that alternate: every other row would be of one class only."""
    memory = NearestRows(1000)
    x = np.stack([rows_of(0, 100, 0), rows_of(1, 100, 1)], axis=1).reshape(-1, 12)
    memory.add(x, np.tile([0, 1], 100))
    with (
        patch("hge.experts.companions.row_novelty.ALL_ROWS", 40),
        patch("hge.experts.companions.row_novelty.COMPARED", 10),
    ):
        novelty_of = RowNovelty({0: memory})
    assert len(novelty_of.compared) == 10
    for kind in range(2):
        assert np.median(novelty_of(rows_of(kind, 50, 9))) < novelty_of.usual.max()


def test_rows_that_are_all_the_same_are_known_and_others_are_not() -> None:
    memory = NearestRows(100)
    memory.add(np.ones((20, 3), np.float32), np.zeros(20, np.int64))
    novelty_of = RowNovelty({0: memory})
    assert len(novelty_of.usual) == 0
    same, other = novelty_of(np.array([[1, 1, 1], [1, 2, 1]], np.float32))
    assert same == 0 < other


def test_a_class_of_equal_rows_does_not_make_everything_usual() -> None:
    memory = NearestRows(1000)
    memory.add(rows_of(0, 100, 0), np.zeros(100, np.int64))
    memory.add(np.tile(CENTRES[1], (50, 1)), np.ones(50, np.int64))
    novelty_of = RowNovelty({0: memory})
    assert novelty_of.usual.max() < 10
    assert novelty_of(CENTRES[1:2]) < 0
    assert (novelty_of(CENTRES[2:4]) > novelty_of.usual.max()).all()


def test_numbers_that_are_too_large_are_novel_and_finite() -> None:
    novelty_of = RowNovelty(memories())
    far = novelty_of(np.full((2, 12), 1e30, np.float32))
    assert np.isfinite(far).all()
    assert (far > novelty_of.usual.max()).all()
