"""Learners of small networks in both pools, their settings, and a stream on which something happens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from typing import Any

import torch

from helpers.small_nets import small_conv_autoencoder, small_resnet
from hge.core.config import LearnerConfig, OptimiserConfig, ScoreConfig
from hge.core.events import Event
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.learning.learner import Learner
from hge.learning.state import Snapshot

POOLS = {"eager": EagerPool, "stacked": StackedPool}
MLP = PoolSpec((6,), 4, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig("sketch"), OptimiserConfig())
VAE = replace(MLP, score=ScoreConfig("autoencoder", kl_weight="elbo"))
SHORTLISTED = replace(VAE, shortlisted=True)
CLASSES = replace(MLP, score=ScoreConfig("class-sketch"))
AVERAGED = replace(MLP, optimiser=OptimiserConfig(average=0.9))
CONV = PoolSpec(
    (3, 8, 8), 4, small_resnet, small_conv_autoencoder, ScoreConfig("autoencoder"), OptimiserConfig(lr=1e-3)
)
RESNET18 = replace(CONV, net=NETS["resnet18"], autoencoder=AUTOENCODERS["conv"])
STICKY = LearnerConfig(recent_capacity=5, promotion_window=6)
SETTINGS = {
    "sticky": STICKY,
    "literal": replace(STICKY, sticky=False),
    "tree": replace(STICKY, organisation="tree"),
    "paper's tree": replace(STICKY, organisation="lca", sticky=False),
    "joint": replace(STICKY, joint=True),
    "no review": replace(STICKY, review=False, epsilon=2.5),
}


def stream(visits: str = "0102", batches: int = 45, shape: tuple[int, ...] = (6,)) -> Iterator[Batch]:
    """Tasks that differ in place and in labels; now and then a batch of another size, an outlier, or a NaN."""
    for visit, name in enumerate(visits):
        task = int(name)
        for number in range(batches):
            generator = torch.Generator().manual_seed(1000 * visit + number)
            x = torch.rand(5 if number % 10 == 9 else 8, *shape, generator=generator)
            y = (x.flatten(1)[:, 0] > 0.5).long() + (task % 2) * 2
            if number % 20 == 15:
                y = 3 - y
            if number == 30:
                x[0] = nan
            yield Batch(x + 3.0 * task, y)


BATCHES = list(stream("0102", 30))


def learner_of(config: LearnerConfig, pool: str, spec: PoolSpec) -> tuple[Learner, list[Event]]:
    events: list[Event] = []
    keys = Keys(seed=1)
    return Learner(config, POOLS[pool](spec, keys, torch.device("cpu")), keys, events.append), events


def through_json(snapshot: Snapshot) -> Snapshot:
    return Snapshot(json.loads(json.dumps(snapshot.facts)), snapshot.tensors, snapshot.experts)


def discrete(events: list[Event]) -> list[dict[str, Any]]:
    """Leave out numbers that are a matter of digits."""
    return [{k: v for k, v in e.as_json().items() if not isinstance(v, float)} for e in events]
