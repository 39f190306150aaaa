"""Cost of a change of task beyond the training steps: back to a known expert, and to a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from hge.bench.measure import Plan, Spread, take_turns
from hge.bench.population import Population, Subject
from hge.bench.stream import SyntheticTask
from hge.core.types import Batch
from hge.learning.learner import Learner

STAY = 4
"""Batches between two changes of task."""
NEW_STAY = 40
"""Batches of a new task: R is filled, reviewed, and learned by a new expert; then training continues as usual."""
LEARNED = 100
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
class Course:
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
    here, there = (Endless(population.task(number, batches=EPOCH)) for number in (size - 1, size - 2))
    staying, known, new = (Course(population.learner) for _ in range(3))

    def stay(batches: int) -> None:
        staying.learn(here.take(batches))

    def change(batches: int) -> None:
        stays = (task.take(STAY) for _ in range(batches // STAY // 2) for task in (there, here))
        known.learn(chain.from_iterable(stays))

    def discover() -> None:
        new.learn(population.task(population.size, batches=NEW_STAY).batches(0, NEW_STAY))

    def settle() -> None:
        # An undertrained newcomer would also accept the next new task; and every turn must start from the same expert.
        newest = population.size - 1
        population.teach(newest, population.task(newest, batches=LEARNED).batches(0, LEARNED))
        population.teach(size - 1, here.take(1))

    for expert, task in ((size - 2, there), (size - 1, here)):
        population.teach(expert, task.take(LEARNED))
    pace = take_turns({"stay": partial(stay, plan.warm_up)}, 1, device)["stay"][0] / plan.warm_up
    batches = 2 * STAY * max(1, round(plan.turn_seconds / pace / (2 * STAY)))
    seconds = take_turns({"stay": partial(stay, batches), "change": partial(change, batches)}, plan.repeats, device)
    seconds |= take_turns({"discover": discover, "settle": settle}, plan.repeats, device)
    per_batch = [s / batches for s in seconds["stay"]]
    for to, course, turns, length in (
        ("known", known, seconds["change"], batches),
        ("new", new, seconds["discover"], NEW_STAY),
    ):
        costs = [
            1e3 * (turn - length * step) / changes
            for turn, step, changes in zip(turns, per_batch, course.changes, strict=True)
            if changes
        ]
        yield SwitchRow(
            subject,
            size,
            to,
            Spread.of(costs) if costs else None,
            Spread.of(1e3 * s for s in per_batch),
            sum(course.changes),
            course.set_aside,
        )


@dataclass
class Endless:
    """A task's endless stream, read a few batches at a time."""

    task: SyntheticTask
    position: int = 0

    def take(self, count: int) -> Iterator[Batch]:
        """Return the next batches."""
        self.position += count
        return self.task.batches(self.position - count, count)
