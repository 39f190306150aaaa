"""Cost of a change of task beyond the training steps: back to a known expert, and to a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from hge.bench.measure import Plan, Spread, time_turns
from hge.bench.population import Population, Subject
from hge.bench.stream import SyntheticTask
from hge.core.types import Batch
from hge.learning.learner import Learner

BATCHES_PER_VISIT = 4
"""Batches between two changes of task."""
NEW_TASK_BATCHES = 40
"""Batches of a new task: R is filled, reviewed, and learned by a new expert; then training continues as usual."""
PRETRAINING_BATCHES = 100
"""Batches after which an expert knows its task well enough to refuse other tasks."""
EPOCH = 128


@dataclass(frozen=True)
class SwitchRow:
    """Cost of a change of task beyond that of the same number of batches without one."""

    subject: Subject
    experts: int
    to: str
    """known: an expert that had been trained before. new: one that is created for it."""
    milliseconds: Spread | None
    """Per change; None if the expert never changed."""
    staying_milliseconds: Spread
    """Per batch without a change, for comparison."""
    changes: int
    """Changes of expert that happened in the timed turns."""
    set_aside: int


@dataclass
class SwitchCounter:
    """A learner on a sequence of tasks; counts changes of expert, turn by turn, and refused batches."""

    learner: Learner
    changes: list[int] = field(default_factory=list)
    set_aside: int = 0

    def learn(self, batches: Iterable[Batch]) -> None:
        """Learn all batches, as one turn."""
        last, changes = self.learner.last_used, 0
        for step in self.learner.learn_all(batches):
            self.set_aside += step.set_aside
            if not step.set_aside:
                changes += step.expert != last
                last = step.expert
        self.changes.append(changes)


def measure_switches(population: Population, plan: Plan) -> Iterator[SwitchRow]:
    """Yield the cost of both kinds of change. Adds experts, so the population cannot be used again."""
    subject, device, size = population.subject, population.subject.device, population.size
    current, other = (TaskStream(population.task(number, batches=EPOCH)) for number in (size - 1, size - 2))
    staying, known, new = (SwitchCounter(population.learner) for _ in range(3))

    def stay(batches: int) -> None:
        staying.learn(current.next_batches(batches))

    def change(batches: int) -> None:
        visits = (
            task.next_batches(BATCHES_PER_VISIT)
            for _ in range(batches // BATCHES_PER_VISIT // 2)
            for task in (other, current)
        )
        known.learn(chain.from_iterable(visits))

    def switch_to_new() -> None:
        new.learn(population.task(population.size, batches=NEW_TASK_BATCHES).batches(0, NEW_TASK_BATCHES))

    def reset() -> None:
        # An undertrained newcomer would also accept the next new task; and every turn must start from the same expert.
        newest = population.size - 1
        population.train(newest, population.task(newest, batches=PRETRAINING_BATCHES).batches(0, PRETRAINING_BATCHES))
        population.train(size - 1, current.next_batches(1))

    for expert, task in ((size - 2, other), (size - 1, current)):
        population.train(expert, task.next_batches(PRETRAINING_BATCHES))
    seconds_per_batch = time_turns({"stay": partial(stay, plan.warm_up)}, 1, device)["stay"][0] / plan.warm_up
    batches = 2 * BATCHES_PER_VISIT * max(1, round(plan.turn_seconds / seconds_per_batch / (2 * BATCHES_PER_VISIT)))
    seconds = time_turns({"stay": partial(stay, batches), "change": partial(change, batches)}, plan.repeats, device)
    seconds |= time_turns({"switch_to_new": switch_to_new, "reset": reset}, plan.repeats, device)
    per_batch = [s / batches for s in seconds["stay"]]
    for to, counter, turns, length in (
        ("known", known, seconds["change"], batches),
        ("new", new, seconds["switch_to_new"], NEW_TASK_BATCHES),
    ):
        costs = [
            1e3 * (turn - length * step) / changes
            for turn, step, changes in zip(turns, per_batch, counter.changes, strict=True)
            if changes
        ]
        yield SwitchRow(
            subject,
            size,
            to,
            Spread.of(costs) if costs else None,
            Spread.of(1e3 * s for s in per_batch),
            sum(counter.changes),
            counter.set_aside,
        )


@dataclass
class TaskStream:
    """A task's endless stream, read a few batches at a time."""

    task: SyntheticTask
    position: int = 0

    def next_batches(self, count: int) -> Iterator[Batch]:
        """Return the next batches."""
        self.position += count
        return self.task.batches(self.position - count, count)
