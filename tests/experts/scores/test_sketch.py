"""The sketch: one space for all experts, and Gaussians in it."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from torch import Tensor

import hge.experts.scores.sketch as module
from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.experts.scores import SketchScore, Space
from hge.experts.scores.sketch import PRIOR_ROWS, gaussians
from hge.experts.scores.space import DIRECTION_ROWS, MAX_COORDINATE

POOLS = {"eager": EagerPool, "stacked": StackedPool}
KEEP = torch.zeros(())


def normal(rows: int, inputs: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


def learned(space: Space, x: Tensor, y: Tensor | None = None, classes: int = 1, batch: int = 128) -> SketchScore:
    score = SketchScore(space, classes)
    labels = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    for rows, own in zip(torch.split(x, batch), torch.split(labels, batch), strict=True):
        score.compute_update(score.preprocess(rows), own, None)
        score.apply_update(skip=KEEP)
    score.finish_deferred()
    score.refresh(len(x))
    return score


def fixed_by(x: Tensor, directions: int = 0) -> Space:
    space = Space(tuple(x.shape[1:]), directions)
    space.collect(x, torch.zeros(len(x), dtype=torch.int64))
    space.fix()
    return space


def choices(scores: list[SketchScore], groups: Tensor) -> list[int]:
    """The best of the scores for each group [groups, rows, inputs]."""
    return [int(torch.stack([s.score_together(group) for s in scores]).argmin()) for group in groups]


def test_a_stream_is_learned_exactly_in_one_pass_whatever_its_batches() -> None:
    x, space = normal(2000, 20), fixed_by(normal(600, 20, seed=1))
    once = learned(space, x, batch=2000)
    for rows, batch in ((x, 7), (x.flip(0), 128)):
        torch.testing.assert_close(learned(space, rows, batch=batch).moments, once.moments, rtol=1e-12, atol=1e-9)
    seen = space.project(x)[:, 1:]
    count, mean = once.moments[0, 0], once.moments.view(space.width, space.width)[0, 1:] / 2000
    assert count == 2000
    torch.testing.assert_close(mean, seen.mean(0), rtol=1e-9, atol=1e-12)


def test_the_score_is_a_normal_density_less_a_constant_and_the_allowance() -> None:
    x = normal(200_000, 6) @ torch.tensor(np.diag([3, 2, 1, 1, 1, 0.5]), dtype=torch.float32) + 4
    space = fixed_by(x[:600])
    score, seen = learned(space, x, batch=5000), space.project(x)[:, 1:].numpy()
    density = multivariate_normal(seen.mean(axis=0), np.cov(seen.T))
    ours = score.score(x[:500], batch_statistics=False).numpy()
    theirs = -density.logpdf(seen[:500]) - space.directions.shape[1] / 2 * np.log(2 * np.pi)
    difference = ours - theirs
    assert difference.std() < 0.02, "the same up to a constant"


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 255.0, 1e6])
def test_units_do_not_matter(scale: float) -> None:
    tasks = [normal(700, 12, seed=s) + 2 * normal(1, 12, seed=10 + s) for s in range(3)]
    test = torch.cat([normal(50, 12, seed=20 + s) + 2 * normal(1, 12, seed=10 + s) for s in range(3)])

    def chosen(unit: float) -> list[int]:
        space = Space((12,))
        scores = [learned(space, unit * x) for x in tasks]
        return choices(scores, (unit * test)[:, None])

    same = np.mean(np.array(chosen(scale)) == np.array(chosen(1.0)))
    assert same > 0.99


@pytest.mark.parametrize(
    "opening",
    [
        torch.full((600, 30), 7.0),
        torch.zeros(600, 30),
        normal(1, 30),
        normal(5, 30),
        torch.cat([normal(300, 2), torch.ones(300, 28)], dim=1),
    ],
    ids=["constant", "zeros", "one row", "fewer rows than directions", "mostly constant"],
)
def test_a_poor_beginning_does_not_spoil_what_follows(opening: Tensor) -> None:
    space = fixed_by(opening)
    here, there = normal(800, 30, seed=1) + 3, normal(800, 30, seed=2) - 3
    scores = [learned(space, x) for x in (here, there)]
    groups = torch.stack([normal(32, 30, seed=3) + 3, normal(32, 30, seed=4) - 3])
    assert choices(scores, groups) == [0, 1]


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [1, 2, 17, 5000])
def test_inputs_of_any_number(inputs: int) -> None:
    space = Space((inputs,))
    scores = [learned(space, normal(600, inputs, seed=s) + 5 * s) for s in range(2)]
    assert choices(scores, torch.stack([normal(8, inputs, seed=9), normal(8, inputs, seed=8) + 5])) == [0, 1]


@given(
    rows=st.integers(1, 9),
    inputs=st.integers(1, 20),
    exponent=st.integers(-38, 38),
    seed=st.integers(0, 99),
    classes=st.sampled_from([1, 3]),
)
@settings(max_examples=60, deadline=None)
def test_scores_are_finite_whatever_comes(rows: int, inputs: int, exponent: int, seed: int, classes: int) -> None:
    x = normal(rows, inputs, seed) * 10.0**exponent
    space = fixed_by(x.nan_to_num())
    score = learned(space, x, torch.arange(rows) % classes, classes)
    for asked in (x, normal(rows, inputs, seed + 1), torch.full((1, inputs), 3e38)):
        assert score.score(asked, batch_statistics=False).isfinite().all()
        assert space.project(asked).abs().max() <= max(MAX_COORDINATE, 1)


def related(rows: int, task: int, seed: int) -> Tensor:
    """Two tasks with the same mean and variances: only correlations tell them apart, by little."""
    mix = torch.eye(64) + 0.02 * normal(64, 64, seed=50 + task)
    return normal(rows, 64, seed) @ mix


@pytest.mark.parametrize(("few", "group"), [(19 * 32, 32), (30, 128)], ids=["newcomer", "class"])
def test_few_rows_are_allowed_for(few: int, group: int) -> None:
    space = fixed_by(related(1024, 0, seed=1), directions=48)
    old, new = related(10_000, 0, seed=2), related(few, 1, seed=3)

    def right() -> float:
        scores = [learned(space, old), learned(space, new)]
        groups = [torch.stack(torch.split(related(40 * group, task, seed=4), group)) for task in range(2)]
        return float(np.mean([c == task for task in range(2) for c in choices(scores, groups[task])]))

    assert right() > 0.9
    given = gaussians

    def without(moments: Tensor, space: Space) -> Tensor:
        weights, rows, width = given(moments, space), moments[:, 0], space.width - 1
        trust = rows / (rows + width)
        weights[:, 0] += width / (rows + PRIOR_ROWS) + width * (width - 1) * trust.square() / (4 * rows)
        return weights

    with mock.patch.object(module, "gaussians", without):
        assert right() < 0.8, "groups go to whoever has seen more"


@pytest.mark.parametrize("rows", [200, 600])
def test_learned_rows_score_lower_than_new_ones_by_about_its_optimism(rows: int) -> None:
    own, new = related(rows, 1, seed=1), related(4000, 1, seed=2)
    score = learned(fixed_by(normal(1024, 64, seed=9)), own)
    own_mean, new_mean = (float(score.score(x, batch_statistics=False).mean()) for x in (own, new))
    optimism = score.optimism(score.gate_tensors(), rows)
    assert new_mean - own_mean == pytest.approx(optimism, rel=0.35)
    assert score.optimism(score.gate_tensors(), 100 * rows) < optimism / 50


def test_one_row_can_do_only_so_much() -> None:
    space, x = fixed_by(normal(512, 20)), normal(2000, 20, seed=1)
    clean = learned(space, x)
    for far in (1e3, 1e20):
        spoiled = learned(space, torch.cat([x, torch.full((1, 20), far)]))
        apart = clean.score(x, batch_statistics=False) - spoiled.score(x, batch_statistics=False)
        assert apart.abs().mean() < 6


@pytest.mark.parametrize("classes", [1, 4])
def test_all_experts_at_once_say_what_each_says(classes: int) -> None:
    space = fixed_by(normal(512, 20))
    scores = [
        learned(space, normal(300, 20, seed=s) + s, torch.arange(300) % (2 + s) % classes, classes) for s in range(3)
    ]
    stacked = {"weights": torch.stack([s.weights for s in scores])}
    x = normal(9, 20, seed=7)
    seen = scores[0].preprocess(x)
    rows = scores[0].stacked(stacked, seen, batch_statistics=False)
    torch.testing.assert_close(rows, torch.stack([s.score(x, batch_statistics=False) for s in scores]))
    torch.testing.assert_close(scores[0].together(stacked, seen), rows.mean(1))


def test_a_class_that_came_with_an_outlier_is_not_the_experts_own() -> None:
    space, y = fixed_by(normal(512, 10)), torch.cat([torch.zeros(500), torch.ones(500), torch.full((3,), 2)]).long()
    score = learned(space, normal(1003, 10, seed=1), y, classes=4)
    parts = score.parts([score.gate_tensors()], normal(5, 10, seed=2))[0]
    assert parts.shape == (5, 5)
    assert parts.isnan().all(0).tolist() == [False, False, False, True, True]


def test_an_experts_sketch_of_32_by_32_photographs_is_small() -> None:
    score = SketchScore(Space((3, 32, 32)))
    assert sum(t.nbytes for t in (score.moments, score.weights)) <= 64 * 1024
    cost = score.cost({"weights": score.weights[None]})
    assert cost.once + 20 * cost.each <= 350_000, "20 experts, multiply-adds per row"


@pytest.mark.parametrize("make", list(POOLS.values()), ids=list(POOLS))
@pytest.mark.parametrize("batches", [2, 20], ids=["while the space is open", "after"])
def test_resume_in_the_middle_is_exact(make: type, batches: int) -> None:
    spec = PoolSpec((10,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("class-sketch"), OptimiserConfig())
    stream = [Batch(normal(64, 10, seed=s), torch.arange(64) % 3) for s in range(24)]
    assert 2 * 64 < DIRECTION_ROWS < 20 * 64
    whole, first, second = (make(spec, Keys(0), torch.device("cpu")) for _ in range(3))
    for pool in (whole, first, second):
        pool.create(0)
    for step, batch in enumerate(stream):
        whole.train(0, batch, step)
        if step < batches:
            first.train(0, batch, step)
    second.load_shared_state(first.shared_state())
    second.load_state(0, first.state(0))
    for step, batch in enumerate(stream[batches:], start=batches):
        second.train(0, batch, step)
    for ours, theirs in ((whole.state(0), second.state(0)), (whole.shared_state(), second.shared_state())):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_space_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="projection: got centre of"):
        Space((5,)).load_state(fixed_by(normal(20, 6)).state())
