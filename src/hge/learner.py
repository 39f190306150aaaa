"""ALGORITHM 1: Gated Experts. Reads beside the paper's pseudocode; docs/paper.md lists every deviation."""

from __future__ import annotations

from dataclasses import dataclass

from hge.config import LearnerConfig
from hge.events import (
    BatchSetAside,
    Emit,
    ExpertChanged,
    ExpertCreated,
    ExpertPromoted,
    LossReviewed,
    OutlierSettled,
)
from hge.expert import Expert, Replay
from hge.gate import Routes, Tree
from hge.keys import Keys
from hge.pool import ExpertPool
from hge.promotion import Probation, promote_flat
from hge.switch import LossStats, RecentBuffer, RecentEntry, z_score
from hge.types import Batch


@dataclass(frozen=True)
class Choice:
    """An expert that was asked for a batch, and the batch's loss on it."""

    expert: Expert
    loss: float
    bound: float
    queried: int = 0
    """Number of experts whose score was computed to get here."""

    @property
    def accepts(self) -> bool:
        """The loss is within the expert's bound."""
        return self.loss <= self.bound


@dataclass(frozen=True)
class Step:
    """What became of one batch: the trace that reports are drawn from."""

    step: int
    expert: int
    """Who was trained on it or, if it was set aside, who refused it."""
    loss: float
    bound: float
    set_aside: bool
    queried: int
    trained: tuple[tuple[int, int], ...]
    """(step of a batch, expert) for all training of this step, older batches included."""


