"""`GatedExperts(expert=…)`: scikit-learn classifiers as experts."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier

from helpers.digits import all_digits, digits
from hge import GatedExperts
from hge.core.events import ExpertRolledBack


def pairs(model: GatedExperts) -> tuple[Any, Any]:
    """Learn the digits 0 and 1, then 2 and 3, …, half of the rows; return the other half."""
    X, y = all_digits()
    for first in range(0, 10, 2):
        rows = np.flatnonzero((y // 2 == first // 2) & (np.arange(len(y)) % 2 == 0))
        for _ in range(2):
            model.partial_fit(X[rows], y[rows])
    model.flush()
    return X[1::2], y[1::2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"expert": SGDClassifier(loss="log_loss"), "class_capacity": 10},
        {"expert": GaussianNB()},
        {"expert": MLPClassifier()},
        {"expert": MultinomialNB(), "scale": "none"},
    ],
    ids=lambda parameters: type(parameters["expert"]).__name__,
)
def test_pairs_of_digits_are_told_apart(parameters: dict[str, Any]) -> None:
    model = GatedExperts(**parameters)
    X, y = pairs(model)
    assert model.n_experts_ == 5
    assert model.score(X, y) >= 0.9
    assert not hasattr(model.expert, "classes_"), "the prototype is not trained"


@pytest.mark.slow
def test_classifiers_learn_without_the_memory_and_in_a_tree() -> None:
    model = GatedExperts(expert=GaussianNB(), memory_rows=0, organisation="tree", routing="sample")
    rng = np.random.default_rng(0)
    for low in (True, False):
        X, y = digits(low)
        for _ in range(6):
            order = rng.permutation(len(X))  # the file has runs of hard rows, which naive Bayes is too sure about
            model.partial_fit(X[order], y[order])
    assert model.n_experts_ == 2
    X, y = digits()
    assert model.score(X, y) >= 0.85
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("memory_rows", [1000, 0])
def test_a_higher_bound_helps_where_runs_of_hard_rows_look_like_a_new_task(memory_rows: int) -> None:
    """In the order of the file; docs/howto/own-expert.md gives this advice."""
    model = GatedExperts(expert=GaussianNB(), memory_rows=memory_rows, epsilon=8.0)
    for low in (True, False):
        for _ in range(4):
            model.partial_fit(*digits(low))
    assert model.n_experts_ == 2


def test_images_are_flattened() -> None:
    X, y = digits(low=True)
    model = GatedExperts(expert=GaussianNB(), epochs=1).fit(X.reshape(-1, 1, 8, 8), y)
    assert model.score(X.reshape(-1, 1, 8, 8), y) > 0.9


def test_parameters_of_the_classifier_are_parameters_of_the_model() -> None:
    model = GatedExperts(expert=SGDClassifier(loss="log_loss", alpha=0.5))
    assert model.get_params()["expert__alpha"] == 0.5
    twin = clone(model)
    assert twin.expert is not model.expert
    twin.set_params(expert__alpha=0.1)
    assert (model.expert.alpha, twin.expert.alpha) == (0.5, 0.1)
    assert clone(GatedExperts()).expert is None


def test_changed_parameters_of_the_classifier_wait_for_the_next_fit() -> None:
    X, y = digits(low=True)
    model = GatedExperts(expert=GaussianNB(), class_capacity=10, memory_rows=0, epochs=1).fit(X[:320], y[:320])
    twin = deepcopy(model).set_params(expert__var_smoothing=10.0)
    for each in (model, twin):
        each.partial_fit(1 - X[:320], y[:320] + 5)
    assert model.n_experts_ > 1
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"expert": LogisticRegression()}, "expert: got LogisticRegression without partial_fit, expected a classifier"),
        ({"expert": SGDClassifier(loss="hinge")}, "expert: got SGDClassifier without predict_proba"),
        ({"expert": GaussianNB}, "expert: got the class GaussianNB, expected an unfitted instance"),
        ({"expert": "tree"}, "expert: got str without partial_fit"),
        ({"expert": GaussianNB(), "joint": True}, "joint: got True with expert=…, expected joint=False"),
        ({"expert": SGDClassifier(loss="log_loss", class_weight="balanced")}, "expert: ValueError: .*balanced"),
        ({"expert": GaussianNB(var_smoothing=-1)}, "expert: InvalidParameterError"),
        ({"expert": MultinomialNB()}, "expert: ValueError: Negative values .*MultinomialNB"),
    ],
)
def test_a_bad_expert_is_named_and_the_old_model_stays(parameters: dict[str, Any], message: str) -> None:
    X, y = digits(low=True)
    model = GatedExperts(epochs=1, expert=GaussianNB()).fit(X[:100], y[:100])
    before = model.predict_proba(X)
    good = {name: model.get_params()[name] for name in parameters}
    model.set_params(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    model.set_params(**good)
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_the_same_seed_gives_the_same_model_and_no_global_random_numbers_are_drawn() -> None:
    X, y = digits(low=True)
    found = []
    for noise in (1, 2):
        np.random.seed(noise)  # noqa: NPY002
        model = GatedExperts(expert=SGDClassifier(loss="log_loss"), class_capacity=5, epochs=1).fit(X[:200], y[:200])
        found.append(model.predict_proba(X))
        state = np.random.get_state()[1]  # noqa: NPY002
        np.random.seed(noise)  # noqa: NPY002
        np.testing.assert_array_equal(state, np.random.get_state()[1])  # noqa: NPY002
    np.testing.assert_array_equal(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "expert", [SGDClassifier(loss="log_loss", average=True), GaussianNB()], ids=lambda expert: type(expert).__name__
)
@pytest.mark.parametrize("rows", [40, 250])
def test_a_saved_model_goes_on_as_if_nothing_had_happened(expert: Any, rows: int, tmp_path: Path) -> None:
    low, high = digits(low=True), digits(low=False)
    model = GatedExperts(expert=expert, class_capacity=10)
    for X, y in (low, low, high):
        model.partial_fit(X[:rows], y[:rows])
    model.save(tmp_path / "model")
    with pytest.raises(ValueError, match="expert: got nothing, expected the classifier of the model"):
        GatedExperts.load(tmp_path / "model")
    twin = GatedExperts.load(tmp_path / "model", expert=clone(expert))
    np.testing.assert_array_equal(model.predict_proba(high[0]), twin.predict_proba(high[0]))
    for each in (model, twin):
        each.partial_fit(*high).flush()
    np.testing.assert_array_equal(model.predict_proba(low[0]), twin.predict_proba(low[0]))
    assert repr(model.experts_) == repr(twin.experts_)
    with pytest.raises(ValueError, match="expert's state"):
        GatedExperts.load(tmp_path / "model", expert=MultinomialNB())


def test_a_classifier_whose_state_is_not_arrays_is_not_saved(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts(expert=MLPClassifier()).partial_fit(X[:100], y[:100])
    with pytest.raises(ValueError, match="expert: got MLPClassifier, whose state is not arrays"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    copy = pickle.loads(pickle.dumps(model))
    for each in (model, copy):
        each.partial_fit(X[100:200], y[100:200])
    np.testing.assert_array_equal(model.predict_proba(X), copy.predict_proba(X))


class Breaking(GaussianNB):  # type: ignore[misc]
    """A classifier whose probabilities are NaN once."""

    breaks = True

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        super().partial_fit(X, y, classes=classes)
        if self.class_count_.sum() > 200 and Breaking.breaks:
            Breaking.breaks = False
            self.theta_[:] = np.nan
        return self


def test_a_classifier_that_breaks_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Breaking, "breaks", True)
    X, y = digits(low=True)
    model = GatedExperts(expert=Breaking(), memory_rows=0).partial_fit(X, y).flush()
    assert sum(isinstance(event, ExpertRolledBack) for event in model.events_) == 1
    assert model.score(X, y) > 0.8
