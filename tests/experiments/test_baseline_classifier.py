"""Baselines as scikit-learn classifiers."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import hge.baselines
from hge.baselines import ESTIMATORS

CENTRES = np.array([[0.0, 0.0], [60.0, 0.0], [0.0, 900.0], [60.0, 900.0]])
"""Of four classes, in the units of two very different inputs."""
NAMES = np.array(["a", "b", "c", "d"])
SHORTENED: dict[str, dict[str, Any]] = {"CNDPM": {"settings": {"sleep_steps": 400, "short_term": 100}}}
"""Settings with which a classifier is trained in no time."""


def rows_of(*classes: int, rows: int = 256, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    y = rng.choice(classes, rows)
    return CENTRES[y] + rng.normal(size=(rows, 2)) * (3.0, 45.0), NAMES[y]


def made(name: str, **parameters: Any) -> Any:
    return getattr(hge.baselines, name)(batch_size=16, **SHORTENED.get(name, {}) | parameters)


QUICK = ["DERPlusPlus", "ER", "EWC", "NCM"]
SLOW_TOO = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ESTIMATORS]


@pytest.mark.parametrize("name", SLOW_TOO)
def test_every_baseline_learns_two_classes(name: str) -> None:
    model = made(name)
    for _ in range(6 if name.startswith("HCL") else 3):  # a flow has more to learn than two classes
        model.partial_fit(*rows_of(0, 1))
    x, y = rows_of(0, 1, seed=1)
    probabilities = model.flush().predict_proba(x)
    assert probabilities.shape == (256, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    assert model.score(x, y) > 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("name", "forgets"), [("Naive", True), ("ER", False), ("DERPlusPlus", False), ("SLDA", False)])
def test_replay_and_statistics_keep_what_a_plain_network_forgets(name: str, forgets: bool) -> None:
    model = made(name)
    for task in ((0, 1), (2, 3)):
        for seed in range(4):
            model.partial_fit(*rows_of(*task, seed=seed))
    x, y = rows_of(0, 1, seed=9)
    assert (model.flush().score(x, y) < 0.5) == forgets
    assert model.classes_.tolist() == ["a", "b", "c", "d"]


def test_memory_and_settings_reach_the_method() -> None:
    model = made("DERPlusPlus", memory_rows=20, settings={"logit_weight": 0.0}).partial_fit(*rows_of(0, 1))
    assert model._learner.rows_kept == 20
    assert model._learner.rule.config.logit_weight == 0.0
    assert model._learner.rule.config.label_weight == 0.5  # the method's own


def test_told_methods_are_told() -> None:
    model = made("ExpertGate").partial_fit(*rows_of(0, 1)).boundary().partial_fit(*rows_of(2, 3))
    assert len(model._learner.experts) == 2
    with pytest.raises(ValueError, match="boundary: got a ER, expected a method that is told boundaries"):
        made("ER").partial_fit(*rows_of(0, 1)).boundary()
    with pytest.raises(ValueError, match="boundary: got a EWC"):
        made("EWC", settings={"consolidate": "detected"}).partial_fit(*rows_of(0, 1)).boundary()


@pytest.mark.parametrize("settings", [{"consolidate": "told"}, {"consolidate": "detected"}])
def test_ewc_protects_rows_in_any_units(settings: dict[str, Any]) -> None:
    model = made("EWC", settings=settings)
    for seed in range(6):
        model.partial_fit(*rows_of(0, 1, seed=seed))
    if settings["consolidate"] == "told":
        model.boundary()
    for seed in range(6):
        model.partial_fit(*rows_of(2, 3, seed=seed))
    penalty = model._learner.rule.parts["penalty"].state()
    assert max(float(tensor.abs().max()) for tensor in penalty.values()) > 0


@pytest.mark.slow
def test_what_the_end_of_the_stream_made_is_pickled() -> None:
    model = made("TAME")
    for classes in ((0, 1), (2, 3)):
        for seed in range(3):
            model.partial_fit(*rows_of(*classes, seed=seed))
    other, (x, _) = pickle.loads(pickle.dumps(model.flush())), rows_of(0, 1, 2, 3, seed=5)
    np.testing.assert_array_equal(model.predict_proba(x), other.predict_proba(x))


def test_methods_of_the_end_do_not_predict_before_it() -> None:
    model = made("GDumb").partial_fit(*rows_of(0, 1))
    with pytest.raises(NotFittedError, match=r"call flush\(\)"):
        model.predict([[0.0, 0.0]])
    assert model.flush().predict([[0.0, 0.0]]) == ["a"]
    with pytest.raises(NotFittedError, match=r"call flush\(\)"):
        model.partial_fit(*rows_of(0, 1)).predict([[0.0, 0.0]])


@pytest.mark.parametrize("name", ["DERPlusPlus", "SLDA", pytest.param("TAME", marks=pytest.mark.slow), "EWC"])
def test_a_pickled_model_continues_as_the_original_does(name: str) -> None:
    model = made(name).partial_fit(*rows_of(0, 1))
    other = pickle.loads(pickle.dumps(model))
    x, _ = rows_of(0, 1, 2, 3, seed=5)
    expected, found = (m.partial_fit(*rows_of(2, 3)).flush().predict_proba(x) for m in (model, other))
    np.testing.assert_array_equal(expected, found)


def test_fit_starts_again() -> None:
    x, y = rows_of(0, 1)
    once = made("ER", epochs=2).fit(x, y).predict_proba(x)
    again = clone(made("ER", epochs=2)).fit(*rows_of(2, 3)).fit(x, y)
    np.testing.assert_array_equal(once, again.predict_proba(x))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"memory_rows": 0}, "memory_rows: got 0, expected"),
        ({"settings": {"alpha": 1}}, "settings: got 'alpha', expected some of logit_weight"),
        ({"settings": {"logit_weight": -1.0}}, "logit_weight: got -1.0, expected 0 or more"),
        ({"net": "transformer"}, "net: got 'transformer', expected"),
        ({"optimiser": "lion"}, "optimiser: got 'lion', expected"),
        ({"class_capacity": 1}, "class"),
    ],
)
def test_errors_name_the_argument(parameters: dict[str, Any], message: str) -> None:
    model = made("DERPlusPlus", **parameters)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*rows_of(0, 1))
    with pytest.raises(NotFittedError):
        model.predict([[0.0, 0.0]])


def test_rows_that_do_not_fit_change_nothing() -> None:
    model = made("ER").partial_fit(*rows_of(0, 1), classes=["a", "b"])
    before = model.predict_proba([[0.0, 0.0]])
    with pytest.raises(ValueError, match="y: "):
        model.partial_fit(*rows_of(2, 3))
    with pytest.raises(ValueError, match="X has 3 features"):
        model.partial_fit(np.zeros((4, 3)), np.array(["a"] * 4))
    np.testing.assert_array_equal(model.predict_proba([[0.0, 0.0]]), before)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Separate'"):
        _ = hge.baselines.Separate


def test_a_fit_that_is_refused_leaves_the_model_as_it_was() -> None:
    x, y = rows_of(0, 1)
    model = made("NCM").fit(x, y)
    before = model.predict_proba(x)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(x, np.nan), y)
    np.testing.assert_array_equal(model.predict_proba(x), before)
