"""The experts' networks behind one interface (loss, training, scores, prediction), and its reference implementation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import isfinite, nan
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hge.core.config import OptimiserConfig, Precision, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch, as_float
from hge.experts.augment import draw_changes, flip_and_crop
from hge.experts.features import features_and_logits
from hge.experts.joint.model import Evidence
from hge.experts.networks import AutoencoderFactory, NetFactory, Shape
from hge.experts.optim import (
    arithmetic,
    autocast,
    build_optimiser,
    check_state,
    gradients,
    has_batch_norm,
    mode_of,
    multiply_adds,
    state_of,
)
from hge.experts.scaling import Standardise
from hge.experts.scores import UNSUITABLE, Cost, Pupil, Score, Space, build_score
from hge.experts.weight_average import Average
from hge.gating.switch_detection import LossStats
from hge.gating.tree import FloatArray, IntArray, ScoreExperts

COUNTS = ("rows", "rows_at_refresh")


@dataclass(frozen=True)
class Costs:
    """Multiply-adds per row of a pool's operations."""

    network: float
    """One forward pass of one expert's network: an "expert-equivalent"."""
    score: Cost
    sketch: Cost


class ExpertPool(Protocol):
    """The interface between the algorithm and the networks. `tests/pool_checks.py` defines its contract."""

    @property
    def device(self) -> torch.device:
        """Device of the networks, to which batches are moved."""

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether the score of a batch differs from the mean of its rows' individual scores."""

    @property
    def asks_all_at_once(self) -> bool:
        """Whether scoring all experts at once is faster than scoring some of them in turn."""

    @property
    def scores_are_costly(self) -> bool:
        """Whether scores are computed by a network, unlike sketches."""

    def create(self, expert: int) -> None:
        """Add an untrained expert under the next free id."""

    def settle(self) -> None:
        """Do the work that the first expert's score has deferred until there are more rows."""

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the loss that a training step would report, and change nothing."""

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Train the expert and its score on the batch; return the loss before the update.

        If the loss or its gradient is not finite, nothing is trained and NaN is returned.
        """

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        below: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Train on consecutive (step, batch) items while the expert accepts them; yield the losses.

        A batch is accepted if the loss is within the bound and, for each pair of experts in `below`, the first has a
        lower score than the second, so that the gate would choose this expert. The first batch that is refused or that
        cannot be trained ends the run: no loss is yielded for it or for any later one, though some may already have
        been taken from `items`.
        The caller must update `losses`, which must have at least two, with every loss yielded.
        """

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts, rows] of individual rows; lower is more suitable.

        They are finite: NaN and infinities become `UNSUITABLE`.
        """

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts] of a batch as a whole: the mean over its rows, with batch statistics."""

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Return cheap scores [experts, rows], or [experts] for all rows together, that indicate the best few."""

    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the expert's logits [rows, outputs]; also finite."""

    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Return the expert's evidence on individual rows: the inputs of the joint score."""

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Return copies of the expert's tensors by name, on the CPU or in place; names are the same in every pool."""

    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Restore an expert from what `state` returned; raise a ValueError, before any change, if it does not fit."""

    def shared_state(self) -> dict[str, Tensor]:
        """Return copies of the tensors that all experts' scores share, by name."""

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `shared_state` returned; raise a ValueError if it does not fit."""

    def costs(self) -> Costs:
        """Count multiply-adds."""

    def memory(self) -> dict[str, int]:
        """Return `bytes_per_expert`, and the bytes of all experts as `device_bytes` and `host_bytes`."""


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

    def __post_init__(self) -> None:
        if self.augment and len(self.shape) != 3:
            raise ValueError(f"augment: got inputs of shape {self.shape}, expected (channels, height, width)")

    def build_space(self, device: torch.device) -> Space:
        """Return the space that the sketches of all experts share."""
        return Space(self.shape, self.score.components, device, scaled=self.scaled and len(self.shape) == 1)

    def build(self, keys: Keys, expert: int, device: torch.device, space: Space) -> tuple[nn.Module, Score]:
        """Return an untrained expert's network and score, their weights drawn by (seed, expert)."""
        with keys.seeded("weights", expert, device=device):
            net = self.net(self.shape, self.outputs).to(device, torch.float32)
            if self.scaled:
                net = nn.Sequential(Standardise(self.shape).to(device), net)
            net.eval()
            score = build_score(
                self.score,
                self.optimiser,
                self.autoencoder,
                self.shape,
                self.outputs,
                space,
                shortlisted=self.shortlisted,
            )
            score.to(device).eval()
        for module in (*net.modules(), *score.modules()):
            if isinstance(module, _BatchNorm) and module.momentum is not None:
                module.num_batches_tracked = None  # only a cumulative average needs it
        return net, score

    def average_of(self, net: nn.Module) -> Average | None:
        """Return the moving average of a network that is used for prediction, if enabled."""
        return Average(net, self.optimiser.average) if self.optimiser.average else None

    def changes(self, keys: Keys, expert: int, step: int, rows: int, device: torch.device) -> Tensor | None:
        """Return the random changes of a batch's images for training the expert, if enabled."""
        if not self.augment:
            return None
        return draw_changes(rows, keys.generator("augment", step, expert, device=device))