class Learner:
    """Learns a stream of batches, growing an expert when the data change. It is never told a task."""

    def __init__(self, config: LearnerConfig, pool: ExpertPool, keys: Keys, emit: Emit) -> None:
        self.config = config
        self.pool = pool
        self.keys = keys
        self.emit = emit
        self.experts: list[Expert] = []
        self.tree = Tree()
        """E, the promoted experts."""
        self.newcomers: dict[int, Probation] = {}
        """E_new, the experts on probation."""
        self.recent: RecentBuffer[Batch] = RecentBuffer(config.recent_capacity)
        """R."""
        self.steps = 0
        self.last_used = 0
        self._trained: list[tuple[int, int]] = []
        promote_flat(self.tree, self._new_expert().id)

    def learn(self, batch: Batch) -> Step:
        """Learn one batch of the stream, and say what became of it."""
        entry = RecentEntry(self.steps, batch.to(self.pool.device))
        self._trained = []
        choice = self._ge(entry)
        set_aside = choice.expert.id != entry.expert
        self.steps += 1
        return Step(
            entry.step,
            choice.expert.id,
            choice.loss,
            choice.bound,
            set_aside,
            choice.queried,
            tuple(self._trained),
        )

    def _ge(self, entry: RecentEntry[Batch]) -> Choice:
        """GE (Algorithm 1), for the batch in `entry`."""
        self.recent.append(entry)
        best = self._forward(entry)
        if not best.accepts:
            newcomer = self._accepting_newcomer(entry, best)
            if newcomer is not None:
                self._record_probation(newcomer, best, entry)
                self._train(newcomer.expert, entry)
                self._promote_if_ready(newcomer.expert)
                best = newcomer
            else:
                self.emit(BatchSetAside(entry.step, best.expert.id, best.loss, best.bound))
        else:
            self._train(best.expert, entry)

        # Process outliers
        if not self.recent.full:
            return best
        last = self.recent.oldest
        if last.high_loss:
            previous = self.experts[self.recent.previous_expert]
            self._train(previous, last)
            self.emit(OutlierSettled(self.steps, last.step, previous.id))
        self.recent.popleft()

        # Detect task switches
        if self.recent.all_high_loss:
            self._review()
        return best

    def _review(self) -> None:
        """The last part of Algorithm 1: the loss stays high. Another task, or has training become unstable?"""
        entries = list(self.recent)
        last = self.experts[self._gate(entries[0]).expert[0]]
        if not self.config.review or self._losses_differ(last, entries):
            expert = self._new_expert()
            self.newcomers[expert.id] = Probation(self.config.promotion_window)
            self.emit(ExpertCreated(self.steps, expert.id, len(entries)))
        else:
            expert = last
        for entry in entries:
            self._train(expert, entry)
        self.recent.clear()

    def _forward(self, entry: RecentEntry[Batch]) -> Choice:
        """GE_forward: the promoted expert with the lowest score; or, if sticky, the last-used one while it accepts."""
        if self.config.sticky and self.last_used not in self.newcomers:
            choice = self._look(self.last_used, entry)
            if choice.accepts:
                return choice
        routes = self._gate(entry)
        return self._look(int(routes.expert[0]), entry, queried=int(routes.queried[0]))

    def _gate(self, entry: RecentEntry[Batch]) -> Routes:
        """Route a batch, as one group, by its mean score."""
        x = entry.batch.x
        return self.tree.select(lambda ids: self.pool.scores(ids, x, batch_statistics=True).mean(axis=1, keepdims=True))

    def _accepting_newcomer(self, entry: RecentEntry[Batch], best: Choice) -> Choice | None:
        """The newcomer whose bound the loss is within; of several, the one with the lowest loss."""
        choices = [self._look(expert, entry, best.queried) for expert in self.newcomers]
        return min((c for c in choices if c.accepts), key=lambda c: c.loss, default=None)

    def _losses_differ(self, expert: Expert, entries: list[RecentEntry[Batch]]) -> bool:
        """Z-test (Section 3.1): are the losses on R different from those on the expert's replay?"""
        replay = [self.pool.loss(expert.id, batch, self.steps) for batch in expert.replay.batches]
        recent = [self.pool.loss(expert.id, entry.batch, entry.step) for entry in entries]
        z, threshold = z_score(replay, recent), self.config.review_threshold
        means = [sum(losses) / len(losses) for losses in (replay, recent)]
        self.emit(LossReviewed(self.steps, expert.id, z, threshold, means[0], means[1], new_task=z > threshold))
        return z > threshold

    def _record_probation(self, newcomer: Choice, best: Choice, entry: RecentEntry[Batch]) -> None:
        """Compare the scores, before the newcomer is trained on the batch (docs/paper.md, reading 4)."""
        ids = (newcomer.expert.id, best.expert.id)
        own, other = self.pool.scores(ids, entry.batch.x, batch_statistics=True).mean(axis=1)
        self.newcomers[newcomer.expert.id].record(bool(own < other))

    def _promote_if_ready(self, expert: Expert) -> None:
        probation = self.newcomers[expert.id]
        if probation.passed(self.config.promotion_rate):
            del self.newcomers[expert.id]
            node = promote_flat(self.tree, expert.id)
            self.emit(ExpertPromoted(self.steps, expert.id, probation.rate, self.tree.nodes[node].parent))

    def _look(self, expert: int, entry: RecentEntry[Batch], queried: int = 0) -> Choice:
        """Compare the batch's loss on an expert with the expert's bound; train nobody."""
        member = self.experts[expert]
        loss = self.pool.loss(expert, entry.batch, entry.step)
        return Choice(member, loss, member.losses.bound(self.config.epsilon), queried)

    def _train(self, expert: Expert, entry: RecentEntry[Batch]) -> None:
        """Train on a batch, now or after it waited in R; its loss joins the statistics, the batch the replay."""
        loss = self.pool.train(expert.id, entry.batch, entry.step)
        expert.losses.update(loss)
        expert.replay.add(entry.batch, self.keys.integer("replay", step=entry.step, expert=expert.id))
        entry.expert = expert.id
        self._trained.append((entry.step, expert.id))
        # An outlier that waited in R goes to the expert of its own time, which may no longer be in use.
        if entry.step == self.steps and expert.id != self.last_used:
            self.emit(ExpertChanged(self.steps, self.last_used, expert.id))
            self.last_used = expert.id

    def _new_expert(self) -> Expert:
        config = self.config
        expert = Expert(
            len(self.experts),
            LossStats(config.alpha, config.signed_deviation),
            Replay(config.replay_capacity),
        )
        self.pool.create(expert.id)
        self.experts.append(expert)
        return expert
