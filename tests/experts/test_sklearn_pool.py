from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPClassifier

from helpers import pool_checks
from helpers.pool_checks import CHECKS, MakePool, batch_for, trained_pool
from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.classifier_state import as_tensors, from_tensors
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.experts.sklearn_pool import FLOOR, ClassifierPool

SPEC = PoolSpec((6,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("sketch"), OptimiserConfig(), scaled=True)
ARRAYS = {
    "SGDClassifier": SGDClassifier(loss="log_loss"),
    "averaged SGDClassifier": SGDClassifier(loss="log_loss", average=True),
    "GaussianNB": GaussianNB(),
    "MultinomialNB": MultinomialNB(),
}
PROTOTYPES: dict[str, Any] = ARRAYS | {"MLPClassifier": MLPClassifier((8,), learning_rate_init=0.01)}
NEED_FEATURES = {"check_evidence_is_of_each_row_by_itself_and_changes_nothing"}
OF_NETWORKS = {
    "check_costs_are_those_of_the_scores",  # of three classes: fewer multiply-adds than a sketch
    "check_rehearsal_leaves_statistics_alone",  # those of averaged weights
}
NEED_ARRAYS = {
    "check_rehearsal_trains_the_network_alone",
    "check_state_makes_the_same_expert",
    "check_state_that_does_not_fit_is_refused",
}


def make_pool(name: str, **changes: Any) -> ClassifierPool:
    spec = replace(SPEC, scaled=name != "MultinomialNB")
    return ClassifierPool(replace(spec, **changes), Keys(seed=3), PROTOTYPES[name])


SLOW_TOO = ["SGDClassifier", *(pytest.param(name, marks=pytest.mark.slow) for name in [*PROTOTYPES][1:])]


@pytest.mark.parametrize("name", SLOW_TOO)
@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.__name__ not in NEED_FEATURES | OF_NETWORKS], ids=lambda check: check.__name__
)
def test_contract(check: Callable[[MakePool], None], name: str) -> None:
    if check.__name__ in NEED_ARRAYS and name not in ARRAYS:
        pytest.skip("its state is not arrays")
    check(lambda: make_pool(name))


@pytest.mark.slow
def test_images_and_autoencoders_work() -> None:
    score = ScoreConfig("autoencoder", kl_weight="elbo")
    for check in (pool_checks.check_state_makes_the_same_expert, pool_checks.check_scores_are_one_per_row):
        check(lambda: make_pool("GaussianNB", shape=(1, 3, 2), score=score, shortlisted=True))


class Fixed(BaseEstimator):  # type: ignore[misc]
    """A classifier whose probabilities are known."""

    def __init__(self, probabilities: tuple[float, ...] = (0.2, 0.3, 0.5)) -> None:
        self.probabilities = probabilities

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Fixed:
        if classes is not None:
            assert not hasattr(self, "classes_"), "classes are given once"
            self.classes_ = classes
        return self

    def predict_proba(self, X: Any) -> Any:
        assert list(self.classes_) == [0, 1, 2]
        return np.tile(np.array(self.probabilities), (len(X), 1))


def fixed(probabilities: tuple[float, ...], labels: list[int]) -> ClassifierPool:
    pool = ClassifierPool(SPEC, Keys(seed=3), Fixed(probabilities))
    pool.create(0)
    pool.train(0, Batch(torch.rand(len(labels), 6), torch.tensor(labels)), step=0)
    return pool


def test_loss_by_hand() -> None:
    pool, rows = fixed((0.2, 0.3, 0.5), labels=[0, 1]), torch.rand(3, 6)
    batch = Batch(rows, torch.tensor([0, 1, 2]))  # the last label is new: 0.2 and 0.3 are shares of 0.5
    expected = -(log(0.4) + log(0.6) + log(FLOOR)) / 3
    assert pool.loss(0, batch, step=1) == pytest.approx(expected)
    np.testing.assert_allclose(pool.logits(0, rows)[0], np.log([0.4, 0.6, FLOOR]), rtol=1e-5)
    assert pool.train(0, batch, step=1) == pytest.approx(expected)
    assert pool.loss(0, batch, step=2) == pytest.approx(-(log(0.2) + log(0.3) + log(0.5)) / 3)


def test_an_untrained_expert_says_nothing() -> None:
    pool = make_pool("GaussianNB")
    pool.create(0)
    assert pool.loss(0, batch_for(pool, seed=1), step=0) == pytest.approx(log(3))


@pytest.mark.parametrize(
    ("probabilities", "logits"),
    [
        ((float("nan"), 0.5, 0.5), [log(FLOOR), log(0.5), log(0.5)]),
        ((0.0, 0.0, 0.0), [log(1 / 3)] * 3),
        ((float("nan"),) * 3, [log(1 / 3)] * 3),
    ],
)
def test_odd_probabilities_do_no_harm(probabilities: tuple[float, ...], logits: list[float]) -> None:
    pool = fixed(probabilities, labels=[0, 1, 2])
    batch = batch_for(pool, seed=1)
    np.testing.assert_allclose(pool.logits(0, batch.x)[0], logits, rtol=1e-5)
    all_bad = bool(np.isnan(probabilities).all())
    assert np.isnan(pool.loss(0, batch, step=1)) == all_bad, "so that the learner rolls the expert back"


