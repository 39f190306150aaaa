"""The experts' networks behind one interface: look at a loss, train, score, answer. The plain reference is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hge.config import OptimiserConfig, ScoreConfig
from hge.features import features_and_logits
from hge.gate import FloatArray
from hge.joint import Evidence
from hge.keys import Keys
from hge.nets import AutoencoderFactory, NetFactory, Shape
from hge.scores import Score, build_score
from hge.training import build_optimiser, has_batch_norm, mode_of
from hge.types import Batch, as_float

UNSUITABLE = 1e30
"""Stands for a score that is not a number."""


class ExpertPool(Protocol):
    """The seam between the algorithm and the networks. `tests/pool_checks.py` says what every pool must hold."""

    @property
    def device(self) -> torch.device:
        """Where the networks live; batches are brought here."""

    @property
    def uses_batch_statistics(self) -> bool:
        """Scores with and without batch statistics differ."""

    def create(self, expert: int) -> None:
        """Add an untrained expert under the next free id."""

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the loss that a training step would report, and change nothing."""

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Train the expert and its score on the batch; return the loss before the update.

        Where the loss or its gradient is not a number, nothing is trained and NaN comes back.
        """

    def scores(self, experts: Sequence[int], x: Tensor, *, batch_statistics: bool) -> FloatArray:
        """Return the scores [experts, rows], lower is more suitable; see `Score.score` for `batch_statistics`.

        They are finite: what is not a number suits nobody.
        """

    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the expert's answers [rows, outputs]; finite, too."""

    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Return all that the expert knows of the rows, each by itself: the joint score's inputs."""


@dataclass(frozen=True)
class PoolSpec:
    """How a pool makes an expert."""

    shape: Shape
    """Shape of one input."""
    outputs: int
    """Outputs of every expert's head: one per class of the whole stream."""
    net: NetFactory
    autoencoder: AutoencoderFactory
    score: ScoreConfig
    optimiser: OptimiserConfig


class EagerPool:
    """One network after the other, nothing clever: the reference that faster pools must agree with."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device
        self.members: list[_Member] = []

    @property
    def uses_batch_statistics(self) -> bool:
        """There is a BatchNorm in the score's network."""
        score = self.members[0].score
        return isinstance(score, nn.Module) and has_batch_norm(score)

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        assert expert == len(self.members), "experts are numbered in order of creation"
        spec = self.spec
        with self.keys.seeded("weights", expert, device=self.device):
            net = spec.net(spec.shape, spec.outputs).to(self.device, torch.float32).eval()
            score = build_score(spec.score, spec.optimiser, spec.autoencoder, spec.shape, spec.outputs)
            score = score.to(self.device, torch.float32).eval()
        if any(net is member.net for member in self.members):
            raise ValueError("net: got the same module from the factory twice, expected a new one for each expert")
        self.members.append(_Member(net, build_optimiser(spec.optimiser, net.parameters()), score))

    @torch.no_grad()
    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss under batch statistics; running statistics stay as they are."""
        net = self.members[expert].net
        with (
            self.keys.seeded("dropout", step, expert, device=self.device),
            mode_of(net, training=False, rows=len(batch), batch_statistics=True),
        ):
            return float(nn.functional.cross_entropy(net(as_float(batch.x)), batch.y))

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and let its score learn."""
        member, x = self.members[expert], as_float(batch.x)
        buffers = [(buffer, buffer.clone()) for buffer in member.net.buffers()]
        with (
            self.keys.seeded("dropout", step, expert, device=self.device),
            mode_of(member.net, training=True, rows=len(batch)),
        ):
            loss = nn.functional.cross_entropy(member.net(x), batch.y)
            member.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [p.grad for p in member.net.parameters() if p.grad is not None]
            if not nn.utils.get_total_norm(gradients).isfinite():
                for buffer, before in buffers:
                    buffer.copy_(before)
                return nan
            member.optimiser.step()
        member.score.learn(x, batch.y, self.keys.generator("noise", step, expert, device=self.device))
        return float(loss.detach())

    @torch.no_grad()
    def scores(self, experts: Sequence[int], x: Tensor, *, batch_statistics: bool) -> FloatArray:
        """Ask each expert in turn."""
        x = as_float(x)
        rows = [self.members[e].score.score(x, batch_statistics=batch_statistics) for e in experts]
        scores = torch.stack(rows).double().nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE)
        return np.asarray(scores.cpu())

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the answers under running statistics."""
        out: Tensor = self.members[expert].net(as_float(x))
        return out.nan_to_num()

    @torch.no_grad()
    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Ask the score for its parts, and the net for its answers and features."""
        member, x = self.members[expert], as_float(x)
        features, logits = features_and_logits(member.net, x)
        arrays = (member.score.parts(x), logits.nan_to_num(), features.nan_to_num())
        return Evidence(*(np.asarray(a.double().cpu()) for a in arrays))


def resolve_device(name: str) -> str:
    """Return the device that `auto` stands for, or the name itself if torch can use it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: got {name!r}, expected auto, cpu or a usable cuda device ({reason})") from None
    return name


@dataclass
class _Member:
    net: nn.Module
    optimiser: torch.optim.Optimizer
    score: Score
