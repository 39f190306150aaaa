"""What Algorithm 1 does with one expert and one batch: compare the loss with the bound, train, remember."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from hge.core import events
from hge.core.types import Batch
from hge.experts.replay import Expert, ReplayBatch
from hge.gating.switch_detection import RecentEntry
from hge.learning.look import Look

if TYPE_CHECKING:
    from hge.learning.learner import Learner

Trained = tuple[tuple[int, int], ...]
"""(step of the batch, expert) for each training update."""


def look(learner: Learner, expert: int, entry: RecentEntry[Batch]) -> Look:
    """Compare an expert's loss on the batch with the expert's bound, without training."""
    member, config = learner.experts[expert], learner.config
    loss = learner.guard.loss(member, entry.batch, entry.step, learner.steps)
    admitted = not config.label_evidence or member.labels.admits(entry.batch.y.tolist())
    return Look(member, loss, member.losses.bound(config.epsilon), admitted)


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
    trained = train(learner, expert, entry)
    if not learner.guard.roll_back_if_collapsed(expert, learner.steps):
        return trained
    expert.replay, expert.labels = replay, labels
    return ()


def train_all(learner: Learner, expert: Expert, entries: Iterable[RecentEntry[Batch]]) -> Trained:
    """Train an expert on several batches, in order."""
    return tuple(pair for entry in entries for pair in train(learner, expert, entry))


def remember(learner: Learner, expert: Expert, entry: RecentEntry[Batch], loss: float) -> Trained:
    """Add a batch that an expert was trained on to its loss statistics and its replay."""
    expert.losses.update(loss)
    if learner.config.label_evidence:
        expert.labels.update(entry.batch.y.tolist())
    key = learner.keys.integer("replay", entry.step, expert.id)
    expert.replay.add(ReplayBatch(entry.step, entry.batch), key)
    return ((entry.step, expert.id),)
