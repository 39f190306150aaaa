"""Scores: how suitable is an expert for an input? Lower is better. One score object belongs to one expert."""

from __future__ import annotations

from hge.config import OptimiserConfig, ScoreConfig
from hge.nets import AutoencoderFactory, Shape
from hge.scores.autoencoder import AutoencoderScore
from hge.scores.base import Pupil, Score
from hge.scores.class_subspace import ClassSubspaceScore
from hge.scores.subspace import SubspaceScore

__all__ = ["AutoencoderScore", "ClassSubspaceScore", "Pupil", "Score", "SubspaceScore", "build_score"]


def build_score(
    config: ScoreConfig, optimiser: OptimiserConfig, autoencoder: AutoencoderFactory, shape: Shape, outputs: int
) -> Score:
    """Return a fresh, untrained score, as `config` says."""
    if config.name == "subspace":
        return SubspaceScore(shape, config.components)
    if config.name == "class-subspace":
        return ClassSubspaceScore(shape, outputs, config.components)
    return AutoencoderScore(autoencoder(shape), shape, config, optimiser)
