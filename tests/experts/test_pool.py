from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.pool_checks import CHECKS, MakePool, batch_for
from helpers.small_nets import small_conv_autoencoder, small_resnet
from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, MLP, NETS, Shape
from hge.experts.optim import resolve_device
from hge.experts.pool_spec import PoolSpec


def with_dropout(shape: Shape, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), MLP(shape, outputs))


SPECS = {
    "mlp, sketch": PoolSpec((6,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("sketch"), OptimiserConfig()),
    "mlp, class-sketch": PoolSpec(
        (6,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("class-sketch"), OptimiserConfig()
    ),
    "mlp, autoencoder": PoolSpec(
        (6,),
        3,
        NETS["mlp"],
        AUTOENCODERS["mlp"],
        ScoreConfig("autoencoder", kl_weight="elbo"),
        OptimiserConfig(),
    ),
    "dropout, sketch": PoolSpec(
        (6,), 3, with_dropout, AUTOENCODERS["mlp"], ScoreConfig("sketch"), OptimiserConfig("adam", lr=1e-2)
    ),
    "resnet, conv autoencoder": PoolSpec(
        (3, 4, 4),
        3,
        small_resnet,
        small_conv_autoencoder,
        ScoreConfig("autoencoder"),
        OptimiserConfig(lr=1e-2),
    ),
}

SPECS["mlp, shortlisted"] = replace(SPECS["mlp, autoencoder"], shortlisted=True)

SPECS["augmented images"] = replace(
    SPECS["mlp, sketch"], shape=(3, 8, 8), net=small_resnet, augment=True, optimiser=OptimiserConfig(lr=1e-2)
)

SPECS["averaged weights"] = replace(
    SPECS["mlp, sketch"], shape=(3, 8, 8), net=small_resnet, optimiser=OptimiserConfig(lr=1e-2, average=0.9)
)

SPECS["views of images"] = replace(SPECS["averaged weights"], augment=True, views=4)

SPECS["views of rows"] = replace(SPECS["mlp, sketch"], views=3, answer_views=2, scaled=True)

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
POOLS = {"eager": EagerPool, "stacked": StackedPool}


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


QUICK = {"mlp, sketch", "mlp, autoencoder", "views of rows"}


@pytest.fixture(params=[n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SPECS], ids=SPECS)
def spec(request: pytest.FixtureRequest) -> PoolSpec:
    return SPECS[request.param]


@pytest.fixture(params=POOLS)
def make_pool(request: pytest.FixtureRequest, spec: PoolSpec, device: torch.device) -> MakePool:
    return lambda: POOLS[request.param](spec, Keys(seed=3), device)


@pytest.mark.parametrize("check", CHECKS, ids=[check.__name__ for check in CHECKS])
def test_contract(check: Callable[[MakePool], None], make_pool: MakePool) -> None:
    check(make_pool)


def test_eval_mode_would_give_another_loss() -> None:
    """Why a look uses batch statistics: right after creation the running ones are far off."""
    pool = EagerPool(SPECS["resnet, conv autoencoder"], Keys(seed=3), torch.device("cpu"))
    pool.create(0)
    batch = batch_for(pool, seed=1, shift=4.0)
    in_eval_mode = nn.functional.cross_entropy(pool.logits(0, batch.x), batch.y).item()
    looked, trained = pool.loss(0, batch, step=0), pool.train(0, batch, step=0)
    assert abs(looked - trained) < 1e-4 < 0.01 < abs(in_eval_mode - trained)


class Remembering(nn.Module):
    """A user's layer with a buffer of its own that training changes."""

    def __init__(self, shape: Shape, outputs: int) -> None:
        super().__init__()
        self.net = MLP(shape, outputs)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += len(x)
        out: torch.Tensor = self.net(x)
        return out


def test_a_look_leaves_all_buffers_alone() -> None:
    spec = replace(SPECS["mlp, sketch"], net=Remembering)
    pool = EagerPool(spec, Keys(seed=3), torch.device("cpu"))
    pool.create(0)
    pool.loss(0, batch_for(pool, seed=1), step=0)
    assert pool.members[0].net.seen == 0
    pool.train(0, batch_for(pool, seed=1), step=0)
    assert pool.members[0].net.seen == 12


def test_factory_must_make_a_new_module_each_time() -> None:
    same = MLP((6,), 3)
    pool = EagerPool(replace(SPECS["mlp, sketch"], net=lambda shape, outputs: same), Keys(3), torch.device("cpu"))
    pool.create(0)
    with pytest.raises(ValueError, match="net: got the same module from the factory twice"):
        pool.create(1)


def test_unusable_device_is_named() -> None:
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(ValueError, match="device: got 'toaster'"):
        resolve_device("toaster")
    with pytest.raises(ValueError, match="device: got 1180591620717411303424"):
        resolve_device(2**70)  # type: ignore[arg-type]


def test_images_are_changed_by_step_and_expert_and_only_for_the_expert() -> None:
    pools = [
        StackedPool(replace(SPECS["augmented images"], augment=flag), Keys(3), torch.device("cpu")) for flag in (1, 0)
    ]
    for pool in pools:
        pool.create(0)
    batch = batch_for(pools[0], seed=1)
    losses = [pools[0].loss(0, batch, step) for step in (0, 0, 1)]
    assert losses[0] == losses[1] != losses[2]
    for pool in pools:
        pool.train(0, batch, step=0)
    one, other = (pool.scores([0], batch.x) for pool in pools)
    np.testing.assert_array_equal(one, other)
    assert not torch.equal(pools[0].logits(0, batch.x), pools[1].logits(0, batch.x))


def test_only_images_can_be_flipped() -> None:
    with pytest.raises(ValueError, match=r"augment: got inputs of shape \(6,\)"):
        replace(SPECS["mlp, sketch"], augment=True)
