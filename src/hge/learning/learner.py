"""ALGORITHM 1: Gated Experts. Follows the paper's pseudocode; docs/paper.md lists every deviation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import compress

from hge.core import events
from hge.core.config import LearnerConfig
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.joint.calibration import Calibration
from hge.experts.joint.discriminant import Discriminant
from hge.experts.pool import Costs, ExpertPool, count_parameters
from hge.experts.replay import Expert, ScoredReplays
from hge.gating.mistakes import Suspicion
from hge.gating.promotion import Organisation
from hge.gating.shortlist import Shortlist
from hge.gating.switch_detection import OutlierRate, RecentBuffer, RecentEntry
from hge.gating.tree import ROOT, Tree
from hge.learning.boundary import train_new, train_outlier
from hge.learning.forward import accepting, better_informed, forward, gate, nearest_experts
from hge.learning.merging import Merging
from hge.learning.online import Answers, Step
from hge.learning.review import Review, front
from hge.learning.rollback import Guard
from hge.learning.routing import Answerer
from hge.learning.runs import Upkeep, learn_in_runs
from hge.learning.state import Snapshot, restore, take_snapshot
from hge.learning.stream_memory import StreamMemory
from hge.learning.training import Look, Trained, look, train, train_all, train_refused


class Learner:
    """Learns a stream of batches and adds an expert when the data change. Task boundaries are not given."""

    def __init__(self, config: LearnerConfig, pool: ExpertPool, keys: Keys, emit: Emit) -> None:
        self.config, self.pool, self.keys, self.emit = config, pool, keys, emit
        self.experts: list[Expert] = []
        self.recent: RecentBuffer[Batch] = RecentBuffer(config.recent_capacity)
        """R."""
        self.outlier_rate = OutlierRate()
        self.steps = 0
        self.last_used = 0
        self.last_node = ROOT
        """Tree node of the gate's last choice."""
        self.suspicion = Suspicion()
        """Evidence, from rows predicted wrongly, that the task of the expert in use has changed."""
        self.limited_told = 0
        """Number of limited rows at the last event about them."""
        self.guard = Guard(pool, emit)
        """Keeps the last finite state of the expert in training."""
        self.evaluations = Counter[str]()
        """Number of batch scores computed so far, by purpose."""
        self.new_expert()
        self.replays = ScoredReplays(pool, self.experts, self.evaluations)
        costly = pool.scores_are_costly
        shortlisted = config.organisation == "tree" and (costly or config.joint)
        self.shortlist = Shortlist(self.replays, emit) if shortlisted else None
        """Selects the experts that compute costly scores, or the evidence for the joint score."""
        self.discriminant = Discriminant.of(pool) if config.discriminant else None
        """A linear model of all rows, which completes the joint score."""
        self.calibration = Calibration(pool, self.experts, self.discriminant) if config.joint else None
        """Fits the joint score, used at prediction; training uses the experts' own scores."""
        self.organisation = Organisation.of(config, self.replays, emit, self.shortlist if costly else None)
        """E and E_new."""
        merges = config.merge_experts and config.organisation == "flat" and not config.joint
        self.merging = Merging(self) if merges else None
        """Merges experts of the same task."""
        upkeeps = (self.shortlist, self.calibration, self.merging)
        self.upkeeps: list[Upkeep] = [upkeep for upkeep in upkeeps if upkeep is not None]
        self.memory = StreamMemory(config, pool, keys) if config.memory_rows else None
        """Companions of the experts, and the belief about which expert predicts next."""
        self.review = Review(pool, config, emit, self.memory)

    @property
    def active(self) -> list[Expert]:
        """The experts that were not merged into another."""
        return [expert for expert in self.experts if expert.merged_into is None]

    @property
    def tree(self) -> Tree:
        """E, the promoted experts."""
        return self.organisation.tree

    @property
    def newcomers(self) -> list[int]:
        """E_new, the experts on probation."""
        return self.organisation.newcomers

    @property
    def rows_kept(self) -> int:
        """Number of rows in memory: of the replay, in R and of the companions; a row may be in several of them."""
        kept = sum(expert.replay.rows for expert in self.experts) + sum(len(entry.batch) for entry in self.recent)
        return kept + (0 if self.memory is None else self.memory.rows_kept)

    @property
    def parameters(self) -> int:
        """Number of weights and statistics of all experts."""
        own = 0 if self.discriminant is None else self.discriminant.parameters
        return count_parameters(self.pool, len(self.experts)) + own

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order; equivalent to `learn` on each, but in runs that the pool executes fast."""
        return learn_in_runs(self, batches)

    def learn(self, batch: Batch) -> Step:
        """Learn one batch of the stream and return the outcome."""
        entry = RecentEntry(self.steps, batch.to(self.pool.device))
        with self.recent.whole_batch():
            choices = None if self.memory is None else self.memory.choices(entry.batch.x, len(self.experts))
            taken, queried, trained = self._ge(entry)
            if self.memory is not None and choices is not None:
                accepted_by, chance = None if entry.high_loss else entry.expert, self._chance_of_outliers(entry)
                self.memory.after_batch(accepted_by, choices, len(self.experts), chance)
            for upkeep in self.upkeeps:
                upkeep.after_batch(entry.step, len(self.experts), self.replays.batches_trained)
            if self.memory is not None or entry.high_loss:
                self._tell_limited_rows()
            self.steps += 1
        return Step(entry.step, taken.expert.id, taken.loss, taken.bound, not taken.accepts, queried, trained)

    @property
    def rows_limited(self) -> int:
        """Number of rows so far that were far beyond the others, and limited in training."""
        return self.pool.rows_limited + (0 if self.memory is None else self.memory.rows_limited)

    def _tell_limited_rows(self) -> None:
        rows = self.rows_limited
        if rows and rows >= 2 * self.limited_told:
            self.limited_told = rows
            self.emit(events.RowsLimited(self.steps, rows))

    def end_stream(self) -> None:
        """End the stream: finish deferred score updates, and refit the joint score if there is one."""
        self.pool.finish_deferred()
        self._tell_limited_rows()
        if self.calibration is not None:
            self.calibration.fit()

    def costs(self) -> Costs:
        """Count multiply-adds."""
        return self.pool.costs()

    def answers(self) -> Answers:
        """Return an object that predicts test rows."""
        return Answerer(self)

    def snapshot(self) -> Snapshot:
        """Copy the state; must not be called while `learn_all` is running."""
        return take_snapshot(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a state returned by `snapshot`; raise a ValueError if it does not fit."""
        restore(self, snapshot)

    def _ge(self, entry: RecentEntry[Batch]) -> tuple[Look, int, Trained]:
        """GE (Algorithm 1); return the expert that accepted the batch or, if none did, the one that rejected it."""
        self.recent.append(entry)
        trained: Trained = ()
        taken = best = forward(self, entry)
        if not best.accepts:
            entry.refused_by = best.expert.id
            newcomer = accepting(self, self.newcomers, entry)
            if newcomer is not None:
                self.evaluations["gate"] += 1
                lower = best.scores_above(newcomer.expert.id)  # before it is trained (docs/paper.md, reading 4)
                trained = train(self, newcomer.expert, entry)
                self.organisation.accepted(self.steps, newcomer.expert.id, lower, best.path)
                taken = newcomer
            elif self.config.label_evidence and (other := accepting(self, nearest_experts(self, entry), entry)):
                taken, trained = other, train(self, other.expert, entry)
            else:
                self.emit(events.BatchSetAside(entry.step, best.expert.id, best.loss, best.bound))
        else:
            taken = better_informed(self, best, entry)
            trained = train(self, taken.expert, entry)

        if best.expert.id == self.last_used and entry.expert in (None, self.last_used):
            self.suspicion.add(best.evidence)
        else:
            self.suspicion = Suspicion()

        if self.recent.full:
            trained += self.process_outlier()

            # Detect task switches
            if self.recent.all_high_loss:
                trained += self._review()
        if self._switch_is_certain():
            while not self.recent.all_high_loss:
                trained += self.process_outlier()
            trained += self._review()
        return taken, best.queried, trained

    def _switch_is_certain(self) -> bool:
        """Return whether the last batches are too many, or predicted too badly, to be outliers."""
        in_a_row, error_rate = self.recent.trailing, self.config.error_rate
        by_number = self.outlier_rate.enough(in_a_row, self.steps, error_rate)
        return by_number or (in_a_row >= 2 and self.suspicion.is_certain(error_rate))

    def _chance_of_outliers(self, entry: RecentEntry[Batch]) -> float:
        """Return the probability that batches up to this one are refused although the task has not changed."""
        known = self.experts[self.last_used].labels.admits(entry.batch.y.tolist())
        return self.outlier_rate.chance(self.recent.trailing, self.steps) if known else 0.0

    def process_outlier(self) -> Trained:
        """Second part of Algorithm 1, when R is full: if its oldest batch is still high-loss, it was an outlier."""
        last = self.recent.oldest
        trained = train_outlier(self, last) if last.high_loss else ()
        self.recent.popleft()
        return trained

    def _review(self) -> Trained:
        """Last part of Algorithm 1: decide whether a persistently high loss is a new task or unstable training."""
        entries, expert = list(self.recent), None
        if self.config.review:
            best, last = (self.experts[e] for e in (gate(self, entries[0])[0].expert[0], self.recent.previous_expert))
            expert = self.review.if_same_task(best, entries, self.steps, robust=self.config.robust_review)
            if expert is None and self.config.review_last_used:  # reading 16
                reclaimed = self._reclaim(last, entries)
                if reclaimed is not None:
                    return reclaimed
                if last is not best:
                    expert = self.review.if_same_task(last, entries, self.steps, robust=True)
        if expert is None and len(self.active) == self.config.max_experts:
            looks = [look(self, e.id, entries[0]) for e in self.active]
            expert = min(looks, key=lambda look: look.misfit).expert
            self.emit(events.ExpertReused(self.steps, expert.id, len(entries)))
        if expert is None:
            expert = self.new_expert()
            self.organisation.created(expert.id)
            self.emit(events.ExpertCreated(self.steps, expert.id, len(entries)))
            trained = train_new(self, self.experts[self.recent.previous_expert], expert, entries)
        else:
            self.outlier_rate.outliers += len(entries)
            trained = tuple(pair for entry in entries for pair in train_refused(self, expert, entry))
        self.recent.clear()
        self.suspicion = Suspicion()
        return trained

    def _reclaim(self, expert: Expert, entries: list[RecentEntry[Batch]]) -> Trained | None:
        """Train the last-used expert on batches at the front of R that it accepts but the gate sent elsewhere.

        R is unchanged: the remaining batches are outliers or the beginning of another task.
        """
        if self.config.sticky or expert.id in self.newcomers:
            return None  # every batch in R was already offered to it
        own = [entry.refused_by != expert.id and look(self, expert.id, entry).accepts for entry in entries]
        reclaimed = list(compress(entries[: front(own)], own))
        if not reclaimed:
            return None
        trained = train_all(self, expert, reclaimed)
        self.emit(events.BatchesReclaimed(self.steps, expert.id, len(reclaimed)))
        return trained

    def new_expert(self) -> Expert:
        """Add an untrained expert, neither promoted nor on probation."""
        expert = Expert.of(self.config, len(self.experts))
        self.pool.create(expert.id)
        self.experts.append(expert)
        return expert
