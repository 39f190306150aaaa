"""Classifiers in closed form: their scores against scikit-learn's, any order of the stream, and a run on digits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid

from helpers.small_methods import linear_setting
from hge.baselines import ncm, randumb, ranpac, slda
from hge.baselines.closed_form import RandomFeatures
from hge.baselines.rule import RuleLearner
from hge.core.types import Batch
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

RNG = np.random.default_rng(0)
Y = np.repeat([0, 1, 3], 30)
X = (RNG.normal(size=(90, 2)) @ [[2.0, 0.5], [0.0, 0.3]] + np.array([[0, 0], [1, 2], [9, 9], [-2, 1]])[Y]).astype("f4")
ORDER = RNG.permutation(90)


def learned(learner: RuleLearner, order: np.ndarray) -> RuleLearner:  # type: ignore[type-arg]
    for rows in np.array_split(order, 7):
        list(learner.learn_all([Batch(torch.from_numpy(X[rows]), torch.from_numpy(Y[rows]))]))
    return learner


def scores(learner: RuleLearner) -> np.ndarray:  # type: ignore[type-arg]
    return learner.rule.logits(torch.from_numpy(X)).numpy()


def test_ncm_is_the_nearest_centroid() -> None:
    predicted = scores(learned(ncm.build(linear_setting()), ORDER)).argmax(1)
    assert (predicted == NearestCentroid().fit(X, Y).predict(X)).all()


def test_slda_is_lda_with_a_shared_covariance() -> None:
    found = scores(learned(slda.build(linear_setting(shrinkage=0.3)), ORDER))
    assert (found[:, 2] == -np.inf).all(), "never seen"
    means = np.array([X[label == Y].mean(0) for label in (0, 1, 3)])
    within = X - means[np.searchsorted([0, 1, 3], Y)]
    covariance = within.T @ within / len(X)
    shrunk = 0.7 * covariance + 0.3 * np.trace(covariance) / 2 * np.eye(2)
    weights = means @ np.linalg.inv(shrunk)
    assert found[:, [0, 1, 3]] == pytest.approx(X @ weights.T - 0.5 * (weights * means).sum(1), abs=1e-3)
    nearly_none = scores(learned(slda.build(linear_setting(shrinkage=1e-9)), ORDER)).argmax(1)
    lda = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(X, Y)
    assert (nearly_none == lda.predict(X)).all()


def test_ranpac_is_ridge_regression_on_its_features() -> None:
    learner = learned(ranpac.build(linear_setting(features=20, shrinkage=0.1)), ORDER)
    features = learner.rule.features(torch.from_numpy(X)).numpy().astype("f8")  # type: ignore[attr-defined]
    penalty = 0.1 * np.mean(np.sum(features**2, axis=0))
    expected = Ridge(alpha=penalty, fit_intercept=False).fit(features, np.eye(4)[Y]).predict(features)
    assert scores(learner)[:, [0, 1, 3]] == pytest.approx(expected[:, [0, 1, 3]], abs=1e-6)


def test_random_fourier_features_approximate_a_gaussian_kernel() -> None:
    map_ = RandomFeatures(linear_setting(features=20_000), fourier=True)
    x = torch.from_numpy(X[:40])
    map_.see(x)
    kernel = 2 * (map_(x) @ map_(x).T / 20_000).numpy()
    distance = ((X[:40, None] - X[None, :40]) ** 2).sum(-1)
    assert kernel == pytest.approx(np.exp(-distance / (2 * float(x.var()))), abs=0.05)


@pytest.mark.parametrize("method", [ncm, slda, randumb, ranpac])
def test_the_order_of_the_stream_does_not_matter(method) -> None:  # type: ignore[no-untyped-def]
    first = ORDER[:13]  # it sets the scale of random features
    rest = ORDER[13:]
    one, other = (
        learned(learned(method.build(linear_setting(features=30)), first), order) for order in (rest, rest[::-1])
    )
    assert scores(one) == pytest.approx(scores(other), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("method", "at_least"), [("ncm", 85), ("slda", 90), ("randumb", 95), ("ranpac", 93)])
def test_digits_in_one_pass(method: str, at_least: float, tmp_path: Path) -> None:
    config = replace(build_config("split-digits", method), epochs=1)
    result = run(replace(config, baseline=replace(config.baseline, features=500)), tmp_path)
    assert result["accuracy_sample"] >= at_least
    assert result["rows_kept"] == 0
