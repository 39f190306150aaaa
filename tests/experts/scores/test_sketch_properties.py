"""The sketch: exact sums, a Gaussian's likelihood, fair to those who have seen little, and safe whatever comes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from torch import Tensor

from helpers.pool_checks import batch_for
from helpers.small_learners import CLASSES, MLP, POOLS, SHORTLISTED
from hge.core.randomness import Keys
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.pool_spec import PoolSpec
from hge.experts.scores import ScoreTrainer, SketchScore, Space, sketch
from hge.experts.scores.sketch import MIN_CLASS_SHARE, PRIOR_ROWS, PRIOR_VARIANCE, gaussians
from hge.experts.scores.space import DIRECTION_ROWS

CPU = torch.device("cpu")
KEEP = torch.zeros(())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uniform(rows: int, inputs: int, seed: int) -> Tensor:
    return torch.rand(rows, inputs, generator=seeded(seed))


def digits() -> tuple[Tensor, Tensor]:
    """All the digits and their labels."""
    data = load_digits()
    return torch.from_numpy((data.data / 16).astype(np.float32)), torch.from_numpy(data.target).long()


def halves() -> tuple[Tensor, Tensor]:
    """The digits up to 4, and the others."""
    x, y = digits()
    return x[y < 5], x[y >= 5]


def taught(
    x: Tensor, y: Tensor | None = None, *, space: Space | None = None, classes: int = 1, batch_size: int = 32
) -> SketchScore:
    """An expert's score that has learned these rows, all of which show."""
    score = SketchScore(Space(tuple(x.shape[1:])) if space is None else space, classes)
    trainer = ScoreTrainer(score)
    y = torch.zeros(len(x), dtype=torch.int64) if y is None else y
    for rows, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        trainer.train(rows, labels, torch.Generator())
    score.finish_deferred()
    score.refresh(trainer.rows)
    return score


def learn(score: SketchScore, x: Tensor, y: Tensor) -> None:
    score.compute_update(score.preprocess(x), y, None)
    score.apply_update(skip=KEEP)


def scores_of(scores: list[SketchScore], x: Tensor) -> Tensor:
    """[experts, rows]"""
    return torch.stack([score.score(x, batch_statistics=False) for score in scores])


def of_groups(scores: list[SketchScore], x: Tensor, size: int = 32) -> Tensor:
    """[experts, groups]"""
    groups = [rows for rows in x.split(size) if len(rows) == size]
    return torch.stack([torch.stack([score.score_together(rows) for rows in groups]) for score in scores])


def right(scores: Tensor, owner: int) -> float:
    """The share of the columns that are lowest at their owner."""
    return float((scores.argmin(0) == owner).double().mean())


def told_apart(
    first: Tensor, second: Tensor, fresh_first: Tensor, fresh_second: Tensor, **settings: Any
) -> tuple[float, float]:
    """Let one expert learn and then another; return the shares of fresh rows that each gets of its own."""
    one = taught(first, **settings)
    other = taught(second, space=one.space, **settings)
    found = [scores_of([one, other], fresh) for fresh in (fresh_first, fresh_second)]
    assert all(torch.isfinite(scores).all() for scores in found)
    return right(found[0], 0), right(found[1], 1)


def fixed_space(x: Tensor) -> Space:
    space = Space(tuple(x.shape[1:]))
    space.collect(x, torch.zeros(len(x), dtype=torch.int64))
    space.fix()
    return space


# --- what is learned -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 10])
def test_sums_are_those_of_one_pass_whatever_the_batches_and_their_order(classes: int) -> None:
    x, y = digits()
    y = y if classes == 10 else torch.zeros_like(y)
    space = fixed_space(x[:200])
    rows = space.project(x)
    scores = []
    for size in (len(x), 7, 100):
        parts = list(zip(rows.split(size), y.split(size), strict=True))
        for order in (parts, parts[::-1]):
            score = SketchScore(space, classes)
            for seen, labels in order:
                score.compute_update(seen, labels, None)
                score.apply_update(skip=KEEP)
            scores.append(score)
    for score in scores:
        torch.testing.assert_close(score.moments, scores[0].moments, rtol=1e-9, atol=1e-9)
        for label in range(classes):
            own = rows[y == label].numpy()
            square = score.moments[label].view(space.width, space.width).numpy()
            assert square[0, 0] == len(own)
            mean = square[0] / len(own)
            np.testing.assert_allclose(mean, own.mean(axis=0), rtol=1e-9, atol=1e-9)
            covariance = square / len(own) - np.outer(mean, mean)
            np.testing.assert_allclose(covariance, np.cov(own.T, bias=True), rtol=1e-9, atol=1e-9)


