"""Scenarios: tasks and their order in the stream. Only runners and evaluators have access to task numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import Protocol

import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.transforms import AsIs, Flatten

Draw = tuple[int, Tensor]
"""A task, and the positions of the training rows that form a batch."""


class Prepare(Protocol):
    """Transforms rows of a data set to a task's inputs, on the device, batch by batch."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return the inputs."""


@dataclass(frozen=True)
class Source:
    """All original rows of one part of a data set; tasks refer to them by index."""

    x: Tensor
    y: Tensor

    def to(self, device: torch.device) -> Source:
        """Return the same rows on `device`."""
        return Source(self.x.to(device), self.y.to(device))


@dataclass(frozen=True)
class Part:
    """The training or test rows of a task: indices into a source, and how to derive inputs and labels from them."""

    source: Source
    rows: Tensor
    prepare: Prepare
    label_offset: int = 0
    """Labels are global: a second data set's classes come after the first one's."""

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, positions: Tensor) -> Batch:
        """Return the rows at these positions of the part."""
        rows = self.rows[positions.to(self.rows.device)]
        return Batch(self.prepare(self.source.x[rows]), self.source.y[rows] + self.label_offset)

    def as_images(self) -> Part:
        """Return the part with images that are not flattened to rows."""
        return replace(self, prepare=AsIs()) if isinstance(self.prepare, Flatten) else self

    def whole(self) -> Batch:
        """Return all rows at once."""
        return self.batch(torch.arange(len(self)))

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all rows in order, in batches of `size`, the last partial one included."""
        for positions in torch.split(torch.arange(len(self)), size):
            yield self.batch(positions)


@dataclass(frozen=True)
class Task:
    """A distribution of inputs and labels. Labels are global: two tasks share one only if they share the class."""

    train: Part
    test: Part
    name: str
    domain: str = ""
    """Kind of data, if a scenario mixes several."""


@dataclass(frozen=True)
class Visit:
    """A segment of the stream that belongs to one task."""

    task: int
    length: float = 1.0
    """Factor on the number of epochs."""


@dataclass(frozen=True)
class Scenario:
    """Tasks, and the sequence of visits that forms the stream."""

    tasks: tuple[Task, ...]
    visits: tuple[Visit, ...]
    """A task that recurs is visited more than once."""
    classes: int
    blend: int = 0
    """Batches over which one visit fades into the next. The paper assumes 0, hard boundaries."""

    @classmethod
    def in_order(cls, tasks: tuple[Task, ...], classes: int) -> Scenario:
        """Visit each task once."""
        return cls(tasks, tuple(Visit(t) for t in range(len(tasks))), classes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.tasks[0].train.batch(torch.arange(1)).x.shape[1:])

    @property
    def images(self) -> int:
        """Number of distinct training rows; tasks may share them."""
        parts = [task.train for task in self.tasks]
        sources = {id(part.source): part.source for part in parts}.values()
        rows = [torch.cat([part.rows for part in parts if part.source is source]) for source in sources]
        return sum(int(torch.unique(own).numel()) for own in rows)

    def as_images(self) -> Scenario:
        """Return the scenario with images that are not flattened to rows."""
        return replace(
            self, tasks=tuple(replace(t, train=t.train.as_images(), test=t.test.as_images()) for t in self.tasks)
        )

    def batches(self, batch_size: int, epochs: int) -> int:
        """Return the length of the stream in batches."""
        return self.visit_ends(batch_size, epochs)[-1]

    def visit_ends(self, batch_size: int, epochs: int) -> list[int]:
        """Return the step at which each visit ends; blended ones end up to `blend` batches later."""
        cuts = [len(_cuts(len(self.tasks[v.task].train), batch_size)) for v in self.visits]
        return list(accumulate(_epochs(v, epochs) * n for v, n in zip(self.visits, cuts, strict=True)))

    def stream(self, batch_size: int, epochs: int, keys: Keys, start: int = 0) -> Iterator[tuple[int, Batch]]:
        """Yield (task, batch) from step `start`; reshuffled each epoch, partial batches of more than one row kept."""
        for task, positions in islice(self.schedule(batch_size, epochs, keys), start, None):
            yield task, self.tasks[task].train.batch(positions)

    def schedule(self, batch_size: int, epochs: int, keys: Keys) -> Iterator[Draw]:
        """Yield (task, positions of its rows) of every batch, in the order of the stream."""
        if not self.blend:
            for number in range(len(self.visits)):
                yield from self._visit(number, batch_size, epochs, keys)
            return
        yield from self._blended(batch_size, epochs, keys)

    def _visit(self, number: int, batch_size: int, epochs: int, keys: Keys) -> Iterator[Draw]:
        visit = self.visits[number]
        train = self.tasks[visit.task].train
        for epoch in range(_epochs(visit, epochs)):
            order = torch.from_numpy(keys.rng("shuffle", number, epoch).permutation(len(train))).to(train.rows.device)
            for start, stop in _cuts(len(train), batch_size):
                yield visit.task, order[start:stop]

    def _blended(self, batch_size: int, epochs: int, keys: Keys) -> Iterator[Draw]:
        """Swap the first `blend` batches of a visit with the last ones of the previous visit, at random.

        The probability of the new task increases over the overlap. No batch is lost or repeated.
        """
        held: list[Draw] = []
        for number in range(len(self.visits)):
            for position, item in enumerate(self._visit(number, batch_size, epochs, keys)):
                if held and position < self.blend:
                    chance = (position + 1) / (self.blend + 1)
                    new = keys.rng("blend", number, position).random() < chance
                    yield item if new else held.pop(0)
                    if not new:
                        held.append(item)
                    continue
                held.append(item)
                if len(held) > self.blend:
                    yield held.pop(0)
        yield from held


def recur(scenario: Scenario, visits: tuple[int, ...]) -> Scenario:
    """Visit the tasks in this order."""
    return replace(scenario, visits=tuple(Visit(t) for t in visits))


def revisit(scenario: Scenario, visits: str) -> Scenario:
    """Visit the tasks as specified: their numbers in order, each optionally with a colon and a factor on its epochs."""
    made = []
    for word in visits.split():
        number, _, length = word.partition(":")
        try:
            visit = Visit(int(number), float(length or 1))
        except ValueError:
            raise ValueError(f"visits: got {word!r}, expected a task's number, or number:factor") from None
        if not 0 <= visit.task < len(scenario.tasks) or not 0 < visit.length <= 1000:
            raise ValueError(
                f"visits: got {word!r}, expected a task from 0 to {len(scenario.tasks) - 1}, factor above 0"
            )
        made.append(visit)
    if not made:
        raise ValueError(f"visits: got {visits!r}, expected numbers of tasks")
    return replace(scenario, visits=tuple(made))


def mix(first: Scenario, second: Scenario, *, shared_labels: bool = False) -> Scenario:
    """Alternate the visits of two scenarios; their labels are disjoint unless they are to be shared."""
    offset = 0 if shared_labels else first.classes
    shifted = tuple(
        replace(
            task,
            train=replace(task.train, label_offset=task.train.label_offset + offset),
            test=replace(task.test, label_offset=task.test.label_offset + offset),
        )
        for task in second.tasks
    )
    if first.shape != second.shape:
        raise ValueError(f"mix: got inputs of shapes {first.shape} and {second.shape}, expected the same")
    later = tuple(replace(v, task=v.task + len(first.tasks)) for v in second.visits)
    longest = max(len(first.visits), len(later))
    visits = [v[i] for i in range(longest) for v in (first.visits, later) if i < len(v)]
    return Scenario(first.tasks + shifted, tuple(visits), max(first.classes, offset + second.classes))


def _epochs(visit: Visit, epochs: int) -> int:
    return max(1, round(visit.length * epochs))


def _cuts(rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch.

    >>> _cuts(7, 3), _cuts(8, 3)
    ([(0, 3), (3, 6)], [(0, 3), (3, 6), (6, 8)])
    """
    cuts = [(start, min(start + batch_size, rows)) for start in range(0, rows, batch_size)]
    return [c for c in cuts if c[1] - c[0] > 1] or cuts
