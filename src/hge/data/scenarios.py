"""Scenarios: tasks and the order in which they stream. Only runners and evaluators see task numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from hge.keys import Keys
from hge.types import Batch


@dataclass(frozen=True)
class Task:
    """A distribution of inputs and labels. Labels are global: two tasks share one only if they share the class."""

    train: Batch
    test: Batch
    name: str
    domain: str = ""
    """What kind of data, where a scenario mixes several."""


@dataclass(frozen=True)
class Scenario:
    """Tasks, and the order in which they are visited; each visit lasts `epochs` passes over the task's data."""

    tasks: tuple[Task, ...]
    visits: tuple[int, ...]
    """Task of each visit; a task that recurs stands here more than once."""
    classes: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.tasks[0].train.x.shape[1:])

    def batches(self, batch_size: int, epochs: int) -> int:
        """Return the length of the stream in batches."""
        return sum(epochs * len(_cuts(len(self.tasks[t].train), batch_size)) for t in self.visits)

    def stream(self, batch_size: int, epochs: int, keys: Keys) -> Iterator[tuple[int, Batch]]:
        """Yield (task, batch): reshuffled each epoch, the last partial batch kept unless it has a single row."""
        for visit, task in enumerate(self.visits):
            train = self.tasks[task].train
            for epoch in range(epochs):
                order = keys.rng("shuffle", visit, epoch).permutation(len(train))
                for start, stop in _cuts(len(train), batch_size):
                    rows = torch.from_numpy(order[start:stop])
                    yield task, Batch(train.x[rows], train.y[rows])


@dataclass(frozen=True)
class ScenarioInfo:
    """A scenario that can be built, and what it is about."""

    name: str
    about: str
    tasks: int
    """Number of tasks unless the user says otherwise."""
    most_tasks: int | None
    epochs: int
    batch_size: int
    build: Callable[[int, Keys], Scenario]


def split_digits(tasks: int, keys: Keys) -> Scenario:
    """Ten digits in pairs, drawn per seed."""
    x, y = _digits()
    train, test = _split(y, keys)
    order = keys.rng("classes").permutation(10)
    made = tuple(_class_task(x, y, train, test, order[2 * t : 2 * t + 2]) for t in range(tasks))
    return Scenario(made, tuple(range(tasks)), classes=10)


def recurring_digits(tasks: int, keys: Keys) -> Scenario:
    """Split Digits whose tasks come back: A B A C B D A E C."""
    split = split_digits(tasks, keys)
    visits = tuple(t for t in (0, 1, 0, 2, 1, 3, 0, 4, 2) if t < tasks)
    return Scenario(split.tasks, visits, classes=10)


def permuted_digits(tasks: int, keys: Keys) -> Scenario:
    """All ten digits; the first task as they are, each further one with its own permutation of the pixels."""
    x, y = _digits()
    train, test = _split(y, keys)
    permutations = [np.arange(x.shape[1])]
    permutations += [keys.rng("permutation", t).permutation(x.shape[1]) for t in range(1, tasks)]
    made = tuple(
        Task(_batch(x[train][:, p], y[train]), _batch(x[test][:, p], y[test]), f"permutation {t}")
        for t, p in enumerate(permutations)
    )
    return Scenario(made, tuple(range(tasks)), classes=10)


SCENARIOS: dict[str, ScenarioInfo] = {
    info.name: info
    for info in (
        ScenarioInfo("split-digits", "8×8 digits, 2 classes a task", 5, 5, 40, 32, split_digits),
        ScenarioInfo("permuted-digits", "8×8 digits, pixels permuted per task", 10, None, 20, 32, permuted_digits),
        ScenarioInfo("recurring-digits", "split-digits in the order A B A C B D A E C", 5, 5, 40, 32, recurring_digits),
    )
}


def _digits() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    x, y = load_digits(return_X_y=True)
    return (x / 16).astype(np.float32), y.astype(np.int64)


def _split(y: npt.NDArray[np.int64], keys: Keys) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """80 % of each class for training, 20 % for testing, drawn per seed."""
    seed = keys.integer("split") % 2**32
    train, test = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=seed)
    return train, test


def _class_task(
    x: npt.NDArray[np.float32],
    y: npt.NDArray[np.int64],
    train: npt.NDArray[np.int64],
    test: npt.NDArray[np.int64],
    classes: Sequence[int] | npt.NDArray[np.int64],
) -> Task:
    own_train, own_test = (rows[np.isin(y[rows], classes)] for rows in (train, test))
    name = " and ".join(str(c) for c in sorted(classes))
    return Task(_batch(x[own_train], y[own_train]), _batch(x[own_test], y[own_test]), name)


def _batch(x: npt.NDArray[np.float32], y: npt.NDArray[np.int64]) -> Batch:
    return Batch(torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(y))


def _cuts(rows: int, batch_size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of each batch.

    >>> _cuts(7, 3), _cuts(8, 3)
    ([(0, 3), (3, 6)], [(0, 3), (3, 6), (6, 8)])
    """
    cuts = [(start, min(start + batch_size, rows)) for start in range(0, rows, batch_size)]
    return [c for c in cuts if c[1] - c[0] > 1] or cuts
