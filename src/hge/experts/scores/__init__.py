"""Scores: measures of how suitable an expert is for an input; lower is better. Each expert has its own score."""

from __future__ import annotations

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.experts.networks import AutoencoderFactory, Shape
from hge.experts.scores.autoencoder import AutoencoderScore
from hge.experts.scores.base import UNSUITABLE, Cost, Score, ScoreTrainer
from hge.experts.scores.shortlisted import ShortlistedScore
from hge.experts.scores.sketch import SketchScore
from hge.experts.scores.space import Space

__all__ = [
    "UNSUITABLE",
    "AutoencoderScore",
    "Cost",
    "Score",
    "ScoreTrainer",
    "ShortlistedScore",
    "SketchScore",
    "Space",
    "build_score",
]


def build_score(
    config: ScoreConfig,
    optimiser: OptimiserConfig,
    autoencoder: AutoencoderFactory,
    shape: Shape,
    outputs: int,
    space: Space,
    keys: Keys,
    *,
    shortlisted: bool = False,
) -> Score:
    """Return an untrained score, as set in `config`; sketches use `space`, which all experts share, and
    autoencoders are compared at noise drawn by `keys`."""
    if config.name == "autoencoder":
        costly = AutoencoderScore(autoencoder(shape), shape, config, optimiser, keys, space.device)
        return ShortlistedScore(costly, SketchScore(space)) if shortlisted else costly
    return SketchScore(space, outputs if config.name == "class-sketch" else 1)