def test_a_stream_with_its_opening_is_that_of_the_rows_the_space_was_not_drawn_from() -> None:
    """Rows that were kept until the space was fixed teach it, or count like those that came later."""
    x, _ = digits()
    streamed = taught(x, batch_size=7)
    first = -(-DIRECTION_ROWS // 7) * 7
    learned = torch.cat([x[:first:2], x[first:]])
    once = SketchScore(streamed.space)
    learn(once, learned, torch.zeros(len(learned), dtype=torch.int64))
    once.refresh(len(learned))
    torch.testing.assert_close(streamed.moments, once.moments, rtol=1e-5, atol=1e-3)  # rows are projected in float32
    both = scores_of([streamed, once], x)
    torch.testing.assert_close(both[0], both[1], rtol=1e-4, atol=1e-2)


def test_the_space_is_drawn_from_the_first_rows_and_then_fixed() -> None:
    x, _ = digits()
    space = Space((64,))
    trainer = ScoreTrainer(SketchScore(space))
    for number, rows in enumerate(x.split(32)[:40]):
        trainer.train(rows, torch.zeros(len(rows), dtype=torch.int64), torch.Generator())
        assert space.fixed == (32 * (number + 1) >= DIRECTION_ROWS)
        if space.fixed:
            assert not space.first_rows
            torch.testing.assert_close(space.centre, x[1:DIRECTION_ROWS:2].mean(0))
    centred = (x[1:DIRECTION_ROWS:2] - x[1:DIRECTION_ROWS:2].mean(0)).double()
    variances = torch.linalg.eigvalsh(centred.T @ centred / len(centred)).flip(0)[:32]
    coordinates = (centred.float() @ space.directions * space.spread).double()
    torch.testing.assert_close(coordinates.square().mean(0), variances, rtol=1e-3, atol=1e-6)


def test_tensors_keep_their_place_and_size() -> None:
    """A pool may hand in views of stacked memory: nothing is rebound, and a long life takes no more of it."""
    x, y = digits()
    score = SketchScore(Space((64,)), classes=10)
    places = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in score.state_dict().items()}
    trainer = ScoreTrainer(score)
    for rows, labels in zip(x.split(300), y.split(300), strict=True):
        trainer.train(rows, labels, torch.Generator())
    assert places == {name: (tensor.data_ptr(), tensor.shape) for name, tensor in score.state_dict().items()}


def test_it_does_not_stop_learning_after_a_long_stream() -> None:
    score = taught(torch.randn(1000, 4, generator=seeded(0)))
    score.moments *= 1e6  # a thousand million rows
    score.refresh(10**9)
    ones = torch.ones(10**5, 4)
    before = score.score(ones[:1], batch_statistics=False)
    learn(score, ones, torch.zeros(len(ones), dtype=torch.int64))
    score.refresh(10**9 + 10**5)
    after = score.score(ones[:1], batch_statistics=False)
    assert torch.isfinite(after).all()
    assert (after < before).all()


# --- what is asked ---------------------------------------------------------------------------------------------------