class EagerPool:
    """One network after the other, without optimisations: the reference for faster pools."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device
        self.space = spec.build_space(device)
        self.members: list[_Member] = []

    @property
    def uses_batch_statistics(self) -> bool:
        """Whether the score's network has a BatchNorm."""
        return has_batch_norm(self.members[0].score)

    @property
    def asks_all_at_once(self) -> bool:
        """Experts are queried one after the other."""
        return False

    @property
    def scores_are_costly(self) -> bool:
        """Whether the score has a network."""
        return self.members[0].score.network is not None

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        assert expert == len(self.members), "experts are numbered in order of creation"
        net, score = self.spec.build(self.keys, expert, self.device, self.space)
        if any(share_modules(net, member.net) for member in self.members):
            raise ValueError("net: got the same module from the factory twice, expected a new one for each expert")
        optimiser = build_optimiser(self.spec.optimiser, net.parameters())
        self.members.append(_Member(net, optimiser, Pupil(score), self.spec.average_of(net)))

    def settle(self) -> None:
        """Fix the sketches' space."""
        if self.space.opening:
            pupil = self.members[self.space.owner].pupil
            pupil.score.open()
            pupil.refresh()

    @torch.no_grad()
    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss with batch statistics; running statistics are not changed."""
        net = self.members[expert].net
        with (
            self._arithmetic(),
            self._autocast(),
            self.keys.seeded("dropout", step, expert, device=self.device),
            mode_of(net, training=False, rows=len(batch), batch_statistics=True),
        ):
            return float(nn.functional.cross_entropy(net(self._changed(batch, expert, step)), batch.y))

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and train its score."""
        if self.space.open_to_others(expert):
            self.settle()
        self.space.owner = expert
        member, x = self.members[expert], as_float(batch.x)
        buffers = [(buffer, buffer.clone()) for buffer in member.net.buffers()]
        with (
            self._arithmetic(),
            self.keys.seeded("dropout", step, expert, device=self.device),
            mode_of(member.net, training=True, rows=len(batch)),
        ):
            with self._autocast():
                loss = nn.functional.cross_entropy(member.net(self._changed(batch, expert, step)), batch.y)
            member.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if not nn.utils.get_total_norm(gradients(member.net)).isfinite():
                for buffer, before in buffers:
                    buffer.copy_(before)
                return nan
            member.optimiser.step()
        if member.average is not None:
            member.average.take_in(skip=torch.zeros((), device=self.device))
        with self._arithmetic(), self._autocast():
            member.pupil.teach(x, batch.y, self.keys.generator("noise", step, expert, device=self.device))
        return float(loss.detach())

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        below: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Compute the loss of each batch before training on it."""
        for step, batch in items:
            if below and not self._in_order(below, batch.x):
                return
            if not self.loss(expert, batch, step) <= losses.bound(epsilon):
                return
            loss = self.train(expert, batch, step)
            if not isfinite(loss):
                return
            yield loss

    def _in_order(self, below: Sequence[tuple[int, int]], x: Tensor) -> bool:
        asked = sorted({expert for pair in below for expert in pair})
        scores = dict(zip(asked, self.batch_scores(asked, x), strict=True))
        return all(scores[expert] < scores[other] for expert, other in below)

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query each expert in turn."""
        return self._ask(experts, lambda score: score.score(as_float(x), batch_statistics=False))

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query each expert in turn."""
        return self._ask(experts, lambda score: score.score_together(as_float(x)))

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Query each expert in turn."""

        def sketch(score: Score) -> Tensor:
            own = {name: tensor[None] for name, tensor in score.gate_tensors().items()}
            return score.sketches(own, score.read(as_float(x)), together=together)[0]

        return self._ask(experts, sketch)

    @torch.no_grad()
    def _ask(self, experts: Sequence[int], ask: Callable[[Score], Tensor]) -> FloatArray:
        with self._arithmetic(), self._autocast():
            answers = torch.stack([ask(self.members[e].score) for e in experts]).double()
        return np.asarray(answers.nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE).cpu())

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the logits with running statistics."""
        with self._arithmetic(), self._autocast():
            out: Tensor = self.members[expert].answering(as_float(x))
        return out.float().nan_to_num()

    @torch.no_grad()
    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Return the parts of the score, the logits and the features."""
        member, x = self.members[expert], as_float(x)
        with self._arithmetic(), self._autocast():
            parts = member.score.parts(member.score.gate_tensors(), x)
            features, logits = features_and_logits(member.answering, x)
        return evidence_of(parts, logits, features)

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Return copies of the networks, the optimisers' states, and the score's row counts."""
        pupil = self.members[expert].pupil
        counts = count_tensors(pupil.rows, pupil.rows_at_refresh)
        return copied(self.members[expert].state, on_host=on_host) | counts

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy all tensors into the expert."""
        member = self.members[expert]
        check_state(tensors, member.state | count_tensors(0, 0))
        for name, tensor in member.state.items():
            tensor.copy_(tensors[name])
        member.pupil.rows, member.pupil.rows_at_refresh = (int(tensors[name]) for name in COUNTS)

    def shared_state(self) -> dict[str, Tensor]:
        """Return a copy of the sketches' space."""
        return copied(self.space.state(), on_host=True)

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the sketches' space."""
        self.space.load_state(tensors)

    def costs(self) -> Costs:
        """Count multiply-adds."""
        gates = [member.score.gate_tensors() for member in self.members]
        stacked = {name: torch.stack([own[name].detach() for own in gates]) for name in gates[0]}
        first, row = self.members[0], torch.zeros(1, *self.spec.shape, device=self.device)
        return Costs(multiply_adds(first.net, row), first.score.cost(stacked), first.score.sketch_cost(stacked))

    def memory(self) -> dict[str, int]:
        """Return the bytes of weights, statistics and optimisers' states."""
        per_expert = [member.bytes for member in self.members]
        return {"bytes_per_expert": max(per_expert, default=0), "device_bytes": sum(per_expert), "host_bytes": 0}

    def _changed(self, batch: Batch, expert: int, step: int) -> Tensor:
        changes = self.spec.changes(self.keys, expert, step, len(batch), self.device)
        return flip_and_crop(as_float(batch.x), changes)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic(self.spec.precision, self.device)

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast(self.spec.precision, self.device)


