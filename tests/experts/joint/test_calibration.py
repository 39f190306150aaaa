from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from hge import GatedExperts
from hge.core.randomness import Keys
from hge.core.types import Batch, as_float
from hge.experiments.build import build_pool, build_scenario
from hge.experiments.recipes import build_config
from hge.experts.joint.calibration import GROWTH, Calibration, FitBudget
from hge.experts.joint.model import JointScore, fit_joint
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert, Replay, ReplayBatch
from hge.gating.promotion import Probation
from hge.gating.switch_detection import LossStats
from hge.learning.learner import Learner
from hge.learning.routing import Answerer


def rows() -> tuple[np.ndarray, np.ndarray]:
    data = load_digits()
    return data.data / 16, data.target


@pytest.fixture(scope="module")
def model() -> GatedExperts:
    """Two experts: 0 to 4 and 5 to 7. The digits 8 and 9 never came."""
    X, y = rows()
    low, high = y < 5, (y >= 5) & (y < 8)
    model = GatedExperts(joint=True, gate_score="class-sketch", epochs=12).fit(X[low], y[low])
    for _ in range(12):
        model.partial_fit(X[high], y[high])
    return model.flush()


@pytest.mark.slow
def test_the_joint_routes_and_its_confidence_is_a_probability(model: GatedExperts) -> None:
    X, y = rows()
    X, y = X[y < 8], y[y < 8]
    expert, confidence = model.predict_expert(X)
    right = expert == (y >= 5)
    assert model.n_experts_ == 2
    assert right.mean() > 0.97
    assert ((confidence > 0.4) & (confidence <= 1)).all()
    assert abs(confidence.mean() - right.mean()) < 0.05


@pytest.mark.slow
def test_mixture_sums_to_one_and_answers_as_well(model: GatedExperts) -> None:
    X, y = rows()
    X, y = X[y < 8], y[y < 8]
    alone = model.score(X, y)
    try:
        model.mixture = True
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
        assert model.score(X, y) > alone - 0.01
    finally:
        model.mixture = False


@pytest.mark.slow
def test_who_does_not_answer_has_no_part_in_a_mixture(model: GatedExperts) -> None:
    X, y = rows()
    learner = model.learner_
    answerer, x = Answerer(learner), torch.from_numpy(X[y < 2]).float()
    right = np.isin(answerer.mixture(x, 10).argmax(axis=1), [0, 1])
    assert right.mean() > 0.98
    x = x[torch.from_numpy(right)]
    usual, own = answerer.mixture(x, 10), answerer.route(x, "sample").expert
    probations, config = learner.organisation.probations, learner.config
    try:
        learner.organisation.probations = {int(expert): Probation(1) for expert in np.unique(own)}
        np.testing.assert_array_equal(answerer.mixture(x, 10), usual)
        learner.config = replace(config, newcomers_answer=False)
        assert not np.isin(answerer.mixture(x, 10).argmax(axis=1), [0, 1]).any()
        assert not np.isin(answerer.route(x, "sample").expert, own).any()
    finally:
        learner.organisation.probations, learner.config = probations, config


@pytest.mark.slow
def test_rows_that_were_never_learned_are_unknown(model: GatedExperts) -> None:
    X, y = rows()
    stranger = model.predict_unknown(X)
    assert roc_auc_score(y >= 8, stranger) > 0.8
    assert model.predict_unknown(np.random.default_rng(0).random((20, 64))).min() > np.median(stranger)


@pytest.mark.slow
def test_window_keeps_to_the_expert_of_the_rows_before(model: GatedExperts) -> None:
    X, y = rows()
    low, high = X[y < 5][:200], X[(y >= 5) & (y < 8)][:200]
    truth = np.repeat([0, 1, 0], [200, 200, 100])
    stream = np.concatenate([low, high, low[:100]])
    by_row = (model.predict_expert(stream)[0] == truth).mean()
    try:
        model.routing = "window"
        by_window = (model.predict_expert(stream)[0] == truth).mean()
    finally:
        model.routing = "sample"
    assert by_window >= min(by_row, 0.99)  # where a task begins, a row or two may be late
    assert by_window > 0.985