def gaussian_rows(rows: int, width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Rows as the space would give them, a 1 in front, of a Gaussian with correlations; and fresh ones."""
    mix = 0.3 * torch.randn(width, width, generator=seeded(seed), dtype=torch.float64) + torch.eye(width)
    made = torch.randn(rows + 200, width, generator=seeded(seed + 1), dtype=torch.float64) @ mix / 6 + 0.1
    made = torch.nn.functional.pad(made, (1, 0), value=1.0)
    return made[:rows], made[rows:]


def sketched(space: Space, rows: Tensor, asked: Tensor) -> np.ndarray:
    weights = gaussians((rows.T @ rows).view(1, -1), space)
    return (weights[0] @ space.products(asked)).numpy()


def test_it_is_the_negative_log_likelihood_of_a_gaussian() -> None:
    space = Space((8,))
    width = space.width - 1
    rows, fresh = gaussian_rows(200_000, width, seed=0)
    own = rows[:, 1:].numpy()
    theirs = -multivariate_normal(own.mean(axis=0), np.cov(own.T, bias=True)).logpdf(fresh[:, 1:].numpy())
    difference = sketched(space, rows, fresh) - theirs
    np.testing.assert_allclose(difference, -width / 2 * np.log(2 * np.pi), atol=0.01)
    assert np.std(theirs) > 1, "or else it shows nothing"


@pytest.mark.parametrize("rows", [5, 30, 600])
def test_few_rows_have_their_correlations_shrunk_and_an_allowance(rows: int) -> None:
    """As the docstring of `gaussians` states it."""
    space = Space((8,))
    width = space.width - 1
    seen, fresh = gaussian_rows(rows, width, seed=2)
    own = seen[:, 1:].numpy()
    trust = rows / (rows + width)
    covariance = trust * np.cov(own.T, bias=True)
    scatter = own.var(axis=0) * rows
    np.fill_diagonal(covariance, (scatter + PRIOR_ROWS * PRIOR_VARIANCE) / (rows + PRIOR_ROWS))
    theirs = -multivariate_normal(own.mean(axis=0), covariance).logpdf(fresh[:, 1:].numpy())
    allowance = width / (rows + PRIOR_ROWS) + width * (width - 1) * trust**2 / (4 * rows)
    expected = theirs - width / 2 * np.log(2 * np.pi) - allowance
    np.testing.assert_allclose(sketched(space, seen, fresh), expected, rtol=1e-8, atol=1e-8)


def test_units_do_not_matter() -> None:
    low, high = halves()

    def choices(scale: float) -> Tensor:
        one = taught(scale * low[:600])
        other = taught(scale * high[:600], space=one.space)
        return scores_of([one, other], scale * torch.cat([low[600:], high[600:]])).argmin(0)

    usual = choices(1.0)
    own = torch.arange(len(usual)) >= len(low) - 600
    assert 0.93 < float((usual == own).double().mean()) < 1, "some are close"
    for scale in (1e-6, 1e-3, 1 / 255, 255.0, 1e3, 1e6):
        assert torch.equal(choices(scale), usual)


def test_stacked_scores_are_each_experts_own_and_a_batch_is_the_mean_of_its_rows() -> None:
    x, y = digits()
    for classes in (1, 10):
        space = Space((64,))
        labels = y if classes == 10 else torch.zeros_like(y)
        experts = [taught(x[own], labels[own], space=space, classes=classes) for own in (y < 3, y == 4, y > 5)]
        tensors = {"weights": torch.stack([score.weights for score in experts])}
        rows = experts[0].preprocess(x[:50])
        stacked = experts[0].stacked(tensors, rows, batch_statistics=False)
        torch.testing.assert_close(stacked, scores_of(experts, x[:50]), rtol=1e-9, atol=1e-9)
        for some in (rows, rows[:1]):
            alone = experts[0].stacked(tensors, some, batch_statistics=False)
            torch.testing.assert_close(experts[0].together(tensors, some), alone.mean(1), rtol=1e-9, atol=1e-9)
        together = torch.stack([score.score_together(x[:50]) for score in experts])
        torch.testing.assert_close(together, stacked.mean(1), rtol=1e-9, atol=1e-9)


# --- classes ---------------------------------------------------------------------------------------------------------


def test_a_class_below_its_share_is_not_the_experts_own() -> None:
    x, y = digits()
    own = torch.nonzero(y < 2).flatten().tolist()
    strays = torch.nonzero(y == 7).flatten().tolist()
    allowed = int(MIN_CLASS_SHARE * max(int((y == label).sum()) for label in (0, 1)))
    for count, known in ((allowed, [0, 1, 2]), (allowed + 1, [0, 1, 2, 8])):
        rows = [*own, *strays[:count]]
        score = taught(x[rows], y[rows], classes=10, space=fixed_space(x))
        parts = score.parts([score.gate_tensors()], x[:40])[0]
        assert parts.shape == (40, 11)
        assert torch.nonzero(parts.isfinite().all(0)).flatten().tolist() == known
        assert parts[:, [model for model in range(11) if model not in known]].isnan().all()
        assert torch.isfinite(score.score(x, batch_statistics=False)).all()


def test_a_class_that_grows_into_its_share_becomes_the_experts_own() -> None:
    x, y = digits()
    zeros, threes = (torch.nonzero(y == label).flatten() for label in (0, 3))
    first = torch.cat([zeros, threes[:1]])
    score = taught(x[first], y[first], classes=10)
    before = score.score(x[threes], batch_statistics=False)
    assert score.parts([score.gate_tensors()], x[:1])[0][0, 1 + 3].isnan()
    learn(score, x[threes[1:]], y[threes[1:]])
    score.refresh(len(zeros) + len(threes))
    assert score.parts([score.gate_tensors()], x[:1])[0][0, 1 + 3].isfinite()
    assert (score.score(x[threes], batch_statistics=False) < before).double().mean() > 0.99


def test_classes_tell_experts_apart_better_than_one_gaussian_does() -> None:
    """Two experts with two unlike digits each: what lies between those is nobody's."""
    x, y = digits()
    train = torch.arange(len(x)) % 2 == 0
    own = [torch.isin(y, torch.tensor(pair)) for pair in ((8, 0), (9, 1))]
    space = fixed_space(x[train])
    experts = [taught(x[train & part], y[train & part], classes=10, space=space) for part in own]
    share = {"classes": 0.0, "one": 0.0}
    for number, part in enumerate(own):
        rows = x[~train & part]
        share["classes"] += right(scores_of(experts, rows), number) / 2
        as_one = torch.stack([score.parts([score.gate_tensors()], rows)[0][:, 0] for score in experts])
        share["one"] += right(as_one, number) / 2
    assert share["classes"] >= share["one"]
    assert share["classes"] > 0.97


# --- who has seen little ---------------------------------------------------------------------------------------------


def without_allowance(usual: Callable[[Tensor, Space], Tensor]) -> Callable[[Tensor, Space], Tensor]:
    def bare(moments: Tensor, space: Space) -> Tensor:
        rows, width = moments[:, 0], space.width - 1
        trust = rows / (rows + max(width, PRIOR_ROWS))
        weights = usual(moments, space)
        weights[:, 0] += width / (rows + PRIOR_ROWS) + width * (width - 1) * trust.square() / (4 * rows)
        return weights

    return bare


def shares_of_related_tasks(seed: int) -> tuple[float, float]:
    """10 000 rows of one Gaussian, 19 batches of 32 of another, a little to the side; groups of 32 fresh rows."""
    mix, side = torch.randn(64, 64, generator=seeded(seed)) / 8, torch.randn(64, generator=seeded(seed + 1))

    def rows(count: int, new: bool, seed: int) -> Tensor:
        return torch.randn(count, 64, generator=seeded(seed)) @ mix + (0.2 * side if new else 0)

    old = taught(rows(10_000, False, seed + 2), batch_size=500)
    experts = [old, taught(rows(19 * 32, True, seed + 3), space=old.space)]
    fresh = [of_groups(experts, rows(100 * 32, bool(number), seed + 4 + number)) for number in range(2)]
    return right(fresh[0], 0), right(fresh[1], 1)


@pytest.mark.slow
def test_a_newcomer_gets_its_own_beside_an_expert_that_has_seen_far_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = np.mean([shares_of_related_tasks(10 * seed) for seed in range(3)], axis=0)
    assert (fair > 0.95).all()
    monkeypatch.setattr(sketch, "gaussians", without_allowance(gaussians))
    bare = np.mean([shares_of_related_tasks(10 * seed) for seed in range(3)], axis=0)
    assert bare[0] > 0.99
    assert bare[1] < 0.85


def shares_of_small_classes(seed: int) -> tuple[float, float]:
    """Twenty classes of 500 rows against twenty of 30 that lie beside them; groups of 32 fresh rows of any class."""
    classes = 20
    means = 2 * torch.randn(classes, 64, generator=seeded(seed))
    beside = means + 0.5 * torch.randn(classes, 64, generator=seeded(seed + 1))

    def rows(count: int, new: bool, seed: int) -> tuple[Tensor, Tensor]:
        y = torch.randperm(count, generator=seeded(seed)) % classes
        return torch.randn(count, 64, generator=seeded(seed + 1)) + (beside if new else means)[y], y

    old = taught(*rows(classes * 500, False, seed + 2), classes=classes, batch_size=500)
    experts = [old, taught(*rows(classes * 30, True, seed + 4), classes=classes, space=old.space)]
    fresh = [of_groups(experts, rows(50 * 32, bool(number), seed + 6 + 2 * number)[0]) for number in range(2)]
    return right(fresh[0], 0), right(fresh[1], 1)


@pytest.mark.slow
def test_classes_of_30_rows_get_their_own_beside_classes_of_many(monkeypatch: pytest.MonkeyPatch) -> None:
    fair = np.mean([shares_of_small_classes(20 * seed) for seed in range(2)], axis=0)
    assert (fair > 0.95).all()
    monkeypatch.setattr(sketch, "gaussians", without_allowance(gaussians))
    bare = np.mean([shares_of_small_classes(20 * seed) for seed in range(2)], axis=0)
    assert bare[0] > 0.99
    assert bare[1] < 0.6


@pytest.mark.parametrize("rows", [30, 60, 200])
def test_a_newcomer_of_few_rows_is_known_at_once(rows: int) -> None:
    low, high = halves()
    old = taught(low[:600])
    experts = [old, taught(high[:rows], space=old.space)]
    assert right(of_groups(experts, low[600:]), 0) == 1
    assert right(of_groups(experts, high[600:]), 1) == 1


@pytest.mark.parametrize("rows", [30, 60, 200])
def test_a_first_expert_of_few_rows_keeps_its_own(rows: int) -> None:
    """The rows from which the space was drawn are all that it knows: they must not look like all there can be."""
    low, high = halves()
    first = taught(low[:rows])
    experts = [first, taught(high[:600], space=first.space)]
    assert right(of_groups(experts, low[600:]), 0) == 1
    assert right(of_groups(experts, high[600:]), 1) == 1


# --- what is not usual -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(0.3, 0.7), (0.0, 1.0), (5.0, 5.1)])
def test_inputs_that_never_change_are_told_apart(first: float, second: float) -> None:
    one, other = torch.full((600, 9), first), torch.full((600, 9), second)
    assert told_apart(one, other, one[:5], other[:5]) == (1, 1)
    assert told_apart(one, uniform(600, 9, 1), one[:5], uniform(50, 9, 2)) == (1, 1)


def test_one_class_of_many_is_enough() -> None:
    one = taught(uniform(600, 9, 1), torch.full((600,), 7), classes=10)
    other = taught(uniform(600, 9, 2) + 3, torch.full((600,), 7), classes=10, space=one.space)
    for number in range(2):
        found = scores_of([one, other], uniform(50, 9, 3 + number) + 3 * number)
        assert torch.isfinite(found).all()
        assert right(found, number) == 1


@pytest.mark.parametrize("inputs", [1, 2, 9, 5000])
def test_few_inputs_and_many(inputs: int) -> None:
    rows = [uniform(count, inputs, seed) for count, seed in ((520, 1), (64, 2), (40, 3), (40, 4))]
    assert told_apart(rows[0], rows[1] + 3, rows[2], rows[3] + 3) == (1, 1)


def test_noise_in_many_inputs_is_not_taken_for_directions() -> None:
    """The first rows vary more along directions that were drawn from them than any others do."""
    rows = [uniform(count, 2000, seed) for count, seed in ((520, 1), (520, 2), (40, 3), (40, 4))]
    assert min(told_apart(rows[0], rows[1] + 0.1, rows[2], rows[3] + 0.1)) >= 0.95


def test_a_single_row_opens_the_space() -> None:
    rows = [uniform(count, 9, seed) for count, seed in ((1, 1), (600, 2), (50, 3), (50, 4))]
    assert told_apart(rows[0], rows[1] + 3, rows[2], rows[3] + 3) == (1, 1)


def test_fewer_rows_than_directions_open_the_space() -> None:
    rows = [uniform(count, 64, seed) for count, seed in ((10, 1), (10, 2), (50, 3), (50, 4))]
    assert told_apart(rows[0], rows[1] + 1, rows[2], rows[3] + 1) == (1, 1)


@pytest.mark.parametrize("huge", [1e30, 3e38])
def test_huge_rows_are_told_apart(huge: float) -> None:
    usual, others = uniform(600, 9, 1), uniform(600, 9, 2)
    fresh, fresh_others = uniform(50, 9, 3), uniform(50, 9, 4)
    assert told_apart(huge * usual, -huge * others, huge * fresh, -huge * fresh_others) == (1, 1)
    assert told_apart(usual, huge * others, fresh, huge * fresh_others) == (1, 1)
    assert told_apart(huge * usual, others, huge * fresh, fresh_others) == (1, 1)
    some = torch.cat([usual, huge * uniform(3, 9, 5)])
    assert told_apart(some, others + 3, fresh, fresh_others + 3) == (1, 1)


@pytest.mark.parametrize("huge", [1e4, 1e30])
def test_a_huge_row_among_the_first_does_not_blind_the_gate(huge: float) -> None:
    low, high = halves()
    first = taught(torch.cat([low[:300], torch.full((1, 64), huge), low[300:600]]))
    experts = [first, taught(high[:600], space=first.space)]
    assert right(of_groups(experts, low[600:]), 0) == 1
    assert right(of_groups(experts, high[600:]), 1) == 1


@pytest.mark.parametrize(("far", "most"), [(1e2, 6.0), (1e6, 10.0), (3e38, 60.0), (torch.inf, 60.0), (torch.nan, 60.0)])
def test_one_outlier_moves_the_scores_of_own_rows_by_so_much_at_most(far: float, most: float) -> None:
    """60 is a lot beside the 15 between tasks; but a network's loss on such a row is no number, and it is refused."""
    low, _ = halves()
    space = fixed_space(low[:600])
    usual = taught(low[:600], space=space)
    spoilt = taught(torch.cat([low[:599], torch.full((1, 64), far)]), space=space)
    before, after = scores_of([usual, spoilt], low[600:])
    assert (after - before).abs().max() < most


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 40),
    classes=st.sampled_from([1, 3]),
    scale=st.sampled_from([0.0, 1e-30, 1e-6, 1.0, 1e6, 1e30, 3e38]),
    shift=st.sampled_from([0.0, 1e3, -1e20]),
    opening=st.integers(0, 40),
    seed=st.integers(0, 9),
)
def test_scores_are_finite_whatever_comes(
    rows: int, inputs: int, classes: int, scale: float, shift: float, opening: int, seed: int
) -> None:
    x = (scale * uniform(rows, inputs, seed).double() + shift).clamp(-3.4e38, 3.4e38).float()
    y = torch.randint(0, classes, (rows,), generator=seeded(seed))
    score, seen = SketchScore(Space((inputs,)), classes), 0
    trainer = ScoreTrainer(score)
    asked = torch.cat([x, torch.zeros_like(x), -x, torch.full_like(x, 3e38), torch.full_like(x, 1e-30)])
    for part, labels in zip(x.split(5), y.split(5), strict=True):
        trainer.train(part, labels, torch.Generator())
        seen += len(part)
        if seen >= opening:
            score.finish_deferred()
        assert torch.isfinite(score.score(asked, batch_statistics=False)).all()
        assert torch.isfinite(score.score_together(asked))
        assert torch.isfinite(score.moments).all()
        assert torch.isfinite(score.weights).all()
        assert not score.parts([score.gate_tensors()], asked)[0][:, 0].isnan().any()


