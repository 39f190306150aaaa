"""A scenario's rows replaced by features of a pretrained backbone, computed once before the stream begins."""

from __future__ import annotations

from dataclasses import replace

import torch

from hge.core.config import RunConfig
from hge.data.scenarios import Part, Scenario, Source
from hge.data.transforms import AsIs
from hge.experts.backbones import BACKBONES
from hge.experts.extractor import Extractor

READ_AT_ONCE = 1024
"""Rows that are prepared at once; the extractor takes fewer."""
NETS_OF_IMAGES = ("resnet18", "resnet18-cifar", "conv4", "conv4-narrow")


def check_features(config: RunConfig) -> None:
    """Reject settings that do not go together with features."""
    if not config.features:
        return
    if config.features not in BACKBONES:
        raise ValueError(f"features: got {config.features!r}, expected one of {', '.join(BACKBONES)}")
    if config.net in NETS_OF_IMAGES:
        raise ValueError(f"net: got {config.net!r} with features, which are rows; expected mlp or mlp-wide")
    if config.score.name == "autoencoder" and config.autoencoder == "conv":
        raise ValueError(f"autoencoder: got {config.autoencoder!r} with features, which are rows; expected mlp")
    if config.augment:
        raise ValueError("augment: got true with features, which are computed once; expected false")
    if config.views != 1:
        raise ValueError(f"views: got {config.views} with features, which are computed once; expected 1")


def with_features(scenario: Scenario, config: RunConfig) -> Scenario:
    """Return the scenario with features instead of rows, if the settings name a backbone; it stays in memory."""
    if not config.features:
        return scenario
    extractor = Extractor(config.features, config.device)
    tasks = (
        replace(task, train=_extracted(task.train, extractor), test=_extracted(task.test, extractor))
        for task in scenario.tasks
    )
    return replace(scenario, tasks=tuple(tasks))


def _extracted(part: Part, extractor: Extractor) -> Part:
    features = torch.cat([extractor(batch.x) for batch in part.batches(READ_AT_ONCE)])
    place = part.source.x.device
    source = Source(features.to(place), part.source.y[part.rows])
    return replace(part, source=source, rows=torch.arange(len(part), device=part.rows.device), prepare=AsIs())
