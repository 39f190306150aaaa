"""The interface between the algorithm and the experts' networks: losses, training, scores, logits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hge.core.types import Batch
from hge.experts.joint.model import Evidence
from hge.experts.pool_spec import PoolSpec
from hge.experts.scores import Cost
from hge.experts.scores.space import Space
from hge.gating.switch_detection import LossStats
from hge.gating.tree import FloatArray, IntArray, ScoreExperts


@dataclass(frozen=True)
class Costs:
    """Multiply-adds per row of a pool's operations."""

    network: float
    """One forward pass of one expert's network: an "expert-equivalent"."""
    score: Cost
    sketch: Cost


class ExpertPool(Protocol):
    """The interface between the algorithm and the networks. `tests/helpers/pool_checks.py` defines its contract."""

    @property
    def spec(self) -> PoolSpec:
        """Shape of inputs and outputs, and what experts are made of."""

    @property
    def device(self) -> torch.device:
        """Device of the networks, to which batches are moved."""

    @property
    def rows_limited(self) -> int:
        """Number of training rows that were too long, and were shortened; 0 if inputs are standardised."""

    @property
    def scores_all_at_once(self) -> bool:
        """Whether scoring all experts at once is faster than scoring some of them in turn."""

    @property
    def scores_are_costly(self) -> bool:
        """Whether scores are computed by a network, unlike sketches."""

    def create(self, expert: int) -> None:
        """Add an untrained expert under the next free id."""

    def finish_deferred(self) -> None:
        """Do the work that the first expert's score has deferred until there are more rows."""

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the loss that a training step would report, and change nothing."""

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Train the expert and its score on the batch; return the loss before the update.

        If the loss or its gradient is not finite, nothing is trained and NaN is returned.
        """

    def rehearse(self, expert: int, batch: Batch, step: int) -> None:
        """Take one optimiser step on rows that the expert remembers.

        Its score and all running statistics are unchanged, and so is everything if the gradient is not finite.
        """

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        ordered_pairs: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Train on consecutive (step, batch) items while the expert accepts them; yield the losses.

        A batch is accepted if the loss is within the bound and, for each pair of experts in `ordered_pairs`, the first
        has a lower score than the second, so that the gate would choose this expert. The first batch that is refused or
        that cannot be trained ends the run: no loss is yielded for it or for any later one, though some may already
        have been drawn from `items`.
        The caller must update `losses`, which must have at least two, with every loss yielded.
        """

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts, rows] of individual rows; lower is more suitable.

        They are finite: NaN and infinities become `UNSUITABLE`.
        """

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Return the scores [experts] of a batch as a whole: the mean over its rows, with batch statistics."""

    def optimism(self, expert: int) -> float:
        """Return by how much lower rows that an expert has learned score than new ones, on average; 0: not known."""

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Return cheap scores [experts, rows], or [experts] for all rows together, that indicate the best few."""

    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the expert's logits [rows, outputs]; also finite."""

    def evidence(self, experts: Sequence[int], x: Tensor) -> list[Evidence]:
        """Return the evidence of each expert on individual rows: the inputs of the joint score."""

    @property
    def space(self) -> Space:
        """The space that the sketches of all experts share."""

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


def count_parameters(pool: ExpertPool, experts: int, *, scores: bool = True) -> int:
    """Return the number of weights and statistics of all experts, without the optimisers' state.

    With `scores`, those of the scores and what they share are counted, too.
    """
    states = [pool.state(expert) for expert in range(experts)] + ([pool.shared_state()] if scores else [])
    own = ((name, tensor) for state in states for name, tensor in state.items() if ".optimiser." not in name)
    return sum(tensor.numel() for name, tensor in own if scores or name.startswith("net."))


def class_probabilities(pool: ExpertPool, expert: int, x: Tensor, outputs: int | None = None) -> FloatArray:
    """Return [rows, outputs]: the softmax of an expert's outputs, or of the first ones, in double precision."""
    return np.asarray(pool.logits(expert, x.to(pool.device))[:, :outputs].double().softmax(dim=1).cpu())


def train_one_by_one(
    pool: ExpertPool,
    expert: int,
    items: Iterable[tuple[int, Batch]],
    losses: LossStats,
    epsilon: float,
    ordered_pairs: Sequence[tuple[int, int]],
) -> Iterator[float]:
    """Do what `train_run` asks for by computing the loss of each batch before training on it."""
    queried = sorted({expert for pair in ordered_pairs for expert in pair})
    for step, batch in items:
        if ordered_pairs:
            scores = dict(zip(queried, pool.batch_scores(queried, batch.x), strict=True))
            if not all(scores[one] < scores[other] for one, other in ordered_pairs):
                return
        if not pool.loss(expert, batch, step) <= losses.bound(epsilon):
            return
        loss = pool.train(expert, batch, step)
        if not isfinite(loss):
            return
        yield loss


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

    if some or not pool.scores_all_at_once:
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


def lowest_scores(pool: ExpertPool, experts: Sequence[int], batches: Iterable[Tensor], most: int) -> list[int]:
    """Return the experts, in their order; if there are more than `most`, only those with the lowest scores."""
    if len(experts) <= most:
        return list(experts)
    scores = sum(pool.batch_scores(experts, x) for x in batches)
    return [experts[i] for i in sorted(np.argpartition(scores, most)[:most])]