def test_an_untrained_score_is_finite() -> None:
    x = uniform(4, 6, 0)
    for classes in (1, 3):
        for space in (Space((6,)), fixed_space(uniform(9, 6, 1))):
            score = SketchScore(space, classes)
            assert torch.isfinite(score.score(x, batch_statistics=False)).all()
            assert torch.isfinite(score.score_together(x))


# --- in a pool -------------------------------------------------------------------------------------------------------

SPECS = {"sketch": MLP, "class-sketch": CLASSES, "shortlisted": SHORTLISTED}
ROWS = 32
AnyPool = EagerPool | StackedPool


def pool_of(name: str, spec: PoolSpec, experts: int = 0) -> AnyPool:
    pool = POOLS[name](spec, Keys(3), CPU)
    for expert in range(experts):
        pool.create(expert)
    return pool


def train(pool: AnyPool, expert: int, steps: range) -> None:
    for step in steps:
        pool.train(expert, batch_for(pool, seed=step, rows=ROWS, shift=3.0 * expert), step)


def rows_learned(pool: AnyPool, expert: int) -> float:
    """How many rows the expert's sketch has taken in."""
    (moments,) = [tensor for name, tensor in pool.state(expert).items() if name.endswith("moments")]
    return float(moments[:, 0].sum())


