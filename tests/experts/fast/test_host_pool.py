"""The pool of MLPs on a CPU computes what the plain pool does, bit by bit, and uses no outdated forward pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import isnan, nan

import pytest
import torch
from torch import nn

from helpers.pool_checks import CHECKS, MakePool, batch_for, fingerprint, trained_pool
from helpers.small_nets import small_resnet
from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.eager import EagerPool
from hge.experts.fast.host_pool import HostPool, LinearLayers, build_fast_pool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool import ExpertPool
from hge.experts.pool_spec import PoolSpec

CPU = torch.device("cpu")
MLP = PoolSpec((6,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("sketch"), OptimiserConfig())
ADAM = OptimiserConfig("adam", lr=1e-2, weight_decay=1e-3)
SPECS = {
    "sgd": MLP,
    "no momentum": replace(MLP, optimiser=OptimiserConfig(momentum=0.0)),
    "adam, scaled": replace(MLP, optimiser=ADAM, scaled=True),
    "averaged": replace(MLP, optimiser=replace(ADAM, average=0.9), scaled=True),
    "relu on logits": replace(MLP, net=NETS["mlp-relu-logits"]),
    "images, augmented": replace(MLP, shape=(3, 8, 8), scaled=True, augment=True),
    "class-sketch": replace(MLP, score=ScoreConfig("class-sketch")),
    "autoencoder": replace(MLP, score=ScoreConfig("autoencoder", kl_weight="elbo")),
    "shortlisted": replace(MLP, score=ScoreConfig("autoencoder", kl_weight="elbo"), shortlisted=True),
}


def make(spec: PoolSpec) -> HostPool:
    return HostPool(spec, Keys(seed=3), CPU)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
@pytest.mark.parametrize("name", ["adam, scaled", "averaged", pytest.param("autoencoder", marks=pytest.mark.slow)])
def test_contract(name: str, check: Callable[[MakePool], None]) -> None:
    check(lambda: make(SPECS[name]))


def learn_all_kinds(pool: ExpertPool) -> None:
    """Every operation that changes an expert, in turns between two of them, and looks that change nothing."""
    for expert in range(2):
        pool.create(expert)
    for step in range(12):
        expert, rows = step // 3 % 2, 1 if step == 5 else 12
        batch = batch_for(pool, seed=step, rows=rows, shift=expert)
        pool.loss(expert, batch, step)
        pool.logits(1 - expert, batch.x)
        pool.train(expert, batch, step)
        pool.rehearse(expert, batch_for(pool, seed=50 + step, rows=20, shift=expert), step)
    pool.finish_deferred()
    pixels = batch_for(pool, seed=99)
    pool.train(1, Batch((255 * pixels.x).to(torch.uint8), pixels.y), step=12)


@pytest.mark.parametrize("name", SPECS)
def test_it_is_the_plain_pool_bit_by_bit(name: str) -> None:
    host, plain = make(SPECS[name]), EagerPool(SPECS[name], Keys(seed=3), CPU)
    for pool in (host, plain):
        learn_all_kinds(pool)
    batch = batch_for(host, seed=7)
    for expert in range(2):
        expected = plain.state(expert)
        for tensor_name, tensor in host.state(expert).items():
            assert torch.equal(tensor, expected[tensor_name]), tensor_name
        assert torch.equal(host.logits(expert, batch.x), plain.logits(expert, batch.x))
        assert host.loss(expert, batch, step=20) == plain.loss(expert, batch, step=20)


def change_by_training(pool: HostPool, batch: Batch) -> HostPool:
    pool.train(0, batch_for(pool, seed=60), step=9)
    return pool


def change_by_rehearsal(pool: HostPool, batch: Batch) -> HostPool:
    pool.rehearse(0, batch_for(pool, seed=60), step=9)
    return pool


def change_by_rollback(pool: HostPool, batch: Batch) -> HostPool:
    pool.load_state(0, pool.state(1))
    return pool


def change_of_expert(pool: HostPool, batch: Batch) -> HostPool:
    pool.train(1, batch, step=9)
    return pool


def change_by_pickling(pool: HostPool, batch: Batch) -> HostPool:
    copied: HostPool = pickle.loads(pickle.dumps(pool))
    copied.load_state(0, pool.state(1))  # as many changes as before
    return copied


CHANGES = [change_by_training, change_by_rehearsal, change_by_rollback, change_of_expert, change_by_pickling]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["adam, scaled", "averaged"])
def test_a_forward_pass_is_forgotten_when_the_expert_changes(
    name: str, change: Callable[[HostPool, Batch], HostPool]
) -> None:
    states = []
    for looks in (True, False):
        pool = trained_pool(partial(make, SPECS[name]))
        assert isinstance(pool, HostPool)
        batch = batch_for(pool, seed=51)
        if looks:
            pool.loss(0, batch, step=9)
            pool.logits(0, batch.x)
        pool = change(pool, batch)
        states.append({"logits": pool.logits(0, batch.x), "loss": torch.tensor(pool.train(0, batch, step=9))})
        states[-1] |= pool.state(0)
    for tensor_name, tensor in states[0].items():
        assert torch.equal(tensor, states[1][tensor_name]), tensor_name


def test_logits_are_of_these_rows_even_if_the_caller_changes_them() -> None:
    pool, plain = make(SPECS["adam, scaled"]), EagerPool(SPECS["adam, scaled"], Keys(seed=3), CPU)
    for one in (pool, plain):
        learn_all_kinds(one)
    x = batch_for(pool, seed=51).x
    for _ in range(2):
        for expert in (0, 1):
            assert torch.equal(pool.logits(expert, x), plain.logits(expert, x))
        assert torch.equal(pool.logits(1, x[:1]), plain.logits(1, x[:1]))
        x += 1


def test_a_forward_pass_is_of_one_batch_and_one_step() -> None:
    pool = trained_pool(partial(make, SPECS["images, augmented"]))
    batch, other = batch_for(pool, seed=51), batch_for(pool, seed=52)
    losses = [pool.loss(0, b, step) for b, step in ((batch, 9), (other, 9), (batch, 10), (batch, 9))]
    assert len(set(losses)) == 3
    assert losses[0] == losses[3]


def test_rows_that_are_not_finite_change_nothing() -> None:
    pool = trained_pool(partial(make, SPECS["adam, scaled"]))
    before, state, batch = fingerprint(pool), pool.state(0), batch_for(pool, seed=51)
    batch.x[3] = nan
    assert isnan(pool.train(0, batch, step=9))
    pool.rehearse(0, batch, step=9)
    assert all(torch.equal(tensor, state[name]) for name, tensor in pool.state(0).items())
    assert all((a == b).all() for a, b in zip(fingerprint(pool), before, strict=True))


def test_only_mlps_on_a_cpu_are_computed_without_autograd() -> None:
    def kind(spec: PoolSpec) -> type[StackedPool]:
        return type(build_fast_pool(spec, Keys(0), CPU))

    assert kind(MLP) is kind(replace(MLP, net=NETS["mlp-wide"])) is HostPool
    assert kind(replace(MLP, shape=(3, 8, 8), net=small_resnet)) is StackedPool
    with pytest.raises(TypeError, match="net: got a Tanh, expected linear layers and ReLUs"):
        LinearLayers(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))


def test_equal_numbers_of_another_type_are_other_rows() -> None:
    """Bytes are divided by 255; the same numbers as floats are not."""
    pool, plain = make(MLP), EagerPool(MLP, Keys(seed=3), CPU)
    rows = torch.arange(12, dtype=torch.uint8).view(2, 6)
    for x in (rows, rows.float()):
        for one in (pool, plain):
            if x is rows:
                one.create(0)
        assert torch.equal(pool.logits(0, x), plain.logits(0, x))
