"""Steps of an expert's network are limited, in every pool alike."""

from __future__ import annotations

import pytest
import torch

from helpers.small_learners import MLP, POOLS
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts import optim
from hge.experts.fast.host_pool import HostPool


@pytest.mark.parametrize("pool", [*POOLS, "host"])
def test_a_long_gradient_is_clipped(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step is the learning rate times the gradient, whose length is at most the limit."""
    kind = HostPool if pool == "host" else POOLS[pool]
    batch = Batch(torch.rand(8, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)
    moved = []
    for limit in (30.0, 0.01):
        monkeypatch.setattr(optim, "MAX_GRADIENT_NORM", limit)
        monkeypatch.setattr("hge.experts.fast.host_pool.MAX_GRADIENT_NORM", limit)
        made = kind(MLP, Keys(0), torch.device("cpu"))
        made.create(0)
        before = made.state(0)
        made.train(0, batch, 0)
        after = made.state(0)
        names = [name for name in before if name.startswith("net.") and "optimiser" not in name]
        moved.append(sum(float((after[name] - before[name]).square().sum()) for name in names) ** 0.5)
    assert moved[0] > 0.01
    # lr · (0.01 + weight decay · length of the weights), which is small
    assert moved[1] < 0.05 * 0.01 + 1e-4
