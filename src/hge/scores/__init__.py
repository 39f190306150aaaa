"""Scores: how suitable is an expert for an input? Lower is better. One score object belongs to one expert."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from hge.config import OptimiserConfig, ScoreConfig
from hge.nets import AutoencoderFactory, Shape
from hge.scores.autoencoder import AutoencoderScore
from hge.scores.class_subspace import ClassSubspaceScore
from hge.scores.subspace import SubspaceScore


class Score(Protocol):
    """What an expert's score must do, beside being an `nn.Module`."""

    def learn(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take in a batch on which the expert was trained, and its labels."""

    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return a score per row.

        With `batch_statistics` the rows are known to belong together, and may be normalised by each other; without,
        the score of a row must not depend on the rows beside it.
        """

    def parts(self, x: Tensor) -> Tensor:
        """Return [rows, parts]: all that is known of a row by itself, for `joint.py`; NaN in parts that say nothing."""


def build_score(
    config: ScoreConfig, optimiser: OptimiserConfig, autoencoder: AutoencoderFactory, shape: Shape, outputs: int
) -> AutoencoderScore | ClassSubspaceScore | SubspaceScore:
    """Return a fresh, untrained score, as `config` says."""
    if config.name == "subspace":
        return SubspaceScore(shape, config.components)
    if config.name == "class-subspace":
        return ClassSubspaceScore(shape, outputs, config.components)
    return AutoencoderScore(autoencoder(shape), shape, config, optimiser)
