"""Training: Gated Experts against the plain loop, on the same batches, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from hge.bench.measure import Plan, Spread, time_turns
from hge.bench.plain_training import Graphed, Model, Step, Trainer, arithmetic
from hge.bench.population import LEARNING_RATE, LeftOut, Population, Subject
from hge.bench.stream import CLASSES, SyntheticTask
from hge.core.types import Batch
from hge.learning.learner import Learner

EPOCH = 128
"""Batches of the timed task before its rows repeat."""
MIN_BATCHES = 10
MAX_TURN_FACTOR = 2.0
"""Longest time that the slowest loop may take, in multiples of the length of a turn."""


@dataclass(frozen=True)
class StepRow:
    """Time of a loop per batch, for a given number of experts."""

    subject: Subject
    experts: int
    loop: str
    """plain eager, plain graphed, GE sticky or GE literal."""
    milliseconds: Spread
    ratio_to_eager: Spread
    """The eager plain loop's time for the same batches over this one's: 1 is as fast, lower is slower."""
    ratio_to_graphed: Spread | None
    batches: int
    """Timed batches, over all turns."""
    set_aside: int
    """Number of these that were refused, and set aside for review."""
    created: int
    """Experts created during the timed turns."""


def measure_steps(
    subject: Subject, experts: Sequence[int], plan: Plan, report: Callable[[str], None], *, literal: bool = True
) -> Iterator[StepRow | LeftOut]:
    """Yield the rows of all loops for each number of experts; Algorithm 1 exactly as written only if `literal`."""
    with arithmetic(subject.precision):
        gated = {"GE sticky": Population(subject, sticky=True)}
        gated |= {"GE literal": Population(subject, sticky=False)} if literal else {}
        for number in sorted(experts):
            report(f"steps: {subject}, {number} experts")
            for population in gated.values():
                if left_out := population.infeasible(number, plan):
                    yield left_out
                    return
                population.grow(number)
            task = gated["GE sticky"].task(number - 1, batches=EPOCH)
            loops = _plain_loops(subject, next(task.batches(0, 1)))
            loops |= {name: GatedLoop(population.learner) for name, population in gated.items()}
            yield from _time_loops(subject, number, loops, task, plan)


@dataclass
class PlainLoop:
    """The plain loop, eager or graphed."""

    step: Step
    set_aside: int = 0
    created: int = 0

    def learn(self, batches: Iterable[Batch]) -> None:
        """Train on all batches."""
        for batch in batches:
            self.step(batch.x, batch.y)


@dataclass
class GatedLoop:
    """Algorithm 1, with counts of what it does besides training."""

    learner: Learner
    set_aside: int = field(default=0, init=False)
    created: int = field(default=0, init=False)

    def learn(self, batches: Iterable[Batch]) -> None:
        """Learn all batches."""
        before = len(self.learner.experts)
        self.set_aside += sum(step.set_aside for step in self.learner.learn_all(batches))
        self.created += len(self.learner.experts) - before


Loop = PlainLoop | GatedLoop


@dataclass
class Runner:
    """A loop and its position in a task's stream: every runner gets the same batches in the same order."""

    loop: Loop
    task: SyntheticTask
    position: int = 0

    def run(self, batches: int) -> None:
        """Learn the next batches."""
        self.loop.learn(self.task.batches(self.position, batches))
        self.position += batches


def _plain_loops(subject: Subject, batch: Batch) -> dict[str, Loop]:
    model = Model(
        subject.net, subject.score, subject.autoencoder, subject.shape, CLASSES, subject.precision, LEARNING_RATE
    )
    device = torch.device(subject.device)
    loops: dict[str, Loop] = {"plain eager": PlainLoop(Trainer(model, device).step)}
    if device.type == "cuda":
        loops["plain graphed"] = PlainLoop(Graphed(Trainer(model, device), batch.x, batch.y).step)
    return loops


def _time_loops(
    subject: Subject, experts: int, loops: Mapping[str, Loop], task: SyntheticTask, plan: Plan
) -> Iterator[StepRow]:
    """Time all loops on one task's stream."""
    device, runners = subject.device, {name: Runner(loop, task) for name, loop in loops.items()}
    turns = {name: partial(runner.run, plan.warm_up) for name, runner in runners.items()}
    time_turns(turns, 1, device)
    seconds_per_batch = {name: own[0] / plan.warm_up for name, own in time_turns(turns, 1, device).items()}
    counts = _batches_per_turn(seconds_per_batch, plan)
    turns = {name: partial(runner.run, counts[name]) for name, runner in runners.items()}
    time_turns(turns, 1, device)  # not counted: the basis of a new expert is often recomputed
    for loop in loops.values():
        loop.set_aside = loop.created = 0
    times = {n: [s / counts[n] for s in own] for n, own in time_turns(turns, plan.repeats, device).items()}
    for name, loop in loops.items():
        yield StepRow(
            subject,
            experts,
            name,
            Spread.of(1e3 * s for s in times[name]),
            _ratio(times["plain eager"], times[name]),
            _ratio(times["plain graphed"], times[name]) if "plain graphed" in times else None,
            batches=counts[name] * plan.repeats,
            set_aside=loop.set_aside,
            created=loop.created,
        )


def _batches_per_turn(seconds_per_batch: Mapping[str, float], plan: Plan) -> dict[str, int]:
    """Return enough batches to fill a turn of the fastest loop, unless that takes too long for the slowest.

    On a GPU the eager loop is ten times slower, and not the baseline: it gets fewer batches.
    """
    in_time = [
        seconds
        for name, seconds in seconds_per_batch.items()
        if name != "plain eager" or "plain graphed" not in seconds_per_batch
    ]
    count = max(MIN_BATCHES, round(plan.turn_seconds * min(1 / min(in_time), MAX_TURN_FACTOR / max(in_time))))
    eager = count if "plain graphed" not in seconds_per_batch else max(MIN_BATCHES, count // 10)
    return {name: eager if name == "plain eager" else count for name in seconds_per_batch}


def _ratio(baseline: Sequence[float], own: Sequence[float]) -> Spread:
    """Return the ratio turn by turn, because a slow-down of the machine affects both loops in a turn."""
    return Spread.of(a / b for a, b in zip(baseline, own, strict=True))
