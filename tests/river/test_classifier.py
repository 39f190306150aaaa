"""The classifier in river: its own checks, pipelines, evaluation, features that come and go."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("river", reason="hge[river] is not installed")
from river.checks import yield_checks

from helpers.digits import digits
from hge import GatedExperts
from hge.river import GatedExpertsClassifier
from river import compose, datasets, evaluate, metrics, preprocessing

CHECKS = list(yield_checks(GatedExpertsClassifier()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hge.HgeWarning")  # of rows that the checks make strange on purpose
@pytest.mark.parametrize("number", range(len(CHECKS)), ids=lambda number: CHECKS[number].__name__ + f"-{number}")
def test_checks_of_river(number: int) -> None:
    # anew for each, since the data sets of some are generators; shared ones would be used up
    fresh = list(yield_checks(GatedExpertsClassifier()))
    fresh[number](GatedExpertsClassifier())


def test_a_row_may_be_changed_after_it_was_given() -> None:
    one, other = GatedExpertsClassifier(), GatedExpertsClassifier()
    for number in range(40):
        row = {"a": float(number % 2), "b": 1.0}
        other.learn_one(dict(row), number % 2)
        one.learn_one(row, number % 2)
        row["a"] = 99.0
        row.pop("b")
    assert one.predict_proba_one({"a": 1.0, "b": 1.0}) == other.predict_proba_one({"a": 1.0, "b": 1.0})


@pytest.mark.slow
def test_in_a_pipeline_it_predicts_as_the_estimator_does() -> None:
    X, y = digits()
    model = preprocessing.StandardScaler() | GatedExpertsClassifier()
    for row, label in zip(X[:100], y[:100], strict=True):
        model.learn_one({f"pixel {i:02}": value for i, value in enumerate(row)}, int(label))
    assert isinstance(model, compose.Pipeline)
    assert model.predict_one({f"pixel {i:02}": value for i, value in enumerate(X[0])}) == y[0]


@pytest.mark.slow
def test_row_by_row_is_the_same_stream_as_in_one_call() -> None:
    X, y = digits(True)
    one, many = GatedExpertsClassifier(), GatedExperts()
    for row, label in zip(X[:200], y[:200], strict=True):
        one.learn_one(dict(enumerate(row)), int(label))
    order = [one._slots.columns[i] for i in range(64)]
    placed = np.empty_like(X[:200])
    placed[:, order] = X[:200]
    many.partial_fit(placed, y[:200])
    found = one.predict_proba_one(dict(enumerate(X[300])))
    row = np.empty((1, 64), np.float32)
    row[0, order] = X[300]
    np.testing.assert_allclose(list(found.values()), many.predict_proba(row)[0], rtol=1e-6)


@pytest.mark.slow
def test_progressive_evaluation_of_a_stream_in_raw_units() -> None:
    metric = metrics.Accuracy()
    evaluate.progressive_val_score(datasets.ImageSegments(), GatedExpertsClassifier(), metric)
    assert metric.get() > 0.8


def test_before_the_first_batch_it_knows_the_labels() -> None:
    model = GatedExpertsClassifier()
    assert model.predict_proba_one({"a": 1.0}) == {}
    assert model.predict_one({"a": 1.0}) is None
    for label in ("x", "x", "y"):
        model.learn_one({"a": 1.0}, label)
    assert model.predict_proba_one({"a": 1.0}) == {"x": 2 / 3, "y": 1 / 3}


def test_too_many_features_and_categories_are_errors_that_change_nothing() -> None:
    model = GatedExpertsClassifier(features=2)
    model.learn_one({"a": 1.0}, 0)
    with pytest.raises(ValueError, match="features: got more than 2 different ones"):
        model.learn_one({"b": 1.0, "c": 2.0}, 0)
    with pytest.raises(ValueError, match="b: got 'red', expected a number"):
        model.learn_one({"b": "red"}, 0)
    with pytest.raises(ValueError, match="y: got labels of type"):
        model.learn_one({"a": 100.0, "b": 5.0}, "text")
    assert model.estimator.rows_waiting_ == 1
    assert list(model._slots.columns) == ["a"]
    assert model._slots.rows([{}]).tolist() == [[1.0, 0.0]]


@pytest.mark.slow
def test_data_frames_are_rows() -> None:
    pandas: Any = pytest.importorskip("pandas", reason="pandas is not installed")
    X, y = digits(True)
    frame = pandas.DataFrame(X[:64]).astype(float)
    frame.iloc[3, 5] = math.nan
    many, one = GatedExpertsClassifier(), GatedExpertsClassifier()
    many.learn_many(frame, pandas.Series(y[:64]))
    for index, row in frame.iterrows():
        one.learn_one({name: value for name, value in row.items() if value == value}, int(y[index]))
    found = many.predict_proba_many(frame)
    assert list(found.columns) == sorted(set(y[:64].tolist()))
    np.testing.assert_allclose(found.iloc[9], list(one.predict_proba_one(frame.iloc[9].to_dict()).values()), rtol=1e-5)