@pytest.mark.slow
def test_answering_fits_nothing(model: GatedExperts, monkeypatch: pytest.MonkeyPatch) -> None:
    calibration = model.learner_.calibration
    assert calibration is not None
    before = calibration.joint
    monkeypatch.setattr(calibration, "fit", lambda *_: pytest.fail("it looked at the replay"))
    model.predict(rows()[0][:50])
    assert calibration.joint is before


@pytest.mark.slow
def test_a_pickled_model_answers_the_same(model: GatedExperts) -> None:
    X = rows()[0][:50]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), model.predict_proba(X))


@pytest.mark.slow
def test_a_row_alone_gets_the_same_answer(model: GatedExperts) -> None:
    X = rows()[0][:20]
    together = model.predict_proba(X)
    np.testing.assert_allclose(model.predict_proba(X[3:4])[0], together[3], atol=1e-5)


@pytest.mark.slow
def test_it_is_fitted_as_experts_grow_and_only_what_changed_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(build_config("split-digits"), device="cpu", epochs=16)
    keys = Keys(0)
    scenario = build_scenario(config, keys, None)
    learner = Learner(replace(config.learner, joint=True), build_pool(config, scenario, keys), keys, lambda event: None)
    calibration = learner.calibration
    assert calibration is not None
    trained: list[list[int]] = []  # of each expert, at each fit
    joint = None
    for step, (_, batch) in enumerate(scenario.stream(config.batch_size, config.epochs, keys)):
        learner.learn(batch)
        if calibration.joint is not joint:
            joint = calibration.joint
            trained.append([expert.batches_trained for expert in learner.experts])
        if step == 280:
            break
    assert [batches for batches, *others in trained if not others] == [1, 4, 16, 64], "one expert: four times as many"
    (_, at_creation), *later = [batches for batches in trained if len(batches) == 2]
    assert [batches for _, batches in later] == [GROWTH * at_creation], "the newest expert decides, not all together"
    assert learner.experts[1].batches_trained < GROWTH * later[-1][1]
    calibration.fit()
    monkeypatch.setattr(learner.pool, "evidence", lambda *_: pytest.fail("nobody was trained since"))
    calibration.fit()


def test_without_a_joint_there_is_no_mixture_and_without_a_memory_either_no_novelty() -> None:
    X, y = rows()
    with pytest.raises(ValueError, match="mixture: got True, expected joint=True"):
        GatedExperts(mixture=True).fit(X[:64], y[:64])
    plain = GatedExperts(epochs=1, memory_rows=0).fit(X[:64], y[:64])
    with pytest.raises(ValueError, match=r"unknown: got neither .* expected memory_rows above 0 or joint=True"):
        plain.predict_unknown(X[:4])
    with pytest.raises(ValueError, match="mixture"):
        Answerer(plain.learner_).mixture(torch.from_numpy(X[:4]).float(), 2)


def four_experts() -> tuple[ExpertPool, list[Expert]]:
    """Experts of two digits each, which came in turn; each remembers three batches of 32."""
    config = replace(build_config("split-digits"), device="cpu")
    keys = Keys(0)
    scenario = build_scenario(config, keys, None)
    pool = build_pool(config, scenario, keys)
    experts = [Expert(k, LossStats(), Replay(3)) for k in range(4)]
    for expert, task in zip(experts, scenario.tasks, strict=False):
        pool.create(expert.id)
        batch = task.train.whole()
        first, second = (torch.nonzero(batch.y == label)[:48, 0] for label in batch.y.unique())
        in_turn = torch.stack([first, second], dim=1).flatten()
        for step, places in enumerate(torch.split(in_turn, 32)):
            part = Batch(batch.x[places], batch.y[places])
            expert.losses.update(pool.train(expert.id, part, step))
            expert.replay.add(ReplayBatch(step, part), step)
    return pool, experts


