"""An expert whose numbers are none any more goes back to its last good state; the learner goes on."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from helpers.digits import digits
from helpers.small_learners import CLASSES, MLP, POOLS, SETTINGS, VAE, discrete, learner_of, stream
from hge import GatedExperts
from hge.core.config import LearnerConfig
from hge.core.events import ExpertRolledBack
from hge.core.types import Batch
from hge.experts.pool_spec import PoolSpec
from hge.gating.switch_detection import RecentEntry
from hge.learning.learner import Learner
from hge.learning.rollback import ASKED
from hge.learning.state import restore, take_snapshot
from hge.learning.training import train_refused

BATCHES = list(stream("0102", 30))
BROKEN_AT = 21


def spoil(learner: Learner, name: str, expert: int, value: float = float("nan")) -> None:
    state = learner.pool.state(expert)
    key = next(key for key in state if key.startswith(name))
    state[key].view(-1)[0] = value
    learner.pool.load_state(expert, state)


def breaking(learner: Learner, name: str, start: int = 0) -> Iterator[Batch]:
    """The stream; before one of its batches, the expert in use breaks."""
    for step, batch in enumerate(BATCHES[start:], start):
        if step == BROKEN_AT:
            spoil(learner, name, learner.last_used)
        yield batch


def rolled_back(events: list[Any]) -> list[ExpertRolledBack]:
    return [event for event in events if isinstance(event, ExpertRolledBack)]


def finite(learner: Learner) -> bool:
    states = [learner.pool.state(expert.id) for expert in learner.experts]
    return all(bool(t.isfinite().all()) for state in states for t in state.values())


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("name", SETTINGS)
def test_broken_weights_are_rolled_back_at_the_next_batch(name: str, pool: str) -> None:
    results = []
    for in_runs in (True, False):
        learner, events = learner_of(SETTINGS[name], pool, MLP)
        batches = breaking(learner, "net.")
        steps = list(learner.learn_all(batches)) if in_runs else [learner.learn(b) for b in batches]
        assert [(e.step, e.expert) for e in rolled_back(events)] == [(BROKEN_AT, 0)]
        assert 0 < rolled_back(events)[0].batches <= BROKEN_AT
        assert finite(learner)
        assert np.isfinite([s.loss for s in steps if s.step % 30 != 0 and not s.set_aside]).all()
        results.append((repr(steps), repr(events)))
    assert results[0] == results[1], "a run of batches is the same as one by one"


def test_both_pools_roll_back_alike() -> None:
    told = []
    for pool in POOLS:
        learner, events = learner_of(SETTINGS["sticky"], pool, MLP)
        list(learner.learn_all(breaking(learner, "net.")))
        told.append(discrete(events))
    assert told[0] == told[1]


@pytest.mark.slow
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("spec", "name"), [(MLP, "score.moments"), (VAE, "score.net"), (CLASSES, "score.moments")])
def test_a_broken_score_is_found_when_the_next_copy_is_due(
    spec: PoolSpec, name: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hge.learning.rollback.KEEP_EVERY", 5)
    learner, events = learner_of(SETTINGS["sticky"], pool, spec)
    list(learner.learn_all(breaking(learner, name)))
    assert [e.expert for e in rolled_back(events)] == [0]
    assert BROKEN_AT <= rolled_back(events)[0].step <= BROKEN_AT + 6
    assert finite(learner)


@pytest.mark.parametrize("pool", POOLS)
def test_an_expert_that_is_left_in_pieces_is_mended_first(pool: str) -> None:
    """It broke with its last batch; nobody looks at it before another expert is trained."""
    learner, events = learner_of(LearnerConfig(recent_capacity=5, promotion_window=6, sticky=False), pool, MLP)
    list(learner.learn_all(BATCHES[:60]))
    assert learner.last_used == 1
    spoil(learner, "net.", 1)
    list(learner.learn_all(BATCHES[60:]))
    assert [e.expert for e in rolled_back(events)] == [1]
    assert finite(learner)


@pytest.mark.parametrize("pool", POOLS)
def test_a_bad_batch_is_not_blamed_on_the_expert(pool: str) -> None:
    learner, events = learner_of(SETTINGS["sticky"], pool, MLP)
    odd = Batch(BATCHES[0].x.clone(), BATCHES[0].y)
    odd.x[0] = float("nan")
    list(learner.learn_all([*BATCHES[:20], odd, *BATCHES[20:]]))
    assert not rolled_back(events)


def test_the_last_good_state_survives_a_resume() -> None:
    whole, expected = learner_of(SETTINGS["sticky"], "stacked", MLP)
    list(whole.learn_all(breaking(whole, "net.")))
    first, before = learner_of(SETTINGS["sticky"], "stacked", MLP)
    list(first.learn_all(BATCHES[: BROKEN_AT - 2]))
    second, after = learner_of(SETTINGS["sticky"], "stacked", MLP)
    restore(second, take_snapshot(first))
    list(second.learn_all(breaking(second, "net.", BROKEN_AT - 2)))
    assert repr(before + after) == repr(expected)
    assert all(
        torch.equal(a, b) for a, b in zip(whole.pool.state(0).values(), second.pool.state(0).values(), strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"lr": 1e6, "optimiser": "sgd"},
        {"lr": 1e12, "momentum": 0.0, "optimiser": "sgd"},
        {"lr": 1e12, "optimiser": "adam"},
    ],
)
def test_training_that_diverges_is_told_and_the_model_answers(parameters: dict[str, Any]) -> None:
    X, y = digits(low=True)
    model = GatedExperts(**parameters)
    for _ in range(3):
        model.partial_fit(X, y)
    assert rolled_back(model.events_)
    assert np.isfinite(model.predict_proba(X)).all()
    assert all(np.isfinite(e.loss) for e in model.experts_)


@pytest.mark.slow
@pytest.mark.parametrize("gate_score", ["sketch", "class-sketch", "autoencoder"])
@pytest.mark.filterwarnings("ignore")
def test_rows_at_the_limit_do_not_crash(gate_score: Any) -> None:
    X, y = (rows[:96] for rows in digits(low=True))
    model = GatedExperts(gate_score=gate_score, batch_size=8)
    for scale in (1.0, 1e15, -1e15, 1.0):
        for _ in range(2):
            model.partial_fit(X * np.float32(scale), y)
    assert np.isfinite(model.predict_proba(X)).all()


def test_an_expert_that_lost_what_it_remembers_goes_back_once() -> None:
    learner, events = learner_of(SETTINGS["sticky"], "eager", MLP)
    for batch in BATCHES[:20]:
        learner.learn(batch)
    guard, (expert,), pool = learner.guard, learner.experts, learner.pool
    assert guard.keep(expert, 20)
    losses = [pool.loss(0, old.batch, old.step) for old in expert.replay.kept[:ASKED]]
    assert guard.kept.replay_loss == median(losses)
    good = pool.state(0)
    pool.load_state(0, {name: -30 * tensor if name.startswith("net.") else tensor for name, tensor in good.items()})
    assert guard.roll_back_if_collapsed(expert, 20) is True
    assert [event.expert for event in rolled_back(events)] == [0]
    assert all(torch.equal(tensor, good[name]) for name, tensor in pool.state(0).items())
    assert guard.roll_back_if_collapsed(expert, 20) is False


def test_a_few_batches_of_replay_say_nothing_about_a_collapse() -> None:
    learner, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    for count, batch in enumerate(BATCHES[:ASKED], 1):
        learner.learn(batch)
        learner.guard.keep(learner.experts[0], count)
        assert isnan(learner.guard.kept.replay_loss) is (count < ASKED)


def test_a_batch_that_is_undone_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by the network nor by what answers beside it; an expert that had learned nothing has nothing again."""
    x, y = load_digits(return_X_y=True)
    model = GatedExperts().partial_fit(x[:640], y[:640])
    learner = model.learner_
    before = model.predict_proba(x[640:])
    monkeypatch.setattr(learner.guard, "_has_collapsed", lambda expert: True)
    entry = RecentEntry(learner.steps, Batch(torch.full((32, 64), 5.0), torch.zeros(32, dtype=torch.long)))
    assert train_refused(learner, learner.experts[0], entry) == ()
    np.testing.assert_array_equal(model.predict_proba(x[640:]), before)
    assert learner.memory is not None
    assert learner.memory.rows_kept == 640
    learner.memory.put_back(0, None)
    assert learner.memory.rows_kept == 0


def test_a_batch_that_is_undone_leaves_the_linear_model_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = load_digits(return_X_y=True)
    model = GatedExperts(features=lambda rows: rows, joint=True).partial_fit(x[:640], y[:640])
    learner = model.learner_
    assert learner.discriminant is not None
    before = learner.discriminant.state()
    monkeypatch.setattr(learner.guard, "_has_collapsed", lambda expert: True)
    entry = RecentEntry(learner.steps, Batch(torch.full((32, 64), 5.0), torch.zeros(32, dtype=torch.long)))
    assert train_refused(learner, learner.experts[0], entry) == ()
    assert before["counts"].sum() == 640
    for name, tensor in learner.discriminant.state().items():
        torch.testing.assert_close(tensor, before[name])
