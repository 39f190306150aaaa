"""An expert without its networks: its id, loss statistics and replay buffer; and the scores of replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log

import torch
from torch import Tensor

from hge.core.config import LearnerConfig
from hge.core.types import Batch
from hge.experts.pool import ExpertPool
from hge.gating.mistakes import usual_mistakes
from hge.gating.switch_detection import LabelCounts, LossStats
from hge.gating.tree import FloatArray

YOUNG = 50
"""Batches in which an expert need not know anything yet."""


@dataclass(frozen=True, eq=False)
class ReplayBatch:
    """A batch of the replay buffer, and the step at which it arrived."""

    step: int
    batch: Batch


@dataclass
class Replay:
    """A reservoir of the batches on which the expert was trained, each kept with the same probability.

    >>> import torch
    >>> from hge.core.randomness import Keys
    >>> replay, keys = Replay(capacity=2), Keys(seed=0)
    >>> for step in range(100):
    ...     replay.add(ReplayBatch(step, Batch(torch.zeros(1, 1), torch.zeros(1))), keys.integer("replay", step))
    >>> len(replay.kept), replay.seen
    (2, 100)
    """

    capacity: int
    kept: list[ReplayBatch] = field(default_factory=list)
    seen: int = 0
    _chance: tuple[list[ReplayBatch], float] = field(default_factory=lambda: ([], log(2)), repr=False)
    """Batches, and what `chance` is for them."""

    @property
    def chance(self) -> float:
        """The loss of the best answer that ignores the inputs, the classes' frequencies; that of two classes at least.

        >>> import torch
        >>> replay = Replay(1, [ReplayBatch(0, Batch(torch.zeros(4, 1), torch.tensor([0, 1, 2, 3])))])
        >>> round(replay.chance, 3)  # log(4)
        1.386
        """
        if self._chance[0] != self.kept:
            shares = torch.cat([old.batch.y for old in self.kept]).bincount().double()
            shares = shares[shares > 0] / shares.sum()
            self._chance = list(self.kept), max(float(-(shares * shares.log()).sum()), log(2))
        return self._chance[1]

    @property
    def rows(self) -> int:
        """Number of rows in the buffer."""
        return sum(len(old.batch) for old in self.kept)

    def add(self, batch: ReplayBatch, random_integer: int) -> None:
        """Add or discard a batch, depending on the random integer (Vitter's algorithm R)."""
        self.seen += 1
        if len(self.kept) < self.capacity:
            self.kept.append(batch)
        elif (place := random_integer % self.seen) < self.capacity:
            self.kept[place] = batch


@dataclass
class Expert:
    """The learner's record of an expert; its networks are in the pool under the same id."""

    id: int
    losses: LossStats
    replay: Replay
    labels: LabelCounts = field(default_factory=LabelCounts)
    """Labels on which it was trained; counted only if labels count as evidence."""
    mistakes: LossStats = field(default_factory=usual_mistakes)
    """Shares of rows that it predicted wrongly before it learned them; only with a memory."""
    merged_into: int | None = None
    """The expert that took its place, if there is one (learning/merging.py)."""
    undone: int = 0
    """Number of batches whose training was undone by rollbacks, plus the number of rollbacks."""
    knows_nothing: bool = False
    """Whether it was at chance when it was copied last (`learning.rollback`)."""

    @classmethod
    def of(cls, config: LearnerConfig, number: int) -> Expert:
        """Return an untrained expert."""
        losses = LossStats(config.alpha, config.signed_deviation)
        return cls(number, losses, Replay(config.replay_capacity))

    @property
    def is_at_chance(self) -> bool:
        """Whether its answers are no better than the classes' frequencies, though it is no longer young."""
        return self.losses.count > YOUNG and self.losses.mean >= self.replay.chance

    @property
    def batches_trained(self) -> int:
        """Number of batches on which it was trained, undone or not; unique for each of its states."""
        return self.losses.count + self.undone


@dataclass(frozen=True)
class ScoredReplays:
    """Scores each expert's replay by a pool's experts, and counts the evaluations."""

    pool: ExpertPool
    experts: Sequence[Expert]
    evaluations: Counter[str] = field(default_factory=Counter)

    @property
    def batches_trained(self) -> int:
        """Total number of batches that experts were trained on."""
        return sum(expert.batches_trained for expert in self.experts)

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""
        return len(self.experts[owner].replay.kept)

    def batch_score(self, expert: int, owner: int, place: int) -> float:
        """Return the expert's score for a batch in the owner's replay, scored as one group."""
        self.evaluations["replay"] += 1
        return float(self.pool.batch_scores([expert], self._rows(owner, place))[0])

    def sketches(self, experts: int, owner: int, place: int) -> tuple[FloatArray, FloatArray]:
        """Return the first experts' sketch scores of a replay batch: [experts] as one group, [experts, rows] by row."""
        self.evaluations["sketches"] += experts
        rows, ids = self._rows(owner, place), range(experts)
        return self.pool.sketches(ids, rows, together=True), self.pool.sketches(ids, rows, together=False)

    def _rows(self, owner: int, place: int) -> Tensor:
        return self.experts[owner].replay.kept[place].batch.x
