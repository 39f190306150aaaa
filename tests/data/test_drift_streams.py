from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hge.data import drift_streams as drift
from hge.data.drift_streams import Concept, DriftStream

Array = npt.NDArray[Any]

CONCEPTS: dict[str, Callable[[], Concept]] = {
    **{f"stagger {k}": lambda k=k: drift.stagger(k) for k in range(3)},  # type: ignore[misc]
    **{f"sine {k}": lambda k=k: drift.sine(k) for k in range(4)},  # type: ignore[misc]
    **{f"agrawal {k}": lambda k=k: drift.agrawal(k) for k in range(7)},  # type: ignore[misc]
    "rbf": lambda: drift.random_rbf(3),
    "led": drift.led,
    "noise": drift.noise,
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def numbered(first: int, rows: int) -> Concept:
    """A data set whose rows are their own numbers."""
    numbers = np.arange(first, first + rows)
    return drift.of_rows(numbers[:, None], numbers)


@pytest.mark.parametrize("name", CONCEPTS)
def test_a_seed_determines_the_rows(name: str) -> None:
    (x, y), (again_x, again_y), (other, _) = (CONCEPTS[name]()(100, rng(seed)) for seed in (1, 1, 2))
    assert (x.dtype, y.dtype, x.ndim, len(x), y.shape) == (np.float32, np.int64, 2, 100, (100,))
    np.testing.assert_array_equal(x, again_x)
    np.testing.assert_array_equal(y, again_y)
    assert (x != other).any()
    assert len(np.unique(y)) > 1


def test_stagger_by_hand() -> None:
    """Size 0 small, colour 0 red and 1 green, shape 1 circle."""
    expected = {
        0: lambda size, colour, shape: size == 0 and colour == 0,
        1: lambda size, colour, shape: colour == 1 or shape == 1,
        2: lambda size, colour, shape: size in (1, 2),
    }
    for number, rule in expected.items():
        x, y = drift.stagger(number)(200, rng())
        assert y.tolist() == [int(rule(*row)) for row in x.tolist()]
        assert len(np.unique(x, axis=0)) == 27


@pytest.mark.parametrize("number", range(4))
def test_sine_is_divided_by_its_curve(number: int) -> None:
    x, y = drift.sine(number)(300, rng())
    curve = np.sin(x[:, 0]) if number in (0, 1) else 0.5 + 0.3 * np.sin(3 * np.pi * x[:, 0])
    far = np.abs(x[:, 1] - curve) > 1e-6  # the rows have been rounded
    assert (y == ((x[:, 1] > curve) != (number in (1, 3))))[far].all()
    assert far.sum() > 290


@pytest.mark.parametrize(
    ("number", "person", "granted"),
    [
        (0, {"age": 30}, True),
        (0, {"age": 40}, False),
        (0, {"age": 60}, True),
        (1, {"age": 30, "salary": 60_000}, True),
        (1, {"age": 50, "salary": 60_000}, False),
        (1, {"age": 70, "salary": 60_000}, True),
        (2, {"age": 30, "level": 1}, True),
        (2, {"age": 50, "level": 0}, False),
        (2, {"age": 70, "level": 4}, True),
        (3, {"age": 30, "level": 0, "salary": 30_000}, True),
        (3, {"age": 30, "level": 3, "salary": 30_000}, False),
        (3, {"age": 70, "level": 4, "salary": 90_000}, True),
        (4, {"age": 30, "salary": 60_000, "loan": 250_000}, True),
        (4, {"age": 30, "salary": 60_000, "loan": 350_000}, False),
        (4, {"age": 30, "salary": 140_000, "loan": 350_000}, True),
        (5, {"age": 30, "salary": 40_000, "commission": 30_000}, True),
        (5, {"age": 50, "salary": 40_000, "commission": 30_000}, False),
        (6, {"salary": 60_000, "commission": 60_000, "loan": 100_000}, True),
        (6, {"salary": 60_000, "commission": 0, "loan": 200_000}, False),
    ],
)
def test_agrawal_by_hand(number: int, person: dict[str, float], granted: bool) -> None:
    names = ("salary", "commission", "age", "level", "car", "zipcode", "value", "years", "loan")
    _, y = drift.agrawal(number)(1, Person({name: person.get(name, 1) for name in names}))  # type: ignore[arg-type]
    assert y.tolist() == [int(not granted)]


class Person:
    """A generator that returns the attributes of one person, in the order in which Agrawal's are drawn."""

    def __init__(self, attributes: dict[str, float]) -> None:
        order = ("salary", "commission", "age", "level", "car", "zipcode", "value", "years", "loan")
        self.values = iter([attributes[name] for name in order])

    def uniform(self, low: float, high: float, rows: int) -> Array:
        return np.full(rows, float(next(self.values)))

    def integers(self, low: int, high: int, rows: int) -> Array:
        return np.full(rows, int(next(self.values)))


def test_agrawals_attributes_have_their_ranges() -> None:
    x, _ = drift.agrawal(0)(2000, rng())
    salary, commission, age, level, *_, loan = x.T
    assert 20_000 <= salary.min() < 25_000 < 145_000 < salary.max() <= 150_000
    assert (commission[salary >= 75_000] == 0).all()
    assert (commission[salary < 75_000] >= 10_000).all()
    assert (age.min(), age.max(), level.min(), level.max()) == (20, 80, 0, 4)
    assert loan.max() <= 500_000


def test_led_without_noise_shows_the_digit() -> None:
    x, y = drift.led(noise=0.0)(200, rng())
    shown = {label: "".join(str(int(on)) for on in x[y == label][0, :7]) for label in range(10)}
    assert (shown[1], shown[7], shown[8]) == ("0010010", "1010010", "1111111")
    assert len(set(shown.values())) == 10
    assert x.shape == (200, 24)


def test_visits_follow_the_order() -> None:
    stream = drift.visit([numbered(1000 * c, 500) for c in range(3)], (0, 1, 0, 2, 1), 100, rng(), held_out=50)
    assert len(stream) == 500
    assert stream.concept.tolist() == [0] * 100 + [1] * 100 + [0] * 100 + [2] * 100 + [1] * 100
    assert (stream.y // 1000 == stream.concept).all()
    assert {c: len(y) for c, (_, y) in stream.held_out.items()} == {0: 50, 1: 50, 2: 50}


@pytest.mark.parametrize("blend", [0, 60])
def test_rows_are_in_the_stream_or_held_out_and_only_once(blend: int) -> None:
    concepts = [numbered(0, 250), numbered(1000, 150), numbered(2000, 150)]
    stream = drift.visit(concepts, (0, 1, 0, 2), 100, rng(), blend=blend, held_out=50)
    rows = np.concatenate([stream.y, *(y for _, y in stream.held_out.values())])
    assert sorted(rows.tolist()) == [*range(250), *range(1000, 1150), *range(2000, 2150)]


def test_blending_mixes_the_rows_around_a_boundary() -> None:
    def draw(blend: int) -> DriftStream:
        return drift.visit([numbered(0, 2000), numbered(5000, 2000)], (0, 1), 1000, rng(), blend=blend)

    plain, blended = draw(0), draw(600)
    assert sorted(blended.y.tolist()) == sorted(plain.y.tolist())
    assert (blended.x[:, 0] == blended.y).all()
    assert (blended.y // 5000 == blended.concept).all()
    assert (blended.concept[:700] == 0).all()
    assert (blended.concept[1300:] == 1).all()
    shares = [blended.concept[start : start + 200].mean() for start in (700, 900, 1100)]
    assert 0.05 < shares[0] < 0.3 < shares[1] < 0.7 < shares[2] < 0.95


def test_a_blend_longer_than_a_visit_is_refused() -> None:
    with pytest.raises(ValueError, match="blend: got 101, expected 0 to 100, the rows of a visit"):
        drift.visit([drift.noise()], (0, 0), 100, rng(), blend=101)


def test_a_data_set_that_is_used_up_is_an_error() -> None:
    with pytest.raises(ValueError, match="rows: got 60, expected at most 50: 250 rows, each drawn at most once"):
        drift.visit([numbered(0, 250)], (0, 0), 100, rng(), held_out=60)


def test_a_seed_determines_the_stream() -> None:
    def draw(seed: int) -> DriftStream:
        return drift.visit([numbered(0, 300), numbered(500, 300)], (0, 1, 0), 100, rng(seed), blend=40, held_out=20)

    first, again, other = draw(5), draw(5), draw(6)
    np.testing.assert_array_equal(first.y, again.y)
    np.testing.assert_array_equal(first.concept, again.concept)
    np.testing.assert_array_equal(first.held_out[1][1], again.held_out[1][1])
    assert (first.y != other.y).any()
