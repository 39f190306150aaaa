"""ALGORITHM 1: Gated Experts. Reads beside the paper's pseudocode; docs/paper.md lists every deviation."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, compress, count, islice
from math import inf, isfinite, nan
from statistics import fmean, median

import numpy as np

from hge.core.config import LearnerConfig
from hge.core.events import (
    BatchesReclaimed,
    BatchSetAside,
    Emit,
    ExpertChanged,
    ExpertCreated,
    ExpertReused,
    LossReviewed,
    OutlierSettled,
    UpdateSkipped,
)
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.joint.calibration import Calibration
from hge.experts.pool import ExpertPool, scorer, sketcher
from hge.experts.replay import Expert, Remembered, Replay
from hge.gating.promotion import Organisation
from hge.gating.shortlist import Shortlist
from hge.gating.switch_detection import LossStats, RecentBuffer, RecentEntry, robust_z_score, z_score
from hge.gating.tree import ROOT, Routes, ScoreExperts, Tree
from hge.learning.replay_scores import ScoredReplays
from hge.learning.rollback import Guard

ONE_GROUP = np.zeros(1, np.int64)


@dataclass(frozen=True)
class Look:
    """The loss of a batch on an expert, against the expert's bound."""

    expert: Expert
    loss: float
    bound: float
    score: float = nan
    """The expert's score of the batch, where the gate computed it."""
    path: tuple[int, ...] = ()
    """The way to it through the tree, where the gate went it."""
    asked: ScoreExperts | None = None
    """Whom the gate asked, who may be asked for others' scores of the batch."""

    @property
    def accepts(self) -> bool:
        """The loss is within the expert's bound."""
        return self.loss <= self.bound

    @property
    def misfit(self) -> float:
        """The loss, to compare experts by; what is not a number fits worst."""
        return self.loss if isfinite(self.loss) else inf


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
        self.newcomers: list[int] = []
        """E_new, the experts on probation."""
        self.recent: RecentBuffer[Batch] = RecentBuffer(config.recent_capacity)
        """R."""
        self.steps = 0
        self.last_used = 0
        self.last_node = ROOT
        """Where in the tree the gate ended last."""
        self.guard = Guard(pool, emit)
        """Keeps the last good weights of the expert in training."""
        self._trained: list[tuple[int, int]] = []
        self._queried = 0
        self.evaluations = Counter[str]()
        """Scores of a batch by an expert that were computed so far, by what for."""
        self.calibration = Calibration(pool, self.experts) if config.joint else None
        """Keeps the joint score, which answers; training goes by the experts' own scores."""
        self._new_expert()
        self.replays = ScoredReplays(pool, self.experts, self.evaluations)
        costly = pool.scores_are_costly
        self.shortlist = (
            Shortlist(self.replays, emit) if config.organisation == "tree" and (costly or config.joint) else None
        )
        """Whom to ask for costly scores, or for all that the joint score wants to know."""
        self.organisation = self._build_organisation(self.shortlist if costly else None)

    @property
    def tree(self) -> Tree:
        """E, the promoted experts."""
        return self.organisation.tree

    def learn(self, batch: Batch) -> Step:
        """Learn one batch of the stream, and say what became of it."""
        return self._learn(batch.to(self.pool.device))

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order; the same as `learn` for each, but in runs that the pool can do fast.

        A few batches may have been taken from the iterable before the first of their steps comes. The learner's
        state is that of the last step which came only once the iterable has ended.
        """
        pulled: deque[Batch] = deque()
        stream = (batch.to(self.pool.device) for batch in batches)
        for batch in stream:
            pulled.append(batch)
            while pulled:
                yield from self._run(pulled, stream)
                if pulled:
                    yield self._learn(pulled.popleft())

    def end_stream(self) -> None:
        """Nothing more is known to come: let the joint score, if there is one, take in what was learned last."""
        self.pool.settle()
        if self.calibration is not None:
            self.calibration.fit()

    def _run(self, pulled: deque[Batch], stream: Iterator[Batch]) -> Iterator[Step]:
        """Algorithm 1 for a run of batches that the expert in use accepts: train, and nothing else happens.

        The run ends before the first batch that is not accepted, with the one at which R owes an outlier its training,
        or before the one at which the organisation owes its upkeep. What was pulled and not learned stays in `pulled`.
        """
        expert, config = self.experts[self.last_used], self.config
        length = self._run_length(expert)
        if not length:
            return
        below, queried = ([], 0) if config.sticky else self.tree.way_to(self.last_node)
        waiting = chain(list(pulled), pulling(stream, pulled))
        items = islice(zip(count(self.steps), waiting, strict=False), length)
        for loss in self.pool.train_run(expert.id, items, expert.losses, config.epsilon, below):
            entry = RecentEntry(self.steps, pulled.popleft(), expert.id)
            bound = expert.losses.bound(config.epsilon)
            self._trained = [(entry.step, expert.id)]
            with self.recent.whole_batch():
                self.recent.append(entry)
                self._remember(expert, entry, loss)
                if self.recent.full:
                    self._process_outlier()  # which trains at the end of a run only
                self.evaluations["gate"] += queried
                self.steps += 1
            yield Step(entry.step, expert.id, loss, bound, False, queried, tuple(self._trained))

    def _run_length(self, expert: Expert) -> int:
        """Return how many batches may pass before anything but training the expert in use can be due."""
        if expert.id in self.newcomers or expert.losses.count < 2 or not self.recent.calm:
            return 0
        if expert is not self.guard.expert:
            return 0  # it must be taken in hand first
        if not self.config.sticky and (self.organisation.shortlist is not None or not self._stands_at(expert)):
            return 0  # the gate must be asked, and a shortlist answers to the host only
        quiet = self.guard.quiet(expert)
        if self.shortlist is not None:
            quiet = min(quiet, self.shortlist.quiet(len(self.experts), self._batches_trained))
        if self.calibration is not None:
            quiet = min(quiet, self.calibration.quiet())
        return min(self.recent.until_outlier, quiet)

    def _stands_at(self, expert: Expert) -> bool:
        """Is the expert the one at which the gate ended last?"""
        return self.last_node != ROOT and self.tree.nodes[self.last_node].expert == expert.id

    def _learn(self, batch: Batch) -> Step:
        """Learn one batch that is on the pool's device."""
        entry = RecentEntry(self.steps, batch)
        self._trained, self._queried = [], 0
        with self.recent.whole_batch():
            taken = self._ge(entry)
            if self.shortlist is not None and self.shortlist.due(len(self.experts), self._batches_trained):
                self.shortlist.fit(entry.step, len(self.experts), self._batches_trained)
            if self.calibration is not None:
                self.calibration.upkeep()
            self.steps += 1
        return Step(
            entry.step,
            taken.expert.id,
            taken.loss,
            taken.bound,
            set_aside=not taken.accepts,
            queried=self._queried,
            trained=tuple(self._trained),
        )

    def _ge(self, entry: RecentEntry[Batch]) -> Look:
        """GE (Algorithm 1), for the batch in `entry`; return who took it or, if nobody did, who refused it."""
        self.recent.append(entry)
        taken = best = self._forward(entry)
        if not best.accepts:
            entry.refused_by = best.expert.id
            newcomer = self._accepting_newcomer(entry)
            if newcomer is not None:
                lower = self._scores_lower(newcomer, best)
                self._train(newcomer.expert, entry)
                self._promote_if_ready(newcomer, lower, best)
                taken = newcomer
            else:
                self.emit(BatchSetAside(entry.step, best.expert.id, best.loss, best.bound))
        else:
            self._train(best.expert, entry)

        if self.recent.full:
            self._process_outlier()

            # Detect task switches
            if self.recent.all_high_loss:
                self._review()
        return taken

    def _process_outlier(self) -> None:
        """The second part of Algorithm 1: R is full. If its oldest batch is of high loss still, it was an outlier."""
        last = self.recent.oldest
        if last.high_loss:
            previous = self.experts[self.recent.previous_expert]
            self._train(previous, last)
            self.emit(OutlierSettled(self.steps, last.step, previous.id))
        self.recent.popleft()

    def _review(self) -> None:
        """The last part of Algorithm 1: the loss stays high. Another task, or has training become unstable?"""
        entries, expert = list(self.recent), None
        if self.config.review:
            best, last = int(self._gate(entries[0])[0].expert[0]), self.recent.previous_expert
            expert = self._if_same_task(best, entries, robust=self.config.robust_review)
            if expert is None and self.config.review_last_used:  # reading 16
                if self._reclaims(last, entries):
                    return
                if last != best:
                    expert = self._if_same_task(last, entries, robust=True)
        if expert is None and len(self.experts) == self.config.max_experts:
            looks = [self._look(e.id, entries[0]) for e in self.experts]
            expert = min(looks, key=lambda look: look.misfit).expert
            self.emit(ExpertReused(self.steps, expert.id, len(entries)))
        if expert is None:
            expert = self._new_expert()
            self.newcomers.append(expert.id)
            self.organisation.created(self.steps, expert.id)
            self.emit(ExpertCreated(self.steps, expert.id, len(entries)))
        for entry in entries:
            self._train(expert, entry)
        self.recent.clear()

    def _if_same_task(self, expert: int, entries: list[RecentEntry[Batch]], *, robust: bool) -> Expert | None:
        """Return the expert, if its losses on R do not differ from those on its replay (Z-test, Section 3.1)."""
        replay, recent = (
            [self.pool.loss(expert, item.batch, item.step) for item in items]
            for items in (self.experts[expert].replay.kept, entries)
        )
        test, middle = (robust_z_score, median) if robust else (z_score, fmean)
        z, threshold = test(replay, recent), self.config.review_threshold
        # Where nothing could be trained on from the very start, there is no replay, which shows no other task.
        usual = middle(replay) if replay else nan
        self.emit(LossReviewed(self.steps, expert, z, threshold, usual, fmean(recent), new_task=z > threshold))
        return None if z > threshold else self.experts[expert]

    def _reclaims(self, expert: int, entries: list[RecentEntry[Batch]]) -> bool:
        """The expert in use learns what it accepts of R's front and was never offered: the gate was wrong.

        R stays as it is: the rest goes on waiting, as outliers or as the beginning of another task.
        """
        if self.config.sticky or expert in self.newcomers:
            return False  # it was asked first, each time
        own = [entry.refused_by != expert and self._look(expert, entry).accepts for entry in entries]
        # What is its own lies at the front, before what another task may have begun with: there one may fit by chance.
        front = max((n for n in range(1, len(own) + 1) if 2 * sum(own[:n]) > n), default=0)
        reclaimed = list(compress(entries[:front], own))
        for entry in reclaimed:
            self._train(self.experts[expert], entry)
        if reclaimed:
            self.emit(BatchesReclaimed(self.steps, expert, len(reclaimed)))
        return bool(reclaimed)

    def _forward(self, entry: RecentEntry[Batch]) -> Look:
        """GE_forward: the promoted expert with the lowest score; or, if sticky, the last-used one while it accepts."""
        last = None
        if self.config.sticky and self.last_used not in self.newcomers:
            last = self._look(self.last_used, entry)
            if last.accepts:
                return last
        routes, asked = self._gate(entry)
        self._queried = int(routes.queried[0])
        best, self.last_node = int(routes.expert[0]), int(routes.node[0])
        look = last if last is not None and last.expert.id == best else self._look(best, entry)
        return replace(look, score=float(routes.scores[best, 0]), path=self.tree.path(self.last_node), asked=asked)

    def _gate(self, entry: RecentEntry[Batch]) -> tuple[Routes, ScoreExperts]:
        """Route a batch, as one group, by its mean score; return also who was asked."""
        x, some = entry.batch.x, self.organisation.shortlist is not None
        score = scorer(self.pool, len(self.experts), x, one_group=True, some=some)
        routes = self.organisation.route(score, sketcher(self.pool, x, one_group=True), 1, rows_per_group=len(x))
        self.evaluations["gate"] += int(routes.queried[0])
        return routes, score

    def _accepting_newcomer(self, entry: RecentEntry[Batch]) -> Look | None:
        """The newcomer whose bound the loss is within; of several, the one with the lowest loss."""
        looks = [self._look(expert, entry) for expert in self.newcomers]
        return min((look for look in looks if look.accepts), key=lambda look: look.loss, default=None)

    def _scores_lower(self, newcomer: Look, best: Look) -> bool:
        """Compare the scores, before the newcomer is trained on the batch (docs/paper.md, reading 4)."""
        self.evaluations["gate"] += 1
        assert best.asked is not None
        return bool(best.asked([newcomer.expert.id], ONE_GROUP)[0, 0] < best.score)

    def _promote_if_ready(self, newcomer: Look, lower: bool, best: Look) -> None:
        if self.organisation.accepted(self.steps, newcomer.expert.id, lower, best.path):
            self.newcomers.remove(newcomer.expert.id)

    def _look(self, expert: int, entry: RecentEntry[Batch]) -> Look:
        """Compare the batch's loss on an expert with the expert's bound; train nobody."""
        member = self.experts[expert]
        loss = self.guard.loss(member, entry.batch, entry.step, self.steps)
        return Look(member, loss, member.losses.bound(self.config.epsilon))

    def _train(self, expert: Expert, entry: RecentEntry[Batch]) -> None:
        """Train on a batch, now or after it waited in R; its loss joins the statistics, the batch the replay."""
        self.guard.take(expert, self.steps)
        loss = self.pool.train(expert.id, entry.batch, entry.step)
        entry.expert = expert.id
        if isfinite(loss):
            self._remember(expert, entry, loss)
            self._trained.append((entry.step, expert.id))
        else:
            self.emit(UpdateSkipped(self.steps, expert.id, entry.step))
            self.guard.mend(expert, self.steps)
        # An outlier that waited in R goes to the expert of its own time, which may no longer be in use.
        if entry.step == self.steps and expert.id != self.last_used:
            self.emit(ExpertChanged(self.steps, self.last_used, expert.id))
            self.last_used = expert.id

    def _remember(self, expert: Expert, entry: RecentEntry[Batch], loss: float) -> None:
        expert.losses.update(loss)
        key = self.keys.integer("replay", entry.step, expert.id)
        expert.replay.add(Remembered(entry.step, entry.batch), key)

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

    @property
    def _batches_trained(self) -> int:
        return sum(expert.batches_trained for expert in self.experts)

    def _build_organisation(self, shortlist: Shortlist | None) -> Organisation:
        config, flat = self.config, self.config.organisation != "lca"
        return Organisation(
            self.replays,
            self.emit,
            config.promotion_window,
            config.promotion_rate,
            path_coverage=None if flat else config.path_coverage,
            by_replay=flat and config.promote_by_replay,
            shortlist=shortlist,
        )


def pulling(stream: Iterator[Batch], pulled: deque[Batch]) -> Iterator[Batch]:
    """Yield the stream's batches, leaving each in `pulled`, too."""
    for batch in stream:
        pulled.append(batch)
        yield batch
