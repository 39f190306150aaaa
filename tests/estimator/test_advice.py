"""Warnings about trouble that is no error: each once, with its remedy, and none where all is well."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import hge
from hge import GatedExperts, HgeWarning
from hge.core.events import TroubleNoticed
from hge.estimator import advice

Stream = Iterable[tuple[Any, Any]]
CHEAP = {"memory_rows": 0}


def warned(model: GatedExperts, stream: Stream) -> list[str]:
    """Learn a stream; return the warnings, which must all be of this package and point to this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit_stream(stream)
    assert all(w.category is HgeWarning and w.filename == __file__ for w in caught), [str(w) for w in caught]
    return [str(w.message) for w in caught]


def noticed(model: GatedExperts) -> list[TroubleNoticed]:
    return [event for event in model.events_ if isinstance(event, TroubleNoticed)]


def digits_of(*tasks: tuple[int, ...], batches: int) -> Iterator[tuple[Any, Any]]:
    """Batches of the digits of each task in turn."""
    data, rng = load_digits(), np.random.default_rng(5)
    for task in tasks:
        own = np.flatnonzero(np.isin(data.target, task))
        for _ in range(batches):
            rows = rng.choice(own, 32)
            yield data.data[rows] / 16, data.target[rows]


def fading(*tasks: tuple[int, ...], batches: int) -> Iterator[tuple[Any, Any]]:
    """Batches of the digits of each task in turn; over half a visit, rows of the next become ever more frequent."""
    data, rng = load_digits(), np.random.default_rng(10)
    own = [np.flatnonzero(np.isin(data.target, task)) for task in tasks]
    for place in np.arange(batches // 4, batches * len(tasks) - batches // 4):
        before, part = divmod(place - batches // 4, batches)  # a visit begins after the middle of a change
        share = np.clip((part - batches / 2) / (batches / 2), 0, 1)
        after = min(before + 1, len(tasks) - 1)
        rows = np.where(rng.random(32) < share, rng.choice(own[after], 32), rng.choice(own[before], 32))
        yield data.data[rows] / 16, data.target[rows]


def new_labels(tasks: int, batches: int) -> Iterator[tuple[Any, Any]]:
    """Tasks of two classes each, all different."""
    rng = np.random.default_rng(4)
    for task in range(tasks):
        centres = 5 * rng.standard_normal((2, 3))
        for _ in range(batches):
            kind = rng.integers(0, 2, 8)
            yield centres[kind] + 0.1 * rng.standard_normal((8, 3)), kind + 2 * task


def random_labels(batches: int, size: int = 32) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(6)
    for _ in range(batches):
        yield rng.standard_normal((size, 5)), rng.integers(0, 4, size)


def contradictory(*batches: int) -> Iterator[tuple[Any, Any]]:
    """The same inputs in all tasks, with other labels in every second one."""
    rng = np.random.default_rng(7)
    for task, length in enumerate(batches):
        for _ in range(length):
            x = rng.standard_normal((32, 4))
            yield x, (x[:, 0] > 0).astype(int) ^ (task % 2)


def constant(batches: int) -> Iterator[tuple[Any, Any]]:
    for _ in range(batches):
        yield np.full((32, 3), 0.5), np.arange(32) % 2


def with_time(batches: int) -> Iterator[tuple[Any, Any]]:
    """An input that grows by 1 from row to row, and one that is constant for a while, beside others."""
    rng = np.random.default_rng(12)
    for number in range(batches):
        x, y = rng.standard_normal((32, 5)), rng.integers(0, 2, 32)
        x[:, 3], x[:, 4] = 1e5 + 32 * number + np.arange(32), number
        yield x, y


def heavy_tails(batches: int) -> Iterator[tuple[Any, Any]]:
    rng = np.random.default_rng(8)
    for _ in range(batches):
        x = rng.standard_cauchy((32, 20))
        yield x, (x[:, 0] > 0).astype(int)


def large_value() -> Iterator[tuple[Any, Any]]:
    for _ in range(2):
        x, y = next(random_labels(1))
        x[3, 2] = -1e13
        yield x, y


def coded(batches: int, code: float) -> Iterator[tuple[Any, Any]]:
    """Inputs of which one in twenty is missing, and one that is 0 in a third of the rows, as counts and pixels are."""
    rng = np.random.default_rng(9)
    for _ in range(batches):
        x = rng.normal(20, 5, (32, 4))
        y = (x[:, 0] > 20).astype(int)
        x[rng.random((32, 4)) < 0.05] = code
        x[:, 2] = np.where(rng.random(32) < 1 / 3, 0, rng.gamma(2, size=32))
        yield x, y


FEWER = {"many-experts": ("MANY_EXPERTS", 8), "often-new": ("OFTEN_AFTER", 30)}
"""Thresholds that are lowered, since 50 experts take half a minute."""
TROUBLES: dict[str, tuple[dict[str, Any], partial[Stream], tuple[str, ...]]] = {
    "refused": (CHEAP | {"epsilon": 0.7}, partial(random_labels, 200, size=100), ("batch_size", "epsilon")),
    "probation": (
        CHEAP | {"organisation": "lca", "promotion_rate": 0.95, "promotion_window": 10},
        partial(contradictory, 100, 60),
        ("promotion_rate", "promotion_window", "gate_score"),
    ),
    "constant": ({}, partial(constant, 10), ("equal", "Check how X is made")),
    "rising": ({}, partial(with_time, 4), ("Input 3", "Leave it out", "differences")),
    "scale": ({}, partial(large_value), ("magnitude 1e+13", "Transform the inputs")),
    "scale, clipped": (CHEAP, partial(heavy_tails, 200), ("10 standard deviations", "Transform the inputs")),
    "codes": ({}, partial(coded, 70, -999.0), ("Input 0", "is -999 in", "Replace it", "add an input")),
    "many-experts": ({"batch_size": 8}, partial(new_labels, 12, batches=6), ("epsilon", "error_rate", "max_experts")),
    "often-new": ({"batch_size": 8}, partial(new_labels, 12, batches=4), ("epsilon", "error_rate", "max_experts")),
    "gate": (
        {},
        partial(contradictory, 40, 80, 40),
        ('routing="stream"', "right after partial_fit", "cannot be right"),
    ),
    "gradual": (
        {},
        partial(fading, (0, 1), (2, 3), (4, 5), batches=60),
        ("no hard boundaries", "memory_rows", "max_experts=1"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TROUBLES)
def test_trouble_is_said_once_with_its_remedy(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, stream, remedies = TROUBLES[case]
    if case in FEWER:
        monkeypatch.setattr(advice, *FEWER[case])
    model = GatedExperts(**parameters)
    (text,) = warned(model, stream())
    assert [word for word in remedies if word not in text] == []
    (event,) = noticed(model)
    assert (event.trouble, event.advice) == (case.partition(",")[0], text)
    assert event.as_json()["event"] == "trouble_noticed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(partial(digits_of, *[(i, i + 1) for i in (0, 2, 4, 6, 8, 0)], batches=40), id="pairs"),
        pytest.param(partial(digits_of, *[(i,) for i in range(10)], (0,), batches=20), id="one class at a time"),
        pytest.param(partial(digits_of, (3,), (7,), (3,), batches=45), id="a class that returns"),
        pytest.param(partial(digits_of, tuple(range(10)), batches=250), id="stationary"),
        pytest.param(partial(random_labels, 420), id="random labels"),
        pytest.param(partial(coded, 140, 20.0), id="values that are frequent, and as good as any other"),
        pytest.param(partial(random_labels, 420, size=4), id="random labels, few rows a call"),
    ],
)
def test_ordinary_streams_are_no_trouble(stream: partial[Stream]) -> None:
    model = GatedExperts()
    assert warned(model, stream()) == []
    assert noticed(model) == []


@pytest.mark.slow
def test_a_limit_of_experts_is_a_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit a new task creates no expert, and batches set aside are no sign of noise."""
    monkeypatch.setattr(advice, "MANY_EXPERTS", 1)
    monkeypatch.setattr(advice, "WINDOW", 10)
    model = GatedExperts(batch_size=8, max_experts=2)
    assert warned(model, new_labels(10, batches=6)) == []
    assert model.n_experts_ == 2
    assert [event.kind() for event in model.events_].count("batch_set_aside") > 60 * advice.REFUSED_SHARE


@pytest.mark.slow
def test_contradictory_tasks_with_hard_boundaries_are_not_gradual() -> None:
    """The expert that was replaced still predicts some rows rightly, but never ever fewer of them."""
    model = GatedExperts()
    warned(model, contradictory(40, 80, 40, 80))
    assert "gradual" not in [event.trouble for event in noticed(model)]
    assert [event.kind() for event in model.events_].count("expert_changed") >= 3


def test_rows_that_are_equal_within_calls_only_are_no_trouble() -> None:
    stream = ((np.full((32, 3), float(number)), np.arange(32) % 2) for number in range(10))
    assert warned(GatedExperts(**CHEAP, epsilon=100.0), stream) == []


def test_an_input_that_falls_once_is_no_time() -> None:
    """Nor is one that rises from call to call in small calls, where a row is compared with that of the call before."""
    stream = [(x[:, :4], y) for x, y in with_time(4)]
    stream[1][0][5, 3] -= 50
    model = GatedExperts(**CHEAP)
    assert warned(model, ((x[k : k + 5], y[k : k + 5]) for x, y in stream for k in range(0, 32, 5))) == []
    assert model._advice.newest is None


def test_a_loaded_model_counts_on_the_rises_of_an_input(tmp_path: Path) -> None:
    stream, model = list(with_time(4)), GatedExperts(**CHEAP)
    assert warned(model, stream[:1]) == []
    model.save(tmp_path / "model")
    assert [len(warned(m, stream[1:])) for m in (model, GatedExperts.load(tmp_path / "model"))] == [1, 1]


def test_a_loaded_model_does_not_repeat_itself_and_counts_on(tmp_path: Path) -> None:
    model = GatedExperts(**CHEAP)
    assert warned(model, constant(5)) == []
    model.save(tmp_path / "early")
    early = GatedExperts.load(tmp_path / "early")
    assert [len(warned(m, constant(3))) for m in (model, early)] == [1, 1]
    early.save(tmp_path / "late")
    for again in (GatedExperts.load(tmp_path / "late"), pickle.loads(pickle.dumps(early))):
        assert warned(again, constant(10)) == []


@pytest.mark.slow
def test_a_loaded_model_follows_a_change_to_its_end(tmp_path: Path) -> None:
    model, stream = GatedExperts(), fading((0, 1), (2, 3), (4, 5), batches=60)
    while len(model.partial_fit(*next(stream))._advice.left_rows) < 5:
        pass
    model.save(tmp_path / "model")
    rest = list(stream)
    again = GatedExperts.load(tmp_path / "model")
    texts = [warned(m, rest) for m in (model, again)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 1


def test_fit_warns_once_and_again_in_a_new_fit() -> None:
    (X, y), model = next(constant(1)), GatedExperts(**CHEAP, epochs=2)
    X, y = np.tile(X, (8, 1)), np.tile(y, 8)
    for _ in range(2):
        with pytest.warns(HgeWarning, match="All 256 rows") as caught:
            model.fit(X, y)
        assert [w.filename for w in caught] == [__file__]


def test_a_warning_that_is_made_an_error_comes_after_learning() -> None:
    model, stream = GatedExperts(**CHEAP), list(constant(9))
    model.fit_stream(stream[:7])
    with pytest.raises(HgeWarning):
        model.partial_fit(*stream[7])
    assert model.experts_[0].batches_trained == 8
    model.partial_fit(*stream[8])
    assert model.experts_[0].batches_trained == 9


def test_small_calls_of_many_classes_are_no_regression() -> None:
    """scikit-learn warns if more than half of the labels are distinct, which says nothing about a part of a stream."""
    X, y = np.random.default_rng(9).random((30, 2)), np.arange(30)
    model = GatedExperts().partial_fit(X, y).partial_fit(X, y)
    assert len(model.classes_) == 30
    with pytest.raises(ValueError, match="Unknown label type"):
        model.partial_fit(X, y + 0.5)


def test_the_warning_is_an_attribute_of_the_package() -> None:
    assert hge.HgeWarning is HgeWarning
    assert issubclass(HgeWarning, UserWarning)