def first_learned(pool: AnyPool, expert: int, steps: range) -> int:
    """Of each class's first rows every other one is learned, the first of them included."""
    labels = torch.cat([batch_for(pool, seed=step, rows=ROWS, shift=3.0 * expert).y for step in steps])
    return int(((torch.bincount(labels) + 1) // 2).sum())


def assert_same_state(one: AnyPool, other: AnyPool, experts: int) -> None:
    states = [(one.shared_state(), other.shared_state())]
    states += [(one.state(expert), other.state(expert)) for expert in range(experts)]
    for first, second in states:
        assert first.keys() == second.keys()
        for name in first:
            assert torch.equal(first[name], second[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("moment", [1, DIRECTION_ROWS // ROWS - 1, DIRECTION_ROWS // ROWS, DIRECTION_ROWS // ROWS + 3])
def test_a_pool_goes_on_from_anywhere_in_its_opening(moment: int, spec: PoolSpec, name: str) -> None:
    """What is saved in the middle of the opening, or after it, becomes the very same bits."""
    whole, twin = pool_of(name, spec, 1), pool_of(name, spec)
    train(whole, 0, range(moment))
    shared, state = whole.shared_state(), whole.state(0)
    assert ("x" in shared) == (moment * ROWS < DIRECTION_ROWS)
    twin.load_shared_state(shared)
    twin.create(0)
    twin.load_state(0, state)
    assert_same_state(whole, twin, 1)
    for pool in (whole, twin):
        train(pool, 0, range(moment, 40))
        pool.create(1)
        train(pool, 1, range(40, 43))
        train(pool, 0, range(43, 45))
    assert "directions" in whole.shared_state()
    assert_same_state(whole, twin, 2)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_another_expert_ends_the_opening(spec: PoolSpec, name: str) -> None:
    """Whether it is created and then trained, or was there before; or somebody says so."""
    created, trained, told = pool_of(name, spec, 1), pool_of(name, spec, 2), pool_of(name, spec, 1)
    for pool in (created, trained, told):
        train(pool, 0, range(5))
        assert "x" in pool.shared_state()
    created.create(1)
    told.finish_deferred()
    assert "directions" in told.shared_state()
    told.create(1)
    for pool in (created, trained, told):
        train(pool, 1, range(5, 8))
        assert "directions" in pool.shared_state()
        assert [rows_learned(pool, expert) for expert in range(2)] == [first_learned(pool, 0, range(5)), 3 * ROWS]
    for pool in (created, told):
        assert_same_state(trained, pool, 2)


@pytest.mark.parametrize("name", POOLS)
def test_the_first_rows_are_those_of_whoever_learned_them(name: str) -> None:
    """Experts may be created all at once, and not the first of them be the first that learns."""
    pool = pool_of(name, MLP, 2)
    train(pool, 1, range(3))
    pool.finish_deferred()
    assert [rows_learned(pool, expert) for expert in range(2)] == [0, first_learned(pool, 1, range(3))]


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("after", [0, 1])
def test_a_resumed_pool_knows_whose_the_first_rows_are(after: int, name: str) -> None:
    whole, twin = pool_of(name, MLP, 2), pool_of(name, MLP)
    train(whole, 1, range(3))
    twin.load_shared_state(whole.shared_state())
    for expert in range(2):
        twin.create(expert)
        twin.load_state(expert, whole.state(expert))
    for pool in (whole, twin):
        train(pool, after, range(3, 5))
        pool.finish_deferred()
    assert [rows_learned(twin, expert) for expert in range(2)] == [rows_learned(whole, expert) for expert in range(2)]
    assert_same_state(whole, twin, 2)


@pytest.mark.parametrize("spec", [MLP, CLASSES], ids=["sketch", "class-sketch"])
def test_both_pools_draw_their_models_at_the_same_rows(spec: PoolSpec) -> None:
    eager, stacked = (pool_of(name, spec, 1) for name in POOLS)
    for step in range(45):
        for pool in (eager, stacked):
            train(pool, 0, range(step, step + 1))
        states = [pool.state(0) for pool in (eager, stacked)]
        assert int(states[0]["rows_at_refresh"]) == int(states[1]["rows_at_refresh"]), f"after {step + 1} batches"
        torch.testing.assert_close(states[0]["score.weights"], states[1]["score.weights"], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", POOLS)
def test_first_rows_of_another_shape_are_refused(name: str) -> None:
    pool, other = pool_of(name, MLP, 1), pool_of(name, replace(MLP, shape=(5,)), 1)
    train(other, 0, range(2))
    with pytest.raises(ValueError, match="x"):
        pool.load_shared_state(other.shared_state())
