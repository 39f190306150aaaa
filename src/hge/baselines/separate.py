"""Separate (Section 5.3), the upper bound: one expert per task; task ids are given in training and testing."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, count, groupby
from math import inf, isfinite, nan
from operator import itemgetter

import numpy as np
from torch import Tensor

from hge.core.events import Emit, ExpertChanged, ExpertCreated, UpdateSkipped
from hge.core.types import Batch
from hge.experts.pool import Costs, ExpertPool, count_parameters
from hge.gating.switch_detection import NO_BOUND
from hge.gating.tree import FloatArray, Routes, Tree
from hge.learning.online import Answers, Routing, Setting, Step
from hge.learning.routing import ask
from hge.learning.runs import pulling
from hge.learning.state import Snapshot, restore_shared, shared_tensors


def build(setting: Setting) -> Separate:
    """Return an untrained learner."""
    return Separate(setting.pool(), setting.emit, setting.current_task)


class Separate:
    """Trains one expert per task, given the task of each batch.

    The first expert exists from the start; each further one is created with its task. So no switch is missed or false,
    which says nothing about detection.
    """

    def __init__(self, pool: ExpertPool, emit: Emit, current_task: Callable[[], int] = lambda: 0) -> None:
        self.pool = pool
        self.emit = emit
        self.current_task = current_task
        """Returns the task of the batch drawn last from the stream."""
        self.expert_of: dict[int, int] = {}
        """task -> expert."""
        self.experts: list[int] = []
        self.batches: list[int] = []
        """Number of batches given to each expert."""
        self.newcomers: list[int] = []
        self.tree = Tree()
        self.steps = 0
        self.active = 0
        self.evaluations = Counter[str]()
        self._new_expert()

    @property
    def rows_kept(self) -> int:
        """No rows are kept."""
        return 0

    @property
    def parameters(self) -> int:
        """Number of weights and statistics of all experts; their scores are not used."""
        return count_parameters(self.pool, len(self.experts), scores=False)

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order, each with the expert of its task."""
        return self.learn_with_tasks((self.current_task(), batch) for batch in batches)

    def learn_with_tasks(self, stream: Iterable[tuple[int, Batch]]) -> Iterator[Step]:
        """Learn (task, batch) pairs in order; consecutive batches of one task are learned in fast runs."""
        for task, group in groupby(stream, key=itemgetter(0)):
            expert = self._expert_for(task)
            yield from self._learn(expert, (batch.to(self.pool.device) for _, batch in group))

    def _expert_for(self, task: int) -> int:
        if not self.expert_of:
            self.expert_of[task] = 0
        elif task not in self.expert_of:
            self.expert_of[task] = self._new_expert()
            self.emit(ExpertCreated(self.steps, self.expert_of[task], batches=0))
        expert = self.expert_of[task]
        if expert != self.active:
            self.emit(ExpertChanged(self.steps, self.active, expert))
            self.active = expert
        return expert

    def _learn(self, expert: int, batches: Iterator[Batch]) -> Iterator[Step]:
        """Train an expert regardless of the loss; a batch that cannot be trained on is skipped and starts a new run."""
        pulled: deque[Batch] = deque()
        for batch in batches:
            pulled.append(batch)
            while pulled:
                waiting = chain(list(pulled), pulling(batches, pulled))
                items = zip(count(self.steps), waiting, strict=False)
                for loss in self.pool.train_run(expert, items, NO_BOUND, epsilon=0.0):
                    pulled.popleft()
                    yield self._step(expert, loss)
                if pulled:
                    pulled.popleft()
                    self.emit(UpdateSkipped(self.steps, expert, self.steps))
                    yield self._step(expert, nan)

    def _step(self, expert: int, loss: float) -> Step:
        trained = ((self.steps, expert),) if isfinite(loss) else ()
        self.steps += 1
        self.batches[expert] += 1
        return Step(self.steps - 1, expert, loss, inf, False, 0, trained)

    def end_stream(self) -> None:
        """Do nothing: no work is deferred."""

    def costs(self) -> Costs:
        """Count multiply-adds."""
        return self.pool.costs()

    def answers(self) -> Answers:
        """Return an object that predicts test rows of the first task."""
        return self.answers_for(0)

    def answers_for(self, task: int) -> Answers:
        """Return an object that predicts test rows of a task."""
        return GivenTaskAnswers(self, task)

    def _new_expert(self) -> int:
        expert = len(self.experts)
        self.pool.create(expert)
        self.experts.append(expert)
        self.batches.append(0)
        self.tree.add(expert)
        return expert

    def snapshot(self) -> Snapshot:
        """Copy the state; must not be called while `learn_with_tasks` is running."""
        facts = {
            "steps": self.steps,
            "active": self.active,
            "expert_of": list(self.expert_of.items()),
            "experts": [{"batches": batches} for batches in self.batches],
        }
        return Snapshot(facts, shared_tensors(self.pool), [self.pool.state(expert) for expert in self.experts])

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        facts = snapshot.facts
        while len(self.experts) < len(facts["experts"]):
            self._new_expert()
        restore_shared(self.pool, snapshot)
        for expert, state in zip(self.experts, snapshot.experts, strict=True):
            self.pool.load_state(expert, state)
        self.steps, self.active, self.expert_of = facts["steps"], facts["active"], dict(facts["expert_of"])
        self.batches = [fact["batches"] for fact in facts["experts"]]


@dataclass(frozen=True)
class GivenTaskAnswers:
    """Predicts test data of one given task."""

    learner: Separate
    task: int

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Route all rows to the task's expert, or to the first expert if the task has not been in the stream."""
        groups = 1 if routing == "batch" else len(x)
        expert = np.full(groups, self.learner.expert_of.get(self.task, 0))
        scores = np.full((len(self.learner.experts), groups), inf)
        scores[expert, np.arange(groups)] = 0.0
        return Routes.flat(expert, scores)

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the chosen expert's softmax."""
        return ask(self.learner.pool, x, routes, outputs)

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return 0: there is no gate."""
        return 0.0
