"""Fast path through Algorithm 1: runs of batches that the expert in use accepts and nothing else is due."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Protocol

from hge.core.types import Batch
from hge.experts.replay import Expert
from hge.gating.switch_detection import RecentEntry
from hge.gating.tree import ROOT
from hge.learning.online import Step
from hge.learning.training import remember

if TYPE_CHECKING:
    from hge.learning.learner import Learner


class Upkeep(Protocol):
    """Work that becomes due as experts are created and trained."""

    def batches_until_due(self, experts: int, trained: int) -> int:
        """Return how many batches experts can be trained on before the work is due."""

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Do the work if it is due, given the numbers of experts and of batches they were trained on."""


def learn_in_runs(learner: Learner, batches: Iterable[Batch]) -> Iterator[Step]:
    """Learn the batches in order: in fast runs where possible, by `learn` elsewhere; the outcome is the same."""
    pulled: deque[Batch] = deque()
    stream = (batch.to(learner.pool.device) for batch in batches)
    for batch in stream:
        pulled.append(batch)
        while pulled:
            yield from _run(learner, pulled, stream)
            if pulled:
                yield learner.learn(pulled.popleft())


def pulling(stream: Iterator[Batch], pulled: deque[Batch]) -> Iterator[Batch]:
    """Yield the stream's batches, and append each to `pulled`."""
    for batch in stream:
        pulled.append(batch)
        yield batch


def _run(learner: Learner, pulled: deque[Batch], stream: Iterator[Batch]) -> Iterator[Step]:
    """Train the expert in use as long as it accepts and nothing but training is due.

    The run ends before the first batch that is not accepted, after the batch at which an outlier in R must be trained
    on, or before the batch at which an upkeep is due. Batches drawn but not learned stay in `pulled`.
    """
    expert, config = learner.experts[learner.last_used], learner.config
    length = _length(learner, expert)
    if not length:
        return
    below, queried = ([], 0) if config.sticky else learner.tree.way_to(learner.last_node)
    waiting = chain(list(pulled), pulling(stream, pulled))
    items = islice(zip(count(learner.steps), waiting, strict=False), length)
    for loss in learner.pool.train_run(expert.id, items, expert.losses, config.epsilon, below):
        entry = RecentEntry(learner.steps, pulled.popleft(), expert.id)
        bound = expert.losses.bound(config.epsilon)
        with learner.recent.whole_batch():
            learner.recent.append(entry)
            trained = remember(learner, expert, entry, loss)
            if learner.recent.full:
                trained += learner.process_outlier()  # trains only at the end of a run
            learner.evaluations["gate"] += queried
            learner.steps += 1
        yield Step(entry.step, expert.id, loss, bound, False, queried, trained)


def _length(learner: Learner, expert: Expert) -> int:
    """Return how many batches can be learned before anything but training the expert in use is due."""
    if learner.memory is not None or learner.config.label_evidence:
        return 0  # companions and rehearsal follow every batch, and labels are compared on the host
    if expert.id in learner.newcomers or expert.losses.count < 2 or learner.recent.trailing >= 2:
        return 0
    if expert.knows_nothing:
        return 0  # others are asked first
    if expert is not learner.guard.expert:
        return 0  # its state must be copied first
    if not learner.config.sticky and (learner.organisation.shortlist is not None or not _stands_at(learner, expert)):
        return 0  # the gate must be evaluated, and a shortlist is on the host only
    experts, trained = len(learner.experts), learner.replays.batches_trained
    due = [upkeep.batches_until_due(experts, trained) for upkeep in learner.upkeeps]
    return min(learner.recent.until_outlier, learner.guard.batches_until_due(expert), *due)


def _stands_at(learner: Learner, expert: Expert) -> bool:
    """Return whether the expert is the gate's last choice."""
    return learner.last_node != ROOT and learner.tree.nodes[learner.last_node].expert == expert.id
