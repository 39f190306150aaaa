"""A learner that is taken apart and put together again goes on as if nothing had happened."""

from __future__ import annotations

import json

import pytest
import torch

from helpers.small_learners import BATCHES, CLASSES, MLP, POOLS, SETTINGS, VAE, learner_of, through_json
from hge.experts.pool_spec import PoolSpec
from hge.learning.routing import Answerer
from hge.learning.state import restore, take_snapshot

MOMENTS = {"eager": (1, 17, 33, 36, 45), "stacked": (17, 33, 61, 64, 100)}
"""In the middle of a task, with batches set aside (32 to 35, 61 …), on probation (36), at an end; some for each pool,
since what is saved besides the experts is the learner's, whatever the pool."""


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_rest_is_as_if_nothing_had_happened(name: str, pool: str) -> None:
    whole, expected = learner_of(SETTINGS[name], pool, MLP)
    steps = list(whole.learn_all(BATCHES))
    first, before = learner_of(SETTINGS[name], pool, MLP)
    seen = 0
    for moment in MOMENTS[pool]:
        list(first.learn_all(BATCHES[first.steps : moment]))
        second, after = learner_of(SETTINGS[name], pool, MLP)
        restore(second, through_json(take_snapshot(first)))
        assert repr(list(second.learn_all(BATCHES[moment:]))) == repr(steps[moment:])
        assert repr(before + after) == repr(expected)
        for expert in range(len(whole.experts)):
            states = [learner.pool.state(expert) for learner in (whole, second)]
            assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
        assert take_snapshot(second).facts == take_snapshot(whole).facts
        seen += any(entry.high_loss for entry in first.recent)
    assert seen >= 2, "some moments must fall where batches are set aside"


@pytest.mark.slow
@pytest.mark.parametrize("spec", [VAE, CLASSES], ids=["autoencoder", "class-sketch"])
def test_other_scores_go_on_alike(spec: PoolSpec) -> None:
    config = SETTINGS["sticky"]
    whole, _ = learner_of(config, "stacked", spec)
    steps = list(whole.learn_all(BATCHES))
    first, _ = learner_of(config, "stacked", spec)
    list(first.learn_all(BATCHES[:50]))
    second, _ = learner_of(config, "stacked", spec)
    restore(second, through_json(take_snapshot(first)))
    assert repr(list(second.learn_all(BATCHES[50:]))) == repr(steps[50:])


def test_a_snapshot_stays_as_it_was_taken() -> None:
    learner, _ = learner_of(SETTINGS["tree"], "eager", MLP)
    taken, as_taken = [], []
    for batch in BATCHES:
        learner.learn(batch)
        taken.append(take_snapshot(learner).facts)
        as_taken.append(json.dumps(taken[-1]))
    assert [json.dumps(facts) for facts in taken] == as_taken


def test_taking_a_snapshot_changes_nothing() -> None:
    config = SETTINGS["tree"]
    plain, _ = learner_of(config, "stacked", MLP)
    watched, _ = learner_of(config, "stacked", MLP)
    steps = list(plain.learn_all(BATCHES))
    taken = []
    for number, batch in enumerate(BATCHES):
        taken += list(watched.learn_all([batch]))
        if number % 7 == 0:
            take_snapshot(watched)
    assert repr(taken) == repr(steps)


def test_a_restored_learner_answers_by_the_joint_score_that_was_fitted() -> None:
    first, _ = learner_of(SETTINGS["joint"], "eager", MLP)
    for batch in BATCHES[:45]:
        first.learn(batch)
    first.end_stream()
    second, _ = learner_of(SETTINGS["joint"], "eager", MLP)
    restore(second, through_json(take_snapshot(first)))
    routes = [Answerer(learner).route(BATCHES[3].x, "sample") for learner in (first, second)]
    assert len(first.experts) > 1
    assert (routes[0].scores == routes[1].scores).all()
