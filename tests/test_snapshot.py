"""A learner that is taken apart and put together again goes on as if nothing had happened."""

from __future__ import annotations

import json

import pytest
import torch

from hge.core.config import LearnerConfig
from hge.core.events import Event
from hge.core.randomness import Keys
from hge.experts.pool import PoolSpec
from hge.learning.learner import Learner
from hge.learning.state import Snapshot, restore, take
from test_stacked import CLASSES, MLP, POOLS, SETTINGS, VAE, stream

BATCHES = list(stream("0102", 30))
MOMENTS = (1, 17, 33, 36, 45, 61, 64, 100)
"""In the middle of a task, with batches set aside (32 to 35, 61 …), on probation (36), at an end."""


def learner_of(config: LearnerConfig, pool: str, spec: PoolSpec) -> tuple[Learner, list[Event]]:
    events: list[Event] = []
    keys = Keys(seed=1)
    return Learner(config, POOLS[pool](spec, keys, torch.device("cpu")), keys, events.append), events


def through_json(snapshot: Snapshot) -> Snapshot:
    return Snapshot(json.loads(json.dumps(snapshot.facts)), snapshot.tensors, snapshot.experts)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", SETTINGS)
def test_the_rest_is_as_if_nothing_had_happened(name: str, pool: str) -> None:
    whole, expected = learner_of(SETTINGS[name], pool, MLP)
    steps = list(whole.learn_all(BATCHES))
    seen = 0
    for moment in MOMENTS:
        first, before = learner_of(SETTINGS[name], pool, MLP)
        list(first.learn_all(BATCHES[:moment]))
        second, after = learner_of(SETTINGS[name], pool, MLP)
        restore(second, through_json(take(first)))
        assert repr(list(second.learn_all(BATCHES[moment:]))) == repr(steps[moment:])
        assert repr(before + after) == repr(expected)
        for expert in range(len(whole.experts)):
            states = [learner.pool.state(expert) for learner in (whole, second)]
            assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
        assert take(second).facts == take(whole).facts
        seen += any(entry.high_loss for entry in first.recent)
    assert seen >= 2, "some moments must fall where batches are set aside"


@pytest.mark.parametrize("spec", [VAE, CLASSES], ids=["autoencoder", "class-sketch"])
def test_other_scores_go_on_alike(spec: PoolSpec) -> None:
    config = SETTINGS["sticky"]
    whole, _ = learner_of(config, "stacked", spec)
    steps = list(whole.learn_all(BATCHES))
    first, _ = learner_of(config, "stacked", spec)
    list(first.learn_all(BATCHES[:50]))
    second, _ = learner_of(config, "stacked", spec)
    restore(second, through_json(take(first)))
    assert repr(list(second.learn_all(BATCHES[50:]))) == repr(steps[50:])


def test_a_snapshot_stays_as_it_was_taken() -> None:
    learner, _ = learner_of(SETTINGS["tree"], "eager", MLP)
    taken, as_taken = [], []
    for batch in BATCHES:
        learner.learn(batch)
        taken.append(take(learner).facts)
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
            take(watched)
    assert repr(taken) == repr(steps)
