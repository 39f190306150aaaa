"""How an expert is made, and what every pool does with the tensors of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hge.core.config import OptimiserConfig, Precision, ScoreConfig
from hge.core.randomness import Keys
from hge.experts.inputs import Standardise, draw_augmentation
from hge.experts.joint.model import Evidence
from hge.experts.networks import AutoencoderFactory, NetFactory, Shape
from hge.experts.scores import Score, Space, build_score
from hge.experts.views import Views, check_views
from hge.experts.weight_average import WeightAverage

COUNTS = ("rows", "rows_at_refresh")


@dataclass(frozen=True)
class PoolSpec:
    """Specification of a pool's experts."""

    shape: Shape
    """Shape of one input."""
    outputs: int
    """Number of outputs of every expert's head: one per class of the whole stream."""
    net: NetFactory
    autoencoder: AutoencoderFactory
    score: ScoreConfig
    optimiser: OptimiserConfig
    precision: Precision = "fp32"
    idle_on_host: bool = False
    augment: bool = False
    """Train on flipped and cropped images; scores and replay use the originals."""
    shortlisted: bool = False
    """Add a sketch to a score that has a network."""
    scaled: bool = False
    """Standardise inputs: for each expert by its training rows, for the sketches by the first rows."""
    views: int = 1
    """Views of every input that experts tell apart in training, and over which answers are averaged (views.py)."""
    answer_views: int = 0
    """Views over which answers are averaged; 0: all of them."""

    def __post_init__(self) -> None:
        if self.augment and len(self.shape) != 3:
            raise ValueError(f"augment: got inputs of shape {self.shape}, expected (channels, height, width)")
        check_views(self.shape, self.views, self.answer_views)

    def build_space(self, device: torch.device) -> Space:
        """Return the space that the sketches of all experts share."""
        return Space(self.shape, self.score.components, device, scaled=self.scaled and len(self.shape) == 1)

    def build(self, keys: Keys, expert: int, device: torch.device, space: Space) -> tuple[nn.Module, Score]:
        """Return an untrained expert's network and score, their weights drawn by (seed, expert)."""
        with keys.seeded("weights", expert, device=device):
            return self._build_ready_net(device), self._build_score(keys, device, space)

    def build_net(self, keys: Keys, expert: int, device: torch.device) -> nn.Module:
        """Return an untrained expert's network alone."""
        with keys.seeded("weights", expert, device=device):
            return self._build_ready_net(device)

    def _build_ready_net(self, device: torch.device) -> nn.Module:
        net = self._build_net().to(device)
        net.eval()
        _drop_batch_counts(net)
        return net

    def _build_net(self) -> nn.Module:
        scaling = Standardise(self.shape) if self.scaled else None
        if self.views > 1:
            answering = self.answer_views or self.views
            return Views(self._build_float_net, self.shape, self.outputs, self.views, answering, scaling=scaling)
        net = self._build_float_net(self.shape, self.outputs)
        return net if scaling is None else nn.Sequential(scaling, net)

    def _build_float_net(self, shape: Shape, outputs: int) -> nn.Module:
        return self.net(shape, outputs).to(torch.float32)

    def build_score(self, keys: Keys, expert: int, device: torch.device, space: Space) -> Score:
        """Return an untrained expert's score alone."""
        with keys.seeded("weights", expert, device=device):
            return self._build_score(keys, device, space)

    def _build_score(self, keys: Keys, device: torch.device, space: Space) -> Score:
        score = build_score(
            self.score,
            self.optimiser,
            self.autoencoder,
            self.shape,
            self.outputs,
            space,
            keys,
            shortlisted=self.shortlisted,
        )
        score.to(device).eval()
        _drop_batch_counts(score)
        return score

    def build_average(self, net: nn.Module) -> WeightAverage | None:
        """Return the moving average of a network that is used for prediction, if enabled."""
        return WeightAverage(net, self.optimiser.average) if self.optimiser.average else None

    def draw_augmentation(self, keys: Keys, expert: int, step: int, rows: int, device: torch.device) -> Tensor | None:
        """Return the random changes of a batch's images for training the expert, if enabled."""
        if not self.augment:
            return None
        return draw_augmentation(rows, keys.generator("augment", step, expert, device=device))


def _drop_batch_counts(net: nn.Module) -> None:
    """Remove the BatchNorms' counts of batches, which only a cumulative average needs."""
    for module in net.modules():
        if isinstance(module, _BatchNorm) and module.momentum is not None:
            module.num_batches_tracked = None


def share_modules(net: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have a module in common."""
    return not {id(module) for module in net.modules()}.isdisjoint(id(module) for module in other.modules())


def copy_tensors(tensors: Mapping[str, Tensor], *, on_host: bool) -> dict[str, Tensor]:
    """Return copies: contiguous on the CPU, or with the same device and layout."""
    if on_host:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def read_rows_limited(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the number of limited rows from a pool's shared state; raise a ValueError if it is no number."""
    rows = tensors["rows_limited"]
    if rows.shape != ():
        raise ValueError(f"pool: got rows_limited of {tuple(rows.shape)}, expected ()")
    return rows


def count_tensors(rows: int, rows_at_refresh: int) -> dict[str, Tensor]:
    """Return as tensors the number of rows a score has seen, in total and at its last refresh."""
    return dict(zip(COUNTS, (torch.tensor(rows), torch.tensor(rows_at_refresh)), strict=True))


def as_evidence(parts: Tensor, logits: Tensor, features: Tensor) -> Evidence:
    """Return an expert's evidence as arrays; finite, except for parts that carry no information."""
    arrays = (parts, logits.nan_to_num(), features.nan_to_num())
    return Evidence(*(np.asarray(array.double().cpu()) for array in arrays))
