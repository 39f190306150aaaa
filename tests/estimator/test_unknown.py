from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

from hge import GatedExperts

X, Y = load_digits(return_X_y=True)
HELD_OUT = np.arange(len(Y)) % 3 == 0


def learned(labels: Any = Y, **parameters: Any) -> GatedExperts:
    """A model of the digits 0 to 7, in two tasks."""
    model = GatedExperts(**parameters)
    for part in (Y < 4, (Y >= 4) & (Y < 8)):
        model.partial_fit(X[part & ~HELD_OUT], labels[part & ~HELD_OUT])
    return model.flush()


@pytest.fixture(scope="module")
def model() -> GatedExperts:
    return learned()


def test_rows_of_classes_that_never_came_are_found(model: GatedExperts) -> None:
    judged = HELD_OUT | (Y >= 8)
    assert roc_auc_score(Y[judged] >= 8, model.predict_unknown(X[judged])) > 0.95


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_as_many_known_rows_are_rejected_as_stated(model: GatedExperts, rate: float) -> None:
    alarms = model.is_unknown(X[HELD_OUT & (Y < 8)], false_alarms=rate).mean()
    assert rate / 2 < alarms < 1.6 * rate


def test_the_others_get_their_usual_label(model: GatedExperts) -> None:
    labels, unknown = model.predict_or_reject(X, false_alarms=0.1), model.is_unknown(X, false_alarms=0.1)
    np.testing.assert_array_equal(labels, np.where(unknown, -1, model.predict(X)))
    assert labels.dtype.kind == "i"
    assert np.isnan(model.predict_or_reject(X[unknown], 0.1, unknown=np.nan)).all()


def test_labels_that_are_texts_can_be_rejected() -> None:
    names = np.array(["no", "ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr"])
    for labels in (names[Y], names.astype(object)[Y]):
        model = learned(labels)
        assert set(model.predict_or_reject(X[Y >= 8])) - {*names} == {"unknown"}
        assert "something else" in model.predict_or_reject(X[Y >= 8], unknown="something else")
        with pytest.raises(ValueError, match="unknown: got -1, expected a text, as the labels are"):
            model.predict_or_reject(X, unknown=-1)
        with pytest.raises(ValueError, match="unknown: got 'cd', which is a label"):
            model.predict_or_reject(X, unknown="cd")


def test_a_mark_that_is_a_label_is_refused(model: GatedExperts) -> None:
    with pytest.raises(ValueError, match="unknown: got 3, which is a label; expected another value"):
        model.predict_or_reject(X, unknown=3)
    for mark in ("none", [1, 2]):
        with pytest.raises(ValueError, match=r"unknown: got .* expected a number, as the labels are"):
            model.predict_or_reject(X, unknown=mark)
    signs = GatedExperts().fit(X[:200], np.where(Y[:200] < 5, -1, 1))
    with pytest.raises(ValueError, match="unknown: got -1, which is a label"):
        signs.predict_or_reject(X)


@pytest.mark.parametrize("share", ["a", None, True, 0, 1, np.nan, [0.1]])
def test_the_share_of_false_alarms_is_a_number_between_0_and_1(model: GatedExperts, share: Any) -> None:
    for method in (model.is_unknown, model.predict_or_reject):
        with pytest.raises(ValueError, match=r"false_alarms: got .*, expected a number above 0 and below 1"):
            method(X, false_alarms=share)


def test_what_is_learned_later_is_no_longer_unknown() -> None:
    model, new = learned(), Y >= 8
    before = model.is_unknown(X[new & HELD_OUT]).mean()
    model.partial_fit(X[new & ~HELD_OUT], Y[new & ~HELD_OUT]).flush()
    assert model.is_unknown(X[new & HELD_OUT]).mean() < 0.2 < 0.7 < before


def test_a_loaded_model_rejects_the_same_rows(model: GatedExperts, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    loaded = GatedExperts.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_unknown(X), model.predict_unknown(X))
    np.testing.assert_array_equal(loaded.predict_or_reject(X), model.predict_or_reject(X))


@pytest.mark.slow
def test_experts_that_are_classifiers_can_reject_rows_too() -> None:
    model = learned(expert=SGDClassifier(loss="log_loss"))
    judged = HELD_OUT | (Y >= 8)
    assert roc_auc_score(Y[judged] >= 8, model.predict_unknown(X[judged])) > 0.95
