"""The weights that answer are the moving average of those that are trained, in both pools."""

from __future__ import annotations

from dataclasses import replace
from math import isnan, nan

import pytest
import torch
from torch import Tensor

from helpers.pool_checks import batch_for
from helpers.small_nets import small_resnet
from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS
from hge.experts.pool import ExpertPool
from hge.experts.pool_spec import PoolSpec

DECAY = 0.8
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CONV = PoolSpec((3, 8, 8), 3, small_resnet, AUTOENCODERS["conv"], ScoreConfig("sketch"), OptimiserConfig(lr=1e-2))
AVERAGED = replace(CONV, optimiser=replace(CONV.optimiser, average=DECAY))


def trained_part(pool: ExpertPool, expert: int) -> dict[str, Tensor]:
    state = pool.state(expert)
    return {n: t for n, t in state.items() if n.startswith("net.") and "optimiser" not in n}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [EagerPool, StackedPool])
def test_the_average_answers_and_the_trained_weights_tell_the_loss(
    kind: type[EagerPool] | type[StackedPool], device: str
) -> None:
    plain, averaged = (kind(spec, Keys(3), torch.device(device)) for spec in (CONV, AVERAGED))
    for pool in (plain, averaged):
        pool.create(0)
        pool.create(1)
    expected = trained_part(plain, 1)
    for step in range(7):
        batch = batch_for(plain, seed=step)
        assert plain.train(1, batch, step) == averaged.train(1, batch, step)
        weight = max(1 - DECAY, 9 / (10 + step))
        expected = {n: t + weight * (trained_part(plain, 1)[n] - t) for n, t in expected.items()}
    for name, tensor in expected.items():
        torch.testing.assert_close(averaged.state(1)[name.replace("net.", "average.", 1)], tensor)
    batch = batch_for(plain, seed=99)
    assert plain.loss(1, batch, 9) == averaged.loss(1, batch, 9)
    answers = averaged.logits(1, batch.x)
    plain.load_state(1, plain.state(1) | {n: t.contiguous() for n, t in expected.items()})
    torch.testing.assert_close(answers, plain.logits(1, batch.x), rtol=1e-3, atol=1e-4)
    assert torch.equal(torch.from_numpy(averaged.evidence([1], batch.x)[0].logits), answers.double().cpu())


@pytest.mark.parametrize("kind", [EagerPool, StackedPool])
def test_a_refused_batch_leaves_the_average_alone(kind: type[EagerPool] | type[StackedPool]) -> None:
    pool = kind(AVERAGED, Keys(3), torch.device("cpu"))
    pool.create(0)
    batch = batch_for(pool, seed=0)
    pool.train(0, batch, 0)
    before = pool.state(0)
    assert isnan(pool.train(0, Batch(batch.x * nan, batch.y), 1))
    assert all(torch.equal(tensor, before[name]) for name, tensor in pool.state(0).items())


@pytest.mark.parametrize("value", [1.0, -0.1])
def test_a_decay_is_below_one(value: float) -> None:
    with pytest.raises(ValueError, match="average: got"):
        OptimiserConfig(average=value)