def test_many_experts_cost_no_more_rows_and_no_more_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.experts.joint.calibration.FULL", FitBudget(rows=100, iterations=5))
    monkeypatch.setattr("hge.experts.joint.calibration.MAX_FEATURES_TOTAL", 20)
    pool, experts = four_experts()
    calibration = Calibration(pool, experts[:1])
    calibration.fit(FitBudget(rows=100, iterations=5))
    assert len(calibration.columns[0, 0][1]) == 96
    calibration.experts = experts
    calibration.fit(FitBudget(rows=100, iterations=5))
    assert [len(columns) for _, columns in calibration.columns.values()] == [24] * 16  # 384 rows, one in four
    assert calibration.joint is not None
    assert [scaler.feature_basis.shape[1] for scaler in calibration.joint.scalers] == [5] * 4


def test_what_was_read_is_kept_only_as_far_as_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.experts.joint.calibration.MAX_FEATURES_TOTAL", 40)
    pool, experts = four_experts()
    calibration, at_once = Calibration(pool, experts[:2]), Calibration(pool, experts)
    calibration.fit()
    calibration.experts = experts
    for each in (calibration, at_once):
        each.fit()
        assert each.joint is not None
        assert sum(columns.shape[1] for _, columns in each.columns.values()) == 4 * len(each.joint.mean)
        assert all(columns.base is None for _, columns in each.columns.values()), "a view would keep all of it"
    np.testing.assert_array_equal(calibration.joint.weights, at_once.joint.weights)  # type: ignore[union-attr]


def test_only_what_changed_is_read_again_and_rows_once_for_all_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, experts = four_experts()
    calibration, read = Calibration(pool, experts), []
    calibration.fit()
    evidence = pool.evidence

    def spy(ids: Any, x: torch.Tensor) -> Any:
        read.append((list(ids), len(x)))
        return evidence(ids, x)

    batch = experts[1].replay.kept[0].batch
    experts[1].losses.update(pool.train(1, batch, 100))
    monkeypatch.setattr(pool, "evidence", spy)
    calibration.fit()
    own, others, of_all = ([1], 96), [([1], 96)] * 3, ([0, 1, 2, 3], 96)
    assert sorted(read) == sorted([own, *others, of_all])


def test_images_in_bytes_and_in_numbers_beside_each_other_mean_the_same() -> None:
    pool, experts = four_experts()
    for expert in experts:
        expert.replay.kept = [
            ReplayBatch(kept.step, Batch((255 * kept.batch.x).byte(), kept.batch.y)) for kept in expert.replay.kept
        ]
    in_bytes, in_both = Calibration(pool, experts), Calibration(pool, experts)
    in_bytes.fit(FitBudget(rows=400, iterations=5))
    for expert in experts:
        first = expert.replay.kept[0]
        expert.replay.kept[0] = ReplayBatch(first.step, Batch(as_float(first.batch.x), first.batch.y))
    in_both.fit(FitBudget(rows=400, iterations=5))
    assert in_bytes.joint is not None
    assert in_both.joint is not None
    np.testing.assert_array_equal(in_both.joint.weights, in_bytes.joint.weights)


def test_a_loaded_model_compares_with_the_same_rows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With many rows in the replay only some of them are used, and the loaded model must use the same ones."""
    monkeypatch.setattr("hge.experts.joint.calibration.FULL", FitBudget(rows=150, iterations=20))
    X, y = rows()
    model = GatedExperts(joint=True)
    for part in (y < 5, y >= 5):
        model.partial_fit(X[part], y[part])
    model.flush().save(tmp_path / "model")
    loaded = GatedExperts.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict_proba(X[:200]), model.predict_proba(X[:200]))


def test_of_labels_that_come_in_turn_none_is_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.experts.joint.calibration.FULL", FitBudget(rows=200, iterations=5))
    fits: list[np.ndarray] = []

    def fit(*arguments: Any) -> JointScore:
        fits.append(arguments[3])
        return fit_joint(*arguments)

    monkeypatch.setattr("hge.experts.joint.calibration.fit_joint", fit)
    calibration = Calibration(*four_experts())
    # half of each expert's rows are evaluated, and half of those fitted
    calibration.fit(FitBudget(rows=96, iterations=5))
    assert calibration.joint is not None
    assert [len(scaler.classes) for scaler in calibration.joint.scalers] == [2] * 4
    labels, rows = np.unique(fits[0], return_counts=True)
    assert (len(labels), rows.sum()) == (8, 96)
    assert rows.min() > 6
