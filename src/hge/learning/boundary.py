"""A task switch within a batch: where it is, and which expert is trained on the rows after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hge.core import events
from hge.core.types import Batch
from hge.experts.pool import class_probabilities
from hge.experts.replay import Expert
from hge.gating.switch_detection import RecentEntry, change_point
from hge.gating.tree import FloatArray
from hge.learning.training import Trained, train, train_all, train_refused

if TYPE_CHECKING:
    from hge.learning.learner import Learner


def train_outlier(learner: Learner, entry: RecentEntry[Batch]) -> Trained:
    """Train the expert in use before an outlier on it; if another one followed, that one on the rows after the switch.

    A batch with rows of two tasks is refused by the experts of both.
    """
    previous = learner.experts[learner.recent.previous_expert]
    following = learner.experts[next((e.expert for e in learner.recent if e.expert is not None), previous.id)]
    if learner.config.label_evidence and following is not previous:
        trained = _train_after_switch(learner, previous, following, entry)
        if trained is not None:
            return trained
    learner.outlier_rate.outliers += 1
    learner.emit(events.OutlierSettled(learner.steps, entry.step, previous.id))
    return train_refused(learner, previous, entry)


def train_new(learner: Learner, previous: Expert, new: Expert, entries: list[RecentEntry[Batch]]) -> Trained:
    """Train a new expert on set-aside batches; of the first one, only on the rows after the switch."""
    if not learner.config.label_evidence:
        return train_all(learner, new, entries)
    first, *others = entries
    trained = train_all(learner, new, others)
    own = _train_after_switch(learner, previous, new, first)
    return trained + (train_refused(learner, previous, first) if own is None else own)


def _train_after_switch(
    learner: Learner, previous: Expert, following: Expert, entry: RecentEntry[Batch]
) -> Trained | None:
    """Train the following expert on the rows after the switch; return None if there are none."""
    before, after = (_log_likelihood(learner, expert, entry.batch) for expert in (previous, following))
    start, batch = change_point(before, after), entry.batch
    if start == len(batch):
        return None
    if start:
        learner.emit(events.BatchDivided(learner.steps, entry.step, start, previous.id, following.id))
        # The rows before it are explained by the previous expert already; few rows would only blur its statistics.
        entry.batch = Batch(batch.x[start:], batch.y[start:])
    return train(learner, following, entry)


def _log_likelihood(learner: Learner, expert: Expert, batch: Batch) -> FloatArray:
    """Return [rows]: the logarithm of the probability that an expert gives to each label."""
    y, memory = batch.y.cpu().numpy(), learner.memory
    if memory is None:
        found = class_probabilities(learner.pool, expert.id, batch.x)
    else:
        found = memory.probabilities(expert.id, batch.x, max(memory.classes, int(y.max()) + 1))
    logarithms: FloatArray = np.log(np.maximum(found[np.arange(len(y)), y], 1e-6))
    return logarithms
