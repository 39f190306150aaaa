"""Methods of comparison on images: convolutions, whose weights have channels last in memory, are learned and saved."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.settings import override
from hge.core.types import Batch
from hge.experiments.build import no_task
from hge.experiments.methods import METHODS
from hge.experiments.recipes import build_config
from hge.experts.eager import EagerPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.gating.tree import FloatArray
from hge.learning.online import OnlineLearner, Setting
from hge.learning.state import Snapshot

CPU = torch.device("cpu")
OF_ONE_NETWORK = [
    name
    for name, method in METHODS.items()
    if method.learns_a_stream and build_config("cif10", name, "best").views == 1 and not method.needs.task_ids
]
REFUSED = {
    "hn-entropy": "net: got a network with a BatchNorm, expected one without for a hypernetwork, as net=mlp",
    "hvcl": "net: got a network with a Conv2d, expected an MLP, as net=mlp",
    "sncl": "net: got a network with a Conv2d, expected an MLP, as net=mlp",
}


def untrained(name: str) -> OnlineLearner:
    config = override(build_config("cif10", name, "best"), "batch_size=8")
    config = override(override(config, "baseline.sleep_steps=2"), "baseline.short_term=10")
    optimiser = OptimiserConfig(lr=0.01, average=0.9)
    spec = PoolSpec((3, 16, 16), 4, NETS["conv4-narrow"], AUTOENCODERS["conv"], ScoreConfig(), optimiser, augment=True)
    setting = Setting(config, Keys(0), lambda event: None, spec, lambda outputs: EagerPool(spec, Keys(0), CPU), no_task)
    return METHODS[name].build(setting)


def batches() -> Iterator[Batch]:
    generator = torch.Generator().manual_seed(0)
    for number in range(6):
        labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1]) + 2 * (number // 3)
        yield Batch(torch.randint(0, 256, (8, 3, 16, 16), generator=generator, dtype=torch.uint8), labels)


def probabilities(learner: OnlineLearner, x: Tensor) -> FloatArray:
    answers = learner.answers()
    return answers.probabilities(x, answers.route(x, "sample"), 4)


def learn(learner: Any, some: list[Batch]) -> list[float]:
    if hasattr(learner, "boundary") and learner.steps:
        learner.boundary()
    return [step.loss for step in learner.learn_all(some)]


@pytest.mark.parametrize(
    "name", [n if n in ("er", "ewc") else pytest.param(n, marks=pytest.mark.slow) for n in OF_ONE_NETWORK]
)
def test_convolutions_are_trained_saved_and_trained_on(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            untrained(name)
        return
    stream = list(batches())
    whole, first, second = untrained(name), untrained(name), untrained(name)
    learn(whole, stream[:3])
    learn(first, stream[:3])
    saved = first.snapshot()
    second.restore(Snapshot(saved.facts, load(save(saved.tensors)), [load(save(own)) for own in saved.experts]))
    assert repr(learn(second, stream[3:])) == repr(learn(whole, stream[3:]))
    whole.end_stream()
    before, after = probabilities(untrained(name), stream[0].x), probabilities(whole, stream[0].x)
    assert after.shape == (8, 4)
    assert after.sum(axis=1) == pytest.approx(1.0)
    assert abs(after - before).max() > 0.01, "predictions are those of the trained weights"
