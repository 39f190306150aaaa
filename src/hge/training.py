"""What training an expert and training its score have in common: optimisers, and which statistics BatchNorm uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hge.config import OptimiserConfig


def build_optimiser(config: OptimiserConfig, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return SGD or Adam as `config` says."""
    if config.name == "adam":
        return torch.optim.Adam(parameters, lr=config.lr, weight_decay=config.weight_decay)
    return torch.optim.SGD(parameters, lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay)


def has_batch_norm(net: nn.Module) -> bool:
    """Say whether any layer normalises by the batch."""
    return any(isinstance(module, _BatchNorm) for module in net.modules())


@contextmanager
def mode_of(net: nn.Module, *, training: bool, rows: int, batch_statistics: bool = False) -> Iterator[None]:
    """Put `net` into the mode for training, for looking with batch statistics, or for answering; then into eval.

    A look with batch statistics computes what a training step would compute, but leaves the running statistics
    alone: another task's data must not leak into them, and the eval-mode loss is not comparable with the training
    losses behind the bound (docs/paper.md, reading 8). A single row has no batch statistics and uses the running ones.
    """
    norms = [(m, m.track_running_stats) for m in net.modules() if isinstance(m, _BatchNorm)]
    net.train(training or batch_statistics)
    for norm, tracks in norms:
        norm.train(norm.training and rows > 1)
        norm.track_running_stats = tracks and training
    others = (
        []
        if training
        else [(b, b.clone()) for m in net.modules() if not isinstance(m, _BatchNorm) for b in m.buffers(recurse=False)]
    )
    try:
        yield
    finally:
        for norm, tracks in norms:
            norm.track_running_stats = tracks
        for buffer, before in others:  # what other layers of a user's net may keep
            buffer.copy_(before)
        net.eval()
