"""Accuracy as the stream goes on: of batches before they are learned, and of all tasks after each visit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hge.core.types import Batch
from hge.data.scenarios import Task
from hge.experiments.metrics import evaluate
from hge.learning.online import Answers, Routing

POINTS = 200
"""Batches that are answered before they are learned, at the most."""


@dataclass
class Tracker:
    """Stops the stream now and then and asks; the learner does not notice."""

    total: int
    """Batches of the stream."""
    ends: Sequence[int]
    """Steps at which the visits end."""
    routing: Routing
    batch_size: int
    """Of test batches."""
    prequential: list[tuple[int, float]] = field(default_factory=list)
    """(step, accuracy) of a batch that the learner had not seen yet, in percent."""
    after_visits: list[list[float]] = field(default_factory=list)
    """Accuracy of every task after each visit, in percent."""

    def until_stop(self, step: int) -> int:
        """Return how many batches may pass before the next stop.

        >>> Tracker(1000, (500, 1000), "sample", 32).until_stop(498)
        2
        """
        next_end = self.ends[bisect_right(self.ends, step)] if step < self.ends[-1] else self.total
        return min(self._every - step % self._every, next_end - step)

    def wants(self, step: int) -> bool:
        """Should the batch of this step be answered before it is learned?"""
        return step > 0 and step % self._every == 0

    def answer(self, step: int, batch: Batch, answerer: Answers, classes: int) -> None:
        """Answer a batch that is yet to be learned."""
        routes = answerer.route(batch.x, self.routing)
        right = answerer.probabilities(batch.x, routes, classes).argmax(axis=1) == batch.y.cpu().numpy()
        self.prequential.append((step, round(100 * float(right.mean()), 2)))

    def test(self, step: int, answers: Sequence[Answers], tasks: Sequence[Task], classes: int) -> None:
        """After a visit: test all tasks, those that are yet to come too."""
        over = bisect_right(self.ends, step)
        if len(self.after_visits) < over:
            nobody: list[set[int]] = [set() for _ in tasks]
            figures = evaluate(answers, tasks, nobody, classes, self.routing, self.batch_size)
            # More than one visit may be over where the batches of one were bad.
            row = [round(accuracy, 2) for accuracy in figures.by_task]
            self.after_visits += [row] * (over - len(self.after_visits))

    def as_json(self) -> dict[str, Any]:
        """Return what was found so far."""
        return {
            "routing": self.routing,
            "ends": list(self.ends),
            "prequential": self.prequential,
            "after_visits": self.after_visits,
        }

    def go_on(self, found: dict[str, Any]) -> None:
        """Take over what `as_json` gave."""
        self.prequential = [(step, accuracy) for step, accuracy in found["prequential"]]
        self.after_visits = found["after_visits"]

    @property
    def _every(self) -> int:
        return max(1, -(-self.total // POINTS))


def can_be_drawn(result: Mapping[str, Any]) -> bool:
    """Was a run followed until there was something to see? One that ran away may have ended before."""
    tracked = result.get("tracked")
    return bool(tracked and tracked["prequential"] and tracked["after_visits"])


def forgetting(after_visits: Sequence[Sequence[float]], visited: Sequence[int]) -> float | None:
    """Return the mean over tasks of how far the last accuracy is below the best one that there was after its visits.

    >>> forgetting([[90, 0], [80, 70]], visited=[0, 1])
    10.0
    """
    falls = []
    for task in dict.fromkeys(visited[:-1]):
        own = [row[task] for row in after_visits[visited.index(task) :]]
        if len(own) > 1:
            falls.append(max(own[:-1]) - own[-1])
    return float(np.mean(falls)) if falls else None


def average_incremental_accuracy(after_visits: Sequence[Sequence[float]], visited: Sequence[int]) -> float:
    """Return the mean over visits of the mean accuracy of the tasks seen until then.

    >>> average_incremental_accuracy([[90, 0], [80, 70]], visited=[0, 1])
    82.5
    """
    means = [np.mean([row[task] for task in set(visited[: n + 1])]) for n, row in enumerate(after_visits)]
    return float(np.mean(means))
