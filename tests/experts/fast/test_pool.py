"""The fast pool decides as the plain one does, and a run of batches is the same as one by one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import nan
from typing import Any

import numpy as np
import pytest
import torch

from helpers.pool_checks import batch_for
from helpers.small_learners import (
    AVERAGED,
    CLASSES,
    CONV,
    MLP,
    POOLS,
    RESNET18,
    SETTINGS,
    SHORTLISTED,
    STICKY,
    VAE,
    discrete,
    stream,
)
from hge.core.config import LearnerConfig, OptimiserConfig
from hge.core.events import Event
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.fast.cuda_graphs import ResultQueue
from hge.experts.fast.device_steps import STEPS_PER_LAUNCH
from hge.experts.fast.layout import Layout, Stack, rebind_storage
from hge.experts.fast.pool import StackedPool
from hge.experts.pool_spec import PoolSpec
from hge.gating.switch_detection import LossStats
from hge.learning.learner import Learner
from hge.learning.online import Step

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


Learned = tuple[Learner, list[Step], list[Event]]


@cache
def learned(pool: str, spec: PoolSpec, config: LearnerConfig, device: str, *, in_runs: bool) -> Learned:
    """A learner that has seen the whole stream. Several tests compare it with others; none teaches it more."""
    return learned_anew(pool, spec, config, device, in_runs=in_runs)


def learned_anew(pool: str, spec: PoolSpec, config: LearnerConfig, device: str, *, in_runs: bool) -> Learned:
    """The same where pools are patched."""
    events: list[Event] = []
    keys = Keys(seed=1)
    learner = Learner(config, POOLS[pool](spec, keys, torch.device(device)), keys, events.append)
    batches = list(stream(shape=spec.shape))
    steps = list(learner.learn_all(batches)) if in_runs else [learner.learn(batch) for batch in batches]
    return learner, steps, events


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("spec", [MLP, VAE, CLASSES], ids=["sketch", "autoencoder", "class-sketch"])
@pytest.mark.parametrize("config", SETTINGS.values(), ids=SETTINGS)
def test_both_pools_emit_the_same_events(config: LearnerConfig, spec: PoolSpec, device: str) -> None:
    _, eager_steps, eager_events = learned("eager", spec, config, device, in_runs=False)
    _, steps, events = learned("stacked", spec, config, device, in_runs=True)
    assert discrete(events) == discrete(eager_events)
    assert len({e.expert for e in steps}) > 1, "a stream on which nothing happens shows nothing"
    assert any(s.set_aside for s in steps)
    for one, other in zip(steps, eager_steps, strict=True):
        assert (one.step, one.expert, one.set_aside, one.trained) == (
            other.step,
            other.expert,
            other.set_aside,
            other.trained,
        )
        np.testing.assert_allclose((one.loss, one.bound), (other.loss, other.bound), rtol=1e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sticky", [True, False], ids=["sticky", "literal"])
def test_both_pools_train_a_shortlisted_score_alike(sticky: bool, device: str) -> None:
    """The autoencoder is trained as if there were no sketch beside it, also while the sketches' space is not fixed."""
    config = replace(SETTINGS["tree"], sticky=sticky)
    eager, eager_steps, eager_events = learned("eager", SHORTLISTED, config, device, in_runs=False)
    stacked, steps, events = learned("stacked", SHORTLISTED, config, device, in_runs=True)
    assert discrete(events) == discrete(eager_events)
    assert [(s.step, s.expert, s.set_aside, s.trained) for s in steps] == [
        (s.step, s.expert, s.set_aside, s.trained) for s in eager_steps
    ]
    assert len(eager.experts) > 1
    x = next(stream()).x.to(device)
    everyone = range(len(eager.experts))
    np.testing.assert_allclose(*(one.pool.scores(everyone, x) for one in (stacked, eager)), rtol=1e-3)
    sketches = [one.pool.sketches(everyone, x, together=False) for one in (stacked, eager)]
    np.testing.assert_allclose(*sketches, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_adam_trains_scores_in_graphs_too(device: str) -> None:
    """A score's optimiser is made before its network comes to the GPU."""
    spec = replace(VAE, optimiser=OptimiserConfig("adam", lr=1e-2))
    _, _, expected = learned("eager", spec, SETTINGS["literal"], device, in_runs=False)
    _, steps, events = learned("stacked", spec, SETTINGS["literal"], device, in_runs=True)
    assert discrete(events) == discrete(expected)
    assert len({step.expert for step in steps}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [c for c in SETTINGS.values() if not c.sticky], ids=[n for n, c in SETTINGS.items() if not c.sticky]
)
def test_asking_all_at_once_changes_no_event(config: LearnerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, expected = learned("stacked", VAE, config, "cpu", in_runs=True)
    monkeypatch.setattr(StackedPool, "scores_all_at_once", True)
    _, _, events = learned_anew("stacked", VAE, config, "cpu", in_runs=True)
    assert discrete(events) == discrete(expected)


EXACT = {"sketch": MLP, "class-sketch": CLASSES, "averaged": AVERAGED}
PAIRS = [
    pytest.param(list(POOLS)[(i + j) % 2], spec, config, id=f"{setting}-{name}-{list(POOLS)[(i + j) % 2]}")
    for i, (name, spec) in enumerate(EXACT.items())
    for j, (setting, config) in enumerate(SETTINGS.items())
]
"""Every two of pool, score and setting meet once at least; all three of them together would show nothing more."""


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("pool", "spec", "config"), PAIRS)
def test_runs_are_the_same_as_one_by_one(pool: str, spec: PoolSpec, config: LearnerConfig, device: str) -> None:
    one, steps, events = learned(pool, spec, config, device, in_runs=False)
    many, steps_in_runs, events_in_runs = learned(pool, spec, config, device, in_runs=True)
    assert repr(steps_in_runs) == repr(steps)  # repr, since NaN is not equal to itself
    assert repr(events_in_runs) == repr(events)
    assert many.evaluations == one.evaluations
    x = next(stream()).x.to(device)
    for expert in range(len(one.experts)):
        assert torch.equal(one.pool.logits(expert, x), many.pool.logits(expert, x))
        assert vars(one.experts[expert].losses) == vars(many.experts[expert].losses)
        assert [r.step for r in one.experts[expert].replay.kept] == [r.step for r in many.experts[expert].replay.kept]
    everyone = range(len(one.experts))
    scores = [learner.pool.batch_scores(everyone, x) for learner in (one, many)]
    np.testing.assert_array_equal(*scores)


@pytest.mark.slow
@pytest.mark.parametrize("config", [SETTINGS["sticky"], SETTINGS["literal"]], ids=["sticky", "literal"])
def test_two_steps_at_once_are_the_same_as_one_by_one(config: LearnerConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    one, steps, events = learned("stacked", MLP, config, "cpu", in_runs=False)
    monkeypatch.setattr(StackedPool, "overlaps", True)  # as on a GPU
    launched = []
    put = ResultQueue.put

    def counted(queue: ResultQueue, results: torch.Tensor, count: int, stream: None) -> None:
        launched.append(count)
        put(queue, results, count, stream)

    monkeypatch.setattr(ResultQueue, "put", counted)
    many, steps_in_runs, events_in_runs = learned_anew("stacked", MLP, config, "cpu", in_runs=True)
    assert {1, STEPS_PER_LAUNCH} <= set(launched) <= set(range(1, STEPS_PER_LAUNCH + 1))
    assert repr(steps_in_runs) == repr(steps)
    assert repr(events_in_runs) == repr(events)
    assert not len(many.pool.results)
    x = next(stream()).x
    for expert in range(len(one.experts)):
        assert torch.equal(one.pool.logits(expert, x), many.pool.logits(expert, x))


@pytest.mark.slow
def test_convolutional_experts_decide_alike() -> None:
    config = replace(STICKY, recent_capacity=4)
    results = {}
    for name in POOLS:
        events: list[Event] = []
        keys = Keys(seed=1)
        learner = Learner(config, POOLS[name](CONV, keys, torch.device("cpu")), keys, events.append)
        results[name] = list(learner.learn_all(stream("01", 10, CONV.shape))), discrete(events)
    assert results["stacked"][1] == results["eager"][1]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("spec", [MLP, VAE, CONV], ids=["sketch", "autoencoder", "convolutional"])
def test_a_run_ends_at_the_first_batch_that_is_not_the_experts(name: str, spec: PoolSpec, device: str) -> None:
    pool = POOLS[name](spec, Keys(3), torch.device(device))
    pool.create(0)
    losses = LossStats()
    for step in range(8):
        losses.update(pool.train(0, batch_for(pool, seed=step), step))
    far = batch_for(pool, seed=50, shift=40.0 if len(spec.shape) == 1 else nan)  # BatchNorm takes a shift away
    items = [(8, batch_for(pool, seed=8)), (9, batch_for(pool, seed=9)), (10, far), (11, batch_for(pool, seed=11))]
    trained = list(_followed(pool.train_run(0, items, losses, epsilon=4.0), losses))
    assert len(trained) == 2
    twin = POOLS[name](spec, Keys(3), torch.device(device))
    twin.create(0)
    for step in range(10):
        twin.train(0, batch_for(pool, seed=step), step)
    x = batch_for(pool, seed=60).x
    np.testing.assert_allclose(pool.logits(0, x).cpu(), twin.logits(0, x).cpu(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(*(p.scores([0], x) for p in (pool, twin)), rtol=1e-5)
    np.testing.assert_allclose(*(p.batch_scores([0], x) for p in (pool, twin)), rtol=1e-5)


@pytest.mark.parametrize("name", POOLS)
def test_a_run_ends_where_a_rival_scores_lower(name: str) -> None:
    pool = POOLS[name](MLP, Keys(3), torch.device("cpu"))
    for expert in range(2):
        pool.create(expert)
        for step in range(5):
            pool.train(expert, batch_for(pool, seed=step, shift=9.0 * expert), step)
    losses = LossStats(count=5, mean=1e9)
    items = [(step, batch_for(pool, seed=step, shift=9.0 * (step == 7))) for step in range(5, 9)]
    assert len(list(_followed(pool.train_run(0, items, losses, 4.0, ordered_pairs=[(0, 1)]), losses))) == 2
    assert len(list(_followed(pool.train_run(0, items, losses, 4.0), losses))) == 4


def test_a_run_hears_nothing_of_one_that_was_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = [StackedPool(MLP, Keys(0), torch.device("cpu")) for _ in range(2)]
    batches, put = [batch_for(pools[0], seed) for seed in range(3)], ResultQueue.put

    def interrupted(queue: ResultQueue, *arguments: Any) -> None:
        put(queue, *arguments)
        raise KeyboardInterrupt

    for pool in pools:
        pool.create(0)
    monkeypatch.setattr(ResultQueue, "put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pools[0].train(0, batches[0], 0)
    monkeypatch.undo()
    pools[1].train(0, batches[0], 0)
    losses = [[pool.train(0, batch, step) for step, batch in enumerate(batches[1:], 1)] for pool in pools]
    assert losses[0] == losses[1]


def test_the_loss_that_ended_a_run_is_not_taken_for_that_of_another_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted batch leaves the learner where it was: the next one has the same step."""
    keys = Keys(seed=1)
    pool = StackedPool(MLP, keys, torch.device("cpu"))
    learner = Learner(STICKY, pool, keys, lambda event: None)
    batches = list(stream("0", 14))
    list(learner.learn_all(batches))
    strange = Batch(batches[0].x + 50, 3 - batches[0].y)
    monkeypatch.setattr(learner.organisation, "route", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(learner.learn_all([strange]))
    monkeypatch.undo()
    assert not learner.learn(batches[5]).set_aside


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def _followed(run: Iterator[float], losses: LossStats) -> Iterator[float]:
    for loss in run:
        losses.update(loss)
        yield loss


@pytest.mark.parametrize("spec", [MLP, VAE, CLASSES], ids=["sketch", "autoencoder", "class-sketch"])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pool: pickle.loads(pickle.dumps(pool))])
def test_a_copy_goes_on_alike_and_apart(spec: PoolSpec, duplicate: Any) -> None:
    pool = StackedPool(spec, Keys(3), torch.device("cpu"))
    for expert in range(3):
        pool.create(expert)
        pool.train(expert, batch_for(pool, seed=expert), step=expert)
    twin = duplicate(pool)
    batch, x = batch_for(pool, seed=9), batch_for(pool, seed=10).x
    before = pool.logits(1, x)
    assert pool.train(1, batch, step=9) == twin.train(1, batch, step=9)
    for expert in range(3):
        assert torch.equal(pool.logits(expert, x), twin.logits(expert, x))
    pool.train(1, batch, step=10)
    assert not torch.equal(pool.logits(1, x), twin.logits(1, x))
    assert not torch.equal(before, twin.logits(1, x))


def test_idle_experts_can_wait_on_the_host_and_memory_is_reported() -> None:
    here, away = (StackedPool(replace(VAE, idle_on_host=flag), Keys(3), torch.device("cpu")) for flag in (False, True))
    for pool in (here, away):
        for expert in range(3):
            pool.create(expert)
            pool.train(expert, batch_for(pool, seed=expert), step=0)
    x = batch_for(here, seed=9).x
    for expert in range(3):
        assert torch.equal(here.logits(expert, x), away.logits(expert, x))
    assert away.memory()["host_bytes"] == 3 * len(away.store.slot)
    assert here.memory()["device_bytes"] - away.memory()["device_bytes"] == away.memory()["host_bytes"]
    weights = sum(p.nbytes for module in (here.store.net, here.store.score) for p in module.parameters())
    assert 2 * weights <= here.memory()["bytes_per_expert"] < 2.3 * weights  # and momentum


def test_memory_keeps_the_format_of_its_tensors() -> None:
    weights = torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)
    count, values = torch.tensor(3), weights.clone()
    layout = Layout([count, weights])
    memory = layout.allocate(torch.device("cpu"))
    rebind_storage([count, weights], layout.views(memory))
    assert weights.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(weights, values)
    memory.zero_()
    assert count == 0
    assert (weights == 0).all()


def test_a_stack_doubles_and_keeps_what_it_holds() -> None:
    stack = Stack({"a": torch.zeros(1, 2)})
    moved = [stack.append({"a": torch.full((2,), float(n))}) for n in range(1, 6)]
    assert moved == [True, True, False, True, False]
    assert stack.of([0, 3, 5])["a"][:, 0].tolist() == [0.0, 3.0, 5.0]
    assert stack.of([2, 3])["a"].data_ptr() == stack.tensors["a"][2].data_ptr()


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [MLP, VAE, CLASSES, RESNET18], ids=["sketch", "autoencoder", "classes", "convolutional"]
)
def test_experts_move_between_pools(spec: PoolSpec) -> None:
    pools = [POOLS[name](spec, Keys(3), torch.device("cpu")) for name in POOLS]
    for expert in range(2):
        for pool in pools:
            pool.create(expert)
        pools[0].train(expert, batch_for(pools[0], seed=expert), step=0)
    pools[1].load_shared_state(pools[0].shared_state())
    for expert in range(2):
        pools[1].load_state(expert, pools[0].state(expert))
    x = batch_for(pools[0], seed=9).x
    for expert in range(2):
        answers = [pool.logits(expert, x) for pool in pools]
        torch.testing.assert_close(*answers)
    np.testing.assert_allclose(*(pool.scores([0, 1], x) for pool in pools), rtol=1e-4)
