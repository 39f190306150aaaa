"""What Algorithm 1 does with one expert and one batch: compare the loss with the bound, train, remember."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from math import inf, isfinite, nan
from typing import TYPE_CHECKING

import numpy as np

from hge.core import events
from hge.core.types import Batch
from hge.experts.replay import Expert, ReplayBatch
from hge.gating.mistakes import Suspicion
from hge.gating.switch_detection import RecentEntry
from hge.gating.tree import ScoreExperts

if TYPE_CHECKING:
    from hge.learning.learner import Learner

Trained = tuple[tuple[int, int], ...]
"""(step of the batch, expert) for each training update."""
ONE_GROUP = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Look:
    """An expert's loss, bound and score for a batch, before any training."""

    expert: Expert
    loss: float
    bound: float
    admitted: bool = True
    """Whether its labels are those that the expert was trained on, and predicted as well as usual, as far as known."""
    evidence: float = 0.0
    """Evidence, from the rows that the expert predicts wrongly, that the task has changed."""
    score: float = nan
    """The expert's score for the batch, if the gate computed it."""
    path: tuple[int, ...] = ()
    """The expert's path in the tree, if the gate was evaluated."""
    ask: ScoreExperts | None = None
    """Function that scores the same batch with other experts, if the gate was evaluated."""
    queried: int = 0
    """Number of experts that the gate queried."""

    @property
    def accepts(self) -> bool:
        """Whether the loss is within the expert's bound, and the labels do not contradict it."""
        return self.admitted and self.loss <= self.bound

    @property
    def misfit(self) -> float:
        """The loss as a key for ranking experts; infinite if the loss is not finite."""
        return self.loss if isfinite(self.loss) else inf

    def scores_above(self, other: int) -> bool:
        """Return whether the score is above another expert's for the same batch; requires `ask` and `score`."""
        assert self.ask is not None
        return bool(self.ask([other], ONE_GROUP)[0, 0] < self.score)


def look(learner: Learner, expert: int, entry: RecentEntry[Batch]) -> Look:
    """Compare an expert's loss on the batch with the expert's bound, without training."""
    member, config = learner.experts[expert], learner.config
    loss = learner.guard.loss(member, entry.batch, entry.step, learner.steps)
    admitted = not config.label_evidence or member.labels.admits(entry.batch.y.tolist())
    evidence = 0.0 if learner.memory is None else learner.memory.evidence_of_change(member, entry.batch)
    suspicion = learner.suspicion if expert == learner.last_used else Suspicion()
    admitted = admitted and not suspicion.refuses(evidence)
    return Look(member, loss, member.losses.bound(config.epsilon), admitted, evidence)


def train(learner: Learner, expert: Expert, entry: RecentEntry[Batch]) -> Trained:
    """Train on a new batch or one from R; add its loss to the statistics and the batch to the replay."""
    learner.guard.watch(expert, learner.steps)
    if learner.memory is not None:
        learner.memory.learn(expert, entry.batch)
    loss = learner.pool.train(expert.id, entry.batch, entry.step)
    entry.expert = expert.id
    trained: Trained = ()
    if isfinite(loss):
        trained = remember(learner, expert, entry, loss)
        if learner.memory is not None:
            learner.memory.rehearse(expert, entry.batch, entry.step)
    else:
        learner.emit(events.UpdateSkipped(learner.steps, expert.id, entry.step))
        learner.guard.roll_back_if_broken(expert, learner.steps)
    # An outlier from R goes to the expert that was in use when it arrived, which may have changed since.
    if entry.step == learner.steps and expert.id != learner.last_used:
        learner.emit(events.ExpertChanged(learner.steps, learner.last_used, expert.id))
        learner.last_used = expert.id
    return trained


def train_refused(learner: Learner, expert: Expert, entry: RecentEntry[Batch]) -> Trained:
    """Train an expert on a batch that it refused, on trial: if it collapses, nothing of it stays."""
    learner.guard.watch(expert, learner.steps)
    learner.guard.keep(expert, learner.steps)
    replay, labels = replace(expert.replay, kept=list(expert.replay.kept)), copy(expert.labels)
    mistakes = replace(expert.mistakes)
    companion = None if learner.memory is None else learner.memory.companion_as_is(expert.id)
    trained = train(learner, expert, entry)
    if not learner.guard.roll_back_if_collapsed(expert, learner.steps):
        return trained
    expert.replay, expert.labels, expert.mistakes = replay, labels, mistakes
    if learner.memory is not None:
        learner.memory.put_back(expert.id, companion)
    if learner.discriminant is not None and trained:
        learner.discriminant.remove(entry.batch)
    return ()


def train_all(learner: Learner, expert: Expert, entries: Iterable[RecentEntry[Batch]]) -> Trained:
    """Train an expert on several batches, in order."""
    return tuple(pair for entry in entries for pair in train(learner, expert, entry))


def remember(learner: Learner, expert: Expert, entry: RecentEntry[Batch], loss: float) -> Trained:
    """Add a batch that an expert was trained on to its loss statistics and its replay."""
    expert.losses.update(loss, rising=learner.memory is not None)  # with rehearsal the loss falls within a few batches
    if learner.config.label_evidence:
        expert.labels.update(entry.batch.y.tolist())
    if learner.discriminant is not None:
        learner.discriminant.add(entry.batch)
    key = learner.keys.integer("replay", entry.step, expert.id)
    expert.replay.add(ReplayBatch(entry.step, entry.batch), key)
    return ((entry.step, expert.id),)