def test_every_expert_is_a_clone_with_a_seed_of_its_own() -> None:
    pool = trained_pool(lambda: make_pool("SGDClassifier"))
    assert isinstance(pool, ClassifierPool)
    one, other = (member.classifier for member in pool.members)
    assert one is not other
    assert not hasattr(pool.prototype, "coef_")
    assert len({pool.prototype.random_state, one.random_state, other.random_state}) == 3
    own = ClassifierPool(SPEC, Keys(seed=3), SGDClassifier(loss="log_loss", random_state=5))
    own.create(0)
    assert own.members[0].template.random_state == 5


def test_inputs_in_any_units_are_scaled() -> None:
    units = torch.tensor([1.0, 1e3, 1e-3, 1.0, 1e6, 1.0])
    losses = []
    for factor in (torch.ones(6), units):
        pool = make_pool("SGDClassifier")
        pool.create(0)
        batches = [batch_for(pool, seed) for seed in range(5)]
        losses.append([pool.train(0, Batch(batch.x * factor, batch.y), step=0) for batch in batches])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)


def test_rehearsal_leaves_the_score_and_the_scaling_alone() -> None:
    pool = trained_pool(lambda: make_pool("SGDClassifier"))
    before = pool.state(0)
    pool.rehearse(0, batch_for(pool, seed=9, shift=5.0), step=9)
    changed = {name for name, tensor in pool.state(0).items() if not torch.equal(tensor, before[name])}
    assert changed == {f"classifier.{name}" for name in ("coef_", "intercept_", "t_")}


@pytest.mark.parametrize("name", PROTOTYPES)
def test_what_is_kept_in_memory_can_be_restored_also_after_a_copy(name: str) -> None:
    pool = trained_pool(lambda: make_pool(name))
    kept, before = pool.state(0, on_host=False), pool_checks.fingerprint(pool)
    for state in (kept, deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        pool.train(0, batch_for(pool, seed=9), step=9)
        assert not np.array_equal(pool_checks.fingerprint(pool)[0], before[0])
        pool.load_state(0, state)
        pool_checks.assert_same(before, pool_checks.fingerprint(pool))


@pytest.mark.parametrize("name", PROTOTYPES)
def test_an_expert_can_be_restored_to_its_untrained_state(name: str) -> None:
    pool = make_pool(name)
    pool.create(0)
    untrained, batch = pool.state(0, on_host=False), batch_for(pool, seed=1)
    first = pool.train(0, batch, step=0)
    pool.load_state(0, untrained)
    assert pool.train(0, batch, step=0) == first == pytest.approx(log(3))


def test_a_state_that_is_not_arrays_is_only_kept_in_memory() -> None:
    pool = trained_pool(lambda: make_pool("MLPClassifier"))
    with pytest.raises(ValueError, match="expert: got MLPClassifier, whose state is not arrays; keep the model with"):
        pool.state(0)
    lost = {name: torch.clone(tensor) for name, tensor in pool.state(0, on_host=False).items()}
    with pytest.raises(ValueError, match="got held without a classifier"):
        pool.load_state(0, lost)


def test_two_names_of_one_array_stay_so() -> None:
    template, own = (
        SGDClassifier(loss="log_loss", average=True).partial_fit([[x], [2.0]], [0, 1], classes=[0, 1, 2])
        for x in (0.0, 1.0)
    )
    assert own.coef_ is own._average_coef
    tensors = as_tensors(own, template)
    assert tensors is not None
    twin = from_tensors(tensors, template)
    assert twin.coef_ is twin._average_coef
    np.testing.assert_array_equal(twin.coef_, own.coef_)
    assert not np.array_equal(template.coef_, own.coef_)


class Refusing(GaussianNB):  # type: ignore[misc]
    """A classifier that refuses rows, as SGDClassifier does when its weights overflow."""

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Any:
        if np.abs(X).max() > 2.99:
            raise ValueError("too large")
        return super().partial_fit(X, y, classes=classes)


def test_rows_that_the_classifier_refuses_are_not_learned() -> None:
    pool = ClassifierPool(SPEC, Keys(seed=3), Refusing())
    pool.create(0)
    pool.train(0, batch_for(pool, seed=1), step=0)
    before, far = pool.state(0), batch_for(pool, seed=2)
    far.x[0] = 100.0
    assert np.isnan(pool.train(0, far, step=1))
    pool.rehearse(0, far, step=1)
    after = pool.state(0)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_evidence_is_refused() -> None:
    pool = trained_pool(lambda: make_pool("GaussianNB"))
    with pytest.raises(ValueError, match="joint: got True with expert"):
        pool.evidence([0], torch.zeros(1, 6))


def test_memory_counts_the_classifiers() -> None:
    pool = trained_pool(lambda: make_pool("GaussianNB"))
    assert 0 < pool.memory()["bytes_per_expert"] <= pool.memory()["device_bytes"]
