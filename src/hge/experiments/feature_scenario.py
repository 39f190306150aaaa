"""A scenario's rows replaced by features of a pretrained backbone, computed once before the stream begins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from hge.core.config import RunConfig
from hge.data.datasets import data_folder
from hge.data.scenarios import Part, Scenario, Source
from hge.data.transforms import AsIs
from hge.experiments.feature_store import FeatureStore, OnRows
from hge.experts.backbones import BACKBONES
from hge.experts.extractor import Extractor

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


def with_features(
    scenario: Scenario, config: RunConfig, data: Path | None, on_rows: OnRows = lambda done, total: None
) -> Scenario:
    """Return the scenario with features instead of rows, if the settings name a backbone; it stays in memory.

    Features are kept in the folder of the data sets, if there is one.
    """
    if not config.features:
        return scenario
    store = FeatureStore(Extractor(config.features, config.device), data_folder(data))
    total, done = sum(len(part) for task in scenario.tasks for part in (task.train, task.test)), 0

    def extracted(part: Part) -> Part:
        nonlocal done
        features = store(part.whole().x, lambda known, _: on_rows(done + known, total))
        done += len(part)
        place = part.source.x.device
        source = Source(features.to(place), part.source.y[part.rows])
        return replace(part, source=source, rows=torch.arange(len(part), device=part.rows.device), prepare=AsIs())

    tasks = tuple(replace(task, train=extracted(task.train), test=extracted(task.test)) for task in scenario.tasks)
    return replace(scenario, tasks=tasks)
