"""Codes for missing values are told from values that are only frequent, or only far away."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hge import GatedExperts
from hge.core.types import Batch
from hge.estimator.odd_values import FEWEST_ROWS, clipped_share, coded_input
from hge.experts.replay import Expert, Replay, ReplayBatch
from hge.gating.switch_detection import LossStats

ROWS = 400
ORDINARY = np.random.default_rng(0).normal(size=ROWS)


def remembering(*columns: np.ndarray, rows: int = ROWS) -> Expert:
    """An expert whose replay has these inputs."""
    expert = Expert(0, LossStats(), Replay(99))
    x = torch.from_numpy(np.stack(columns, axis=1)[:rows].astype(np.float32))
    expert.replay.kept = [ReplayBatch(step, Batch(part, torch.zeros(len(part), dtype=torch.long))) for step, part in
                          enumerate(torch.split(x, 32))]  # fmt: skip
    return expert


def with_value(value: float, share: float) -> np.ndarray:
    return np.where(np.arange(ROWS) < share * ROWS, value, ORDINARY)


@pytest.mark.parametrize("code", [-999.0, 1e6, 12.0])
def test_a_code_is_found_on_either_side(code: float) -> None:
    assert coded_input(remembering(ORDINARY, with_value(code, 0.1))) == (1, code, pytest.approx(0.1))


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(with_value(-999.0, 0.005), id="two stray rows"),
        pytest.param(with_value(-999.0, 0.6), id="most rows, as in the margin of an image"),
        pytest.param(with_value(6.0, 0.1), id="frequent, but no further than others are from each other"),
        pytest.param(np.arange(ROWS) % 5 * 1.0 + 100 * (np.arange(ROWS) % 20 == 0), id="a category"),
        pytest.param(np.ones(ROWS), id="constant"),
        pytest.param(1e6 * with_value(0.0, 0.0), id="a large unit"),
        pytest.param(np.maximum(ORDINARY, 0.0), id="cut off at zero"),
    ],
)
def test_other_values_are_no_codes(column: np.ndarray) -> None:
    assert coded_input(remembering(ORDINARY, column)) is None


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (64,)])
def test_clipped_values_are_counted_in_images_of_any_shape(shape: tuple[int, ...]) -> None:
    """Statistics of images are of their channels."""
    rng, model = np.random.default_rng(0), GatedExperts()
    for _ in range(70):
        y = rng.integers(0, 2, 32)
        model.partial_fit(y.reshape(-1, *(1 for _ in shape)) + rng.normal(size=(32, *shape)), y)
    assert clipped_share(model.learner_) == 0
    (expert,) = model.learner_.experts
    for kept in expert.replay.kept:
        kept.batch.x[:16, 0] = 1e6
    assert clipped_share(model.learner_) == pytest.approx(0.5, abs=0.01)


def test_few_rows_say_nothing() -> None:
    code = np.where(np.arange(ROWS) % 5 == 0, -999.0, ORDINARY)
    assert coded_input(remembering(code, rows=FEWEST_ROWS)) is not None
    assert coded_input(remembering(code, rows=FEWEST_ROWS - 1)) is None