def share_modules(net: nn.Module, other: nn.Module) -> bool:
    """Return whether two networks have a module in common."""
    return not {id(module) for module in net.modules()}.isdisjoint(id(module) for module in other.modules())


def copied(tensors: Mapping[str, Tensor], *, on_host: bool) -> dict[str, Tensor]:
    """Return copies: contiguous on the CPU, or with the same device and layout."""
    if on_host:
        return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def count_tensors(rows: int, rows_at_refresh: int) -> dict[str, Tensor]:
    """Return as tensors the number of rows a score has seen, in total and at its last refresh."""
    return dict(zip(COUNTS, (torch.tensor(rows), torch.tensor(rows_at_refresh)), strict=True))


def evidence_of(parts: Tensor, logits: Tensor, features: Tensor) -> Evidence:
    """Return an expert's evidence as arrays; finite, except for parts that carry no information."""
    arrays = (parts, logits.nan_to_num(), features.nan_to_num())
    return Evidence(*(np.asarray(array.double().cpu()) for array in arrays))


def scorer(pool: ExpertPool, experts: int, x: Tensor, *, one_group: bool, some: bool = False) -> ScoreExperts:
    """Return the function that a gate calls for scores of rows, or of all rows as one group.

    It queries the pool, or looks up the scores of all experts, computed at once. With `some`, only some experts will be
    queried.
    """

    def from_pool(ids: Sequence[int] | IntArray, groups: IntArray) -> FloatArray:
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        if one_group:
            return pool.batch_scores(ids, x)[:, None]
        return pool.scores(ids, x[torch.from_numpy(groups)])

    if some or not pool.asks_all_at_once:
        return from_pool
    known = from_pool(range(experts), np.arange(len(x)))
    return lambda ids, groups: known[np.ix_(np.asarray(ids), groups)]


def sketcher(pool: ExpertPool, x: Tensor, *, one_group: bool) -> ScoreExperts:
    """Return the function that a gate calls for sketches of rows, or of all rows as one group."""

    def sketch(ids: Sequence[int] | IntArray, groups: IntArray) -> FloatArray:
        ids = ids.tolist() if isinstance(ids, np.ndarray) else ids
        found = pool.sketches(ids, x, together=one_group)
        return found[:, None] if one_group else found[:, groups]

    return sketch


def resolve_device(name: str) -> str:
    """Return the device selected by `auto`, or the name itself if torch can use it."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device: got {name!r}, expected auto, cpu or a usable cuda device ({reason})") from None
    return name


@dataclass
class _Member:
    net: nn.Module
    optimiser: torch.optim.Optimizer
    pupil: Pupil
    average: Average | None

    @property
    def answering(self) -> nn.Module:
        """The network used for prediction."""
        return self.net if self.average is None else self.average.net

    @property
    def score(self) -> Score:
        """Its score."""
        return self.pupil.score

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name, not copied."""
        average = {} if self.average is None else self.average.state()
        own = state_of(self.net, self.optimiser, "net") | state_of(self.score, self.score.optimiser, "score")
        return own | average

    @property
    def bytes(self) -> int:
        """Bytes of the weights, the score, and both optimisers' states."""
        return sum(tensor.nbytes for tensor in self.state.values())
