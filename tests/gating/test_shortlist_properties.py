"""Shortlists hold the best few, whatever the sketches; a joint score that asks those goes where it would anyway."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.datasets import load_digits

from helpers.small_learners import BATCHES, CLASSES, SETTINGS, SHORTLISTED, learner_of, through_json
from hge import GatedExperts
from hge.core.events import ShortlistSet
from hge.experts.pool_spec import PoolSpec
from hge.gating.shortlist import Shortlist, rank, shortest
from hge.gating.tree import FloatArray
from hge.learning.learner import Learner
from hge.learning.routing import Answerer
from hge.learning.state import restore, take_snapshot

tables = st.integers(2, 9).flatmap(
    lambda experts: st.integers(1, 6).flatmap(
        lambda groups: arrays(np.float64, (experts, groups), elements=st.floats(-100, 100), unique=True)
    )
)


def of_length(batch: int, row: int) -> Shortlist:
    return Shortlist(None, lambda event: None, batch=batch, row=row, batch_rows=32)  # type: ignore[arg-type]


@given(tables, st.integers(0, 9), st.integers(0, 9), st.sampled_from([1, 16, 17, 32]))
def test_the_best_are_chosen_or_all_if_that_saves_little(table: FloatArray, batch: int, row: int, rows: int) -> None:
    chosen = of_length(batch, row).choose(table, rows)
    length = batch if rows > 16 else row
    expected = length if 0 < length <= len(table) // 2 else len(table)
    assert chosen.shape == table.shape
    assert (chosen.sum(axis=0) == expected).all()
    for asked, sketches in zip(chosen.T, table.T, strict=True):
        assert asked.all() or sketches[asked].max() < sketches[~asked].min()


@given(tables, st.data())
def test_the_shortest_length_brings_the_wanted_share_to_its_own(table: FloatArray, data: st.DataObject) -> None:
    owner = data.draw(st.integers(0, len(table) - 1))
    ranks = rank(table, owner)
    order = table.argsort(axis=0)
    assert ranks.tolist() == [int(np.flatnonzero(column == owner)[0]) for column in order.T]
    share = data.draw(st.floats(0.01, 1))
    length = shortest(ranks, share)
    assert (ranks < length).mean() >= share
    assert length == 1 or (ranks < length - 1).mean() < share


@settings(max_examples=50)
@given(st.integers(2, 20), st.integers(1, 10_000), st.integers(0, 10_000))
def test_nothing_is_due_while_it_is_quiet(experts: int, at_fit: int, since: int) -> None:
    shortlist = of_length(1, 1)
    shortlist.experts_at_fit, shortlist.trained_at_fit = experts, at_fit
    quiet = shortlist.batches_until_due(experts, at_fit + since)
    assert quiet >= 0
    if quiet:
        assert not shortlist.due(experts, at_fit + since + quiet + 1)  # an outlier's training may come with the last
    assert shortlist.due(experts + 1, at_fit)
    assert not of_length(0, 0).due(1, at_fit)


@pytest.mark.slow
def test_with_sketches_and_no_joint_a_tree_is_the_flat_gate() -> None:
    flat, tree = (learner_of(SETTINGS[name], "stacked", CLASSES) for name in ("sticky", "tree"))
    steps = [repr(list(learner.learn_all(BATCHES[:70]))) for learner, _ in (flat, tree)]
    assert len(flat[0].experts) > 1
    assert steps[0] == steps[1]
    assert repr(flat[1]) == repr(tree[1])
    assert tree[0].shortlist is None
    assert flat[0].evaluations == tree[0].evaluations


def lengths(learner: Learner) -> list[int]:
    assert learner.shortlist is not None
    names = ("batch", "row", "batch_rows", "experts_at_fit", "trained_at_fit")
    return [getattr(learner.shortlist, name) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "joint", "pool"),
    [(SHORTLISTED, False, "eager"), (SHORTLISTED, False, "stacked"), (CLASSES, True, "stacked")],
    ids=["autoencoder, eager", "autoencoder, stacked", "joint"],
)
def test_a_restored_learner_keeps_its_lengths_and_goes_on_alike(spec: PoolSpec, joint: bool, pool: str) -> None:
    config = replace(SETTINGS["tree"], joint=joint)
    whole, expected = learner_of(config, pool, spec)
    steps = list(whole.learn_all(BATCHES))
    assert any(isinstance(event, ShortlistSet) for event in expected)
    for moment in (40, 90):
        first, before = learner_of(config, pool, spec)
        list(first.learn_all(BATCHES[:moment]))
        second, after = learner_of(config, pool, spec)
        restore(second, through_json(take_snapshot(first)))
        assert lengths(second) == lengths(first)
        assert lengths(second)[0] >= 1
        assert repr(list(second.learn_all(BATCHES[moment:]))) == repr(steps[moment:])
        assert repr(before + after) == repr(expected)
        assert lengths(second) == lengths(whole)


@pytest.fixture(scope="module")
def joint_models() -> dict[str, GatedExperts]:
    """Learned two digits after the other, twice the same experts."""
    X, y = load_digits(return_X_y=True)
    made = {}
    for organisation in ("flat", "tree"):
        model = GatedExperts(joint=True, gate_score="class-sketch", organisation=organisation)
        for low in range(0, 10, 2):
            own = np.flatnonzero((y // 2 == low // 2) & (np.arange(len(y)) % 3 > 0))
            rows = np.tile(own, 3)
            model.partial_fit(X[rows] / 16, y[rows], classes=np.arange(10))
        made[organisation] = model.flush()
    return made


@pytest.mark.slow
def test_a_joint_score_routes_batches_as_it_would_by_all_evidence(joint_models: dict[str, GatedExperts]) -> None:
    X, y = load_digits(return_X_y=True)
    flat, tree = (Answerer(joint_models[name].learner_) for name in ("flat", "tree"))
    fresh = [np.flatnonzero((y // 2 == task) & (np.arange(len(y)) % 3 == 0)) for task in range(5)]
    batches = [torch.from_numpy(X[rows] / 16).float() for own in fresh for rows in np.split(own[:96], 6)]
    assert len(batches) == 30
    routes = [[answerer.route(batch, "batch") for batch in batches] for answerer in (flat, tree)]
    chosen = [[int(route.expert[0]) for route in found] for found in routes]
    assert np.mean(np.array(chosen[0]) == np.array(chosen[1])) > 0.95
    assert {int(route.queried[0]) for route in routes[0]} == {5}
    assert np.mean([int(route.queried[0]) for route in routes[1]]) <= 2.5
    for route in routes[1]:
        logs = -route.scores[np.isfinite(route.scores[:, 0]), 0]
        assert np.isfinite(logs).all()


@pytest.mark.slow
def test_a_joint_scores_probabilities_sum_to_one(joint_models: dict[str, GatedExperts]) -> None:
    X, y = load_digits(return_X_y=True)
    tree = joint_models["tree"]
    calibration, shortlist = tree.learner_.calibration, tree.learner_.shortlist
    assert calibration is not None
    assert shortlist is not None
    x = torch.from_numpy(X[::3] / 16).float()
    asked = shortlist.choose(tree.learner_.pool.sketches(range(calibration.known), x, together=False), 1)
    logs = calibration.log_probabilities(x, asked)
    np.testing.assert_allclose(np.exp(logs).sum(axis=0), 1)
    assert (np.isneginf(logs) == ~asked).all()
    for model in joint_models.values():
        probabilities = model.predict_proba(X / 16)
        assert np.isfinite(probabilities).all()
        np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    right = [np.mean(model.predict(X[::3] / 16) == y[::3]) for model in joint_models.values()]
    assert right[1] >= right[0] - 0.01


@pytest.mark.slow
def test_a_joint_score_asks_the_shortlist_only(joint_models: dict[str, GatedExperts], tmp_path: Path) -> None:
    X, _ = load_digits(return_X_y=True)
    agree = np.mean(joint_models["flat"].predict(X / 16) == joint_models["tree"].predict(X / 16))
    assert agree > 0.97
    model = joint_models["tree"]
    saved = model.learner_.shortlist
    assert saved is not None
    assert saved.length(32, experts=5) <= 2
    model.save(tmp_path / "model")
    assert lengths(GatedExperts.load(tmp_path / "model").learner_) == lengths(model.learner_)
