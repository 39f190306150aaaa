"""Inputs in any units: scaled by an expert's own rows, and safe whatever the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from hge import GatedExperts
from hge.experts.inputs import MAX_DEVIATIONS, Standardise, Statistics
from hge.experts.scores.space import units_of


def test_statistics_are_those_of_all_rows_whatever_the_batches() -> None:
    x = 50 + 7 * torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
    for size in (1, 7, 300):
        scale = Standardise((5,)).train()
        for part in x.split(size):
            scale(part)
        torch.testing.assert_close(scale.mean, x.double().mean(0), rtol=1e-2 if size == 1 else 1e-6, atol=0.1)
        if size > 1:  # from a single first row no spread is known, and later rows are clipped to what is
            torch.testing.assert_close(scale.variance, x.double().var(0, correction=0), rtol=2e-2, atol=0)


@pytest.mark.parametrize("shape", [(5,), (3, 4, 4)])
def test_tensors_give_what_arrays_give(shape: tuple[int, ...]) -> None:
    """On a GPU statistics are tensors, elsewhere arrays."""
    scale = Standardise(shape)
    arrays, tensors = scale.statistics, Statistics(scale.rows, scale.mean, scale.variance)
    for seed in range(3):
        x = 50 + 7 * torch.randn(30, *shape, generator=torch.Generator().manual_seed(seed))
        x[:, 1], x[0, 0] = 2.0, 1e30
        arrays, tensors = arrays.including(x.numpy()), tensors.including(x)
        for array, tensor in zip(arrays, tensors, strict=True):
            np.testing.assert_allclose(array, tensor, rtol=1e-12)
        np.testing.assert_allclose(arrays.standardised(x.numpy()), tensors.standardised(x), rtol=1e-9, atol=1e-12)
    tensors.copy_to(Statistics(scale.rows, scale.mean, scale.variance))
    assert scale.rows == 90
    assert torch.equal(scale.mean, tensors.mean)


def test_images_have_statistics_for_each_channel() -> None:
    x = torch.rand(40, 3, 4, 4) * torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    scale = Standardise((3, 4, 4)).train()
    out = scale(x)
    assert scale.mean.shape == (3, 1, 1)
    torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.std((0, 2, 3)), torch.ones(3), rtol=1e-2, atol=0)


def test_an_outlier_moves_the_statistics_by_little() -> None:
    x = torch.rand(1000, 4)
    scale = Standardise((4,)).train()
    for part in x.split(50):
        scale(part)
    before = scale.mean.clone(), scale.variance.clone()
    scale(torch.full((1, 4), 1e30))
    assert ((scale.mean - before[0]).abs() < 0.01).all()
    assert (scale.variance < 1.2 * before[1]).all()
    assert scale.eval()(torch.full((1, 4), 1e30)).tolist() == [[MAX_DEVIATIONS] * 4]


@given(
    rows=st.integers(1, 9),
    exponent=st.integers(-38, 38),
    shift=st.sampled_from([0.0, 1.0, -1e9, 1e30]),
    seed=st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_outputs_are_finite_whatever_comes(rows: int, exponent: int, shift: float, seed: int) -> None:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(seed)) * 10.0**exponent + shift
    x[:, 2] = shift  # a constant input
    scale = Standardise((3,)).train()
    for part in (x, x.flip(0), torch.full((1, 3), 3e38)):
        out = scale(part)
        assert out.isfinite().all()
        assert out.abs().max() <= MAX_DEVIATIONS
        assert scale.variance.isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1.0, 255.0, 1e6, 1e-6])
def test_units_do_not_matter(unit: float) -> None:
    X, y = load_digits(return_X_y=True)
    model = GatedExperts()
    for task in (y < 5, y >= 5):
        for _ in range(6):
            model.partial_fit(unit * X[task], y[task])
    assert model.n_experts_ == 2
    assert model.score(unit * X, y) > 0.95


@pytest.mark.slow
def test_features_in_units_of_their_own() -> None:
    X, y = load_digits(return_X_y=True)
    units = np.random.default_rng(0).lognormal(0, 4, 64)
    X = units * X + 100 * units
    model = GatedExperts()
    for task in (y < 5, y >= 5):
        for _ in range(6):
            model.partial_fit(X[task], y[task])
    assert model.score(X, y) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "classes"), [(50.0, 2), (0.01, 2), (50.0, 1)])
def test_many_features_of_noise_in_another_unit(unit: float, classes: int) -> None:
    """In common units those of 50 are all that rows differ in; in units of their own, those of 0.01 count.

    One class at a time, only the rows of the experts before tell.
    """
    rng = np.random.default_rng(0)
    pixels, y = load_digits(return_X_y=True)
    model = GatedExperts()

    def noisy(rows: np.ndarray) -> np.ndarray:
        return np.hstack([pixels[rows], unit * rng.normal(size=(len(rows), 200))])

    tasks = [np.flatnonzero(y // classes == task) for task in range(5)]
    for rows in tasks:
        for _ in range(5):
            model.partial_fit(noisy(rows), y[rows])
    assert model.n_experts_ == 5
    assert min(model.score(noisy(rows), y[rows]) for rows in tasks) > 0.95


def test_units_are_those_that_tell_labels_apart() -> None:
    rng = np.random.default_rng(0)
    labels = torch.arange(200) % 2
    told = 0.3 * (labels[:, None] + torch.from_numpy(rng.normal(size=(200, 40))))
    noise = torch.from_numpy(rng.normal(size=(200, 600)))
    for unit, own in ((8.0, True), (1e-4, False)):
        rows = torch.cat([told, unit * noise], dim=1)
        assert bool((units_of(rows, labels) != 1).any()) == own
        twice = torch.cat([rows, rows]), torch.cat([labels, labels])
        assert bool((units_of(*twice) != 1).any()) == own, "a row is not its own neighbour, either, if it came twice"
        assert bool((units_of(rows, torch.zeros(200)) != 1).any()) != own, "one class: the spreads decide, here wrongly"


@pytest.mark.slow
def test_an_expert_keeps_its_scaling() -> None:
    """Another expert's rows, in other units, change nothing that the first one says."""
    X, y = load_digits(return_X_y=True)
    model = GatedExperts()
    for _ in range(6):
        model.partial_fit(X[y < 5], y[y < 5])
    rows = X[y < 5][:50]
    before = model.predict_proba(rows)
    for _ in range(6):
        model.partial_fit(1000 * X[y >= 5], y[y >= 5])
    assert model.n_experts_ == 2
    np.testing.assert_array_equal(model.predict(rows), model.classes_[:5][before.argmax(axis=1)])


