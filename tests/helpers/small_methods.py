"""A linear network of two inputs and four classes under any baseline, so that a step can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import softmax
from torch import nn

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.build import no_task
from hge.experiments.recipes import build_config
from hge.experts.eager import EagerPool
from hge.experts.networks import AUTOENCODERS
from hge.experts.pool_spec import PoolSpec
from hge.learning.online import Setting

LR = 0.5


def linear_setting(batch_size: int = 32, **baseline: Any) -> Setting:
    """Return a setting with plain gradient descent."""
    optimiser = OptimiserConfig("sgd", lr=LR, momentum=0.0, weight_decay=0.0)
    config = build_config("split-digits", "er")
    config = replace(config, optimiser=optimiser, batch_size=batch_size, baseline=replace(config.baseline, **baseline))
    spec = PoolSpec((2,), 4, linear, AUTOENCODERS["mlp"], ScoreConfig(), optimiser)
    pool = EagerPool(spec, Keys(0), torch.device("cpu"))
    return Setting(config, Keys(0), lambda event: None, spec, lambda outputs: pool, no_task)


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(*shape, outputs, bias=False)


def weights(learner: Any) -> npt.NDArray[np.float64]:
    """Return a copy of the network's weights [classes, inputs]."""
    found: npt.NDArray[np.float64] = learner.rule.network.net.weight.detach().double().numpy().copy()
    return found


def gradient(weight: npt.NDArray[np.float64], batch: Batch, absent: Sequence[int] = ()) -> npt.NDArray[np.float64]:
    """Gradient of the mean cross-entropy of a linear network, without the logits of absent classes."""
    x, y = batch.x.double().numpy(), batch.y.numpy()
    logits = x @ weight.T
    logits[:, list(absent)] = -np.inf
    error = softmax(logits, axis=1) - np.eye(len(weight))[y]
    result: npt.NDArray[np.float64] = error.T @ x / len(x)
    return result