def test_without_scaling_inputs_are_passed_on() -> None:
    X, y = load_digits(return_X_y=True)
    model = GatedExperts(scale="none").partial_fit(X[:64] / 16, y[:64])
    assert not any("0.mean" in name for name in model.learner_.pool.state(0))
    with pytest.raises(ValueError, match="scale: got 'log', expected one of standard, none"):
        GatedExperts(scale="log").fit(X[:64], y[:64])  # type: ignore[arg-type]


def test_an_input_that_was_constant_at_first_is_learned_later() -> None:
    scale = Standardise(shape=(1,))
    scale.train()(torch.zeros(32, 1))
    later = torch.tensor([[0.0], [5.0]]).repeat(16, 1)
    for _ in range(50):
        scale.train()(later)
    assert scale.eval()(later).std() == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("shape", [(3,), (3, 4, 4)])
@pytest.mark.parametrize("rows_before", [0, 320])
def test_one_huge_value_does_not_set_the_scale_of_an_input_that_was_constant(
    shape: tuple[int, ...], rows_before: int
) -> None:
    """Nor in the first batch: one row in it has a code for a missing value."""
    generator = torch.Generator().manual_seed(0)
    scale, wide = Standardise(shape).train(), (-1, 3, *(1 for _ in shape[1:]))
    for _ in range(rows_before // 32):
        scale(torch.zeros(32, *shape))
    spoiled = torch.zeros(32, *shape) if rows_before else torch.randn(32, *shape, generator=generator)
    spoiled[5] = torch.tensor([1e6, -999.0, 1e30]).view(wide)[0]
    scale(spoiled)
    for _ in range(30):
        scale(torch.randn(32, *shape, generator=generator))
    spread = scale.eval()(torch.randn(500, *shape, generator=generator)).std((0, *range(2, 1 + len(shape))))
    assert ((spread > 0.5) & (spread < 2)).all(), spread


def test_an_input_that_is_rarely_not_zero_gets_a_scale_when_two_rows_of_a_batch_differ() -> None:
    scale, rows = Standardise((1,)).train(), torch.zeros(32, 1)
    rows[3] = 7.0
    assert scale(rows).max() == MAX_DEVIATIONS  # as far away as can be, but no scale yet
    assert scale.variance == 0
    rows[4] = 5.0
    scale(rows)
    assert scale.variance > 1


@pytest.mark.parametrize("unit", [1e-37, 1e-30, 1e-20, 1e14])
def test_inputs_in_any_unit_have_the_same_scale(unit: float) -> None:
    rows = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    own, other = Standardise((3,)).train(), Standardise((3,)).train()
    assert torch.allclose(own(rows), other(rows * unit), atol=1e-4)
