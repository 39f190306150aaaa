"""Accuracy over the stream: of batches before they are learned, and of all tasks after each visit."""

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
"""Maximum number of batches predicted before they are learned."""


@dataclass
class Tracker:
    """Tests the learner at intervals during the stream, without affecting it."""

    total: int
    """Number of batches in the stream."""
    ends: Sequence[int]
    """Steps at which visits end."""
    routing: Routing
    batch_size: int
    """Number of rows per test batch."""
    prequential: list[tuple[int, float]] = field(default_factory=list)
    """(step, accuracy in percent) of batches predicted before they are learned."""
    after_visits: list[list[float]] = field(default_factory=list)
    """Accuracy of every task after each visit, in percent."""

    def until_next_test(self, step: int) -> int:
        """Return the number of batches until the next test.

        >>> Tracker(1000, (500, 1000), "sample", 32).until_next_test(498)
        2
        """
        next_end = self.ends[bisect_right(self.ends, step)] if step < self.ends[-1] else self.total
        return min(self._every - step % self._every, next_end - step)

    def is_due(self, step: int) -> bool:
        """Return whether the batch of this step is to be predicted before it is learned."""
        return step > 0 and step % self._every == 0

    def predict(self, step: int, batch: Batch, answerer: Answers, classes: int) -> None:
        """Predict a batch before it is learned, and record the accuracy."""
        routes = answerer.route(batch.x, self.routing)
        correct = answerer.probabilities(batch.x, routes, classes).argmax(axis=1) == batch.y.cpu().numpy()
        self.prequential.append((step, round(100 * float(correct.mean()), 2)))

    def test(self, step: int, answers: Sequence[Answers], tasks: Sequence[Task], classes: int) -> None:
        """Test all tasks, including those not seen yet, if a visit has ended."""
        ended = bisect_right(self.ends, step)
        if len(self.after_visits) < ended:
            no_owners: list[set[int]] = [set() for _ in tasks]
            figures = evaluate(answers, tasks, no_owners, classes, self.routing, self.batch_size)
            # More than one visit may have ended, if all batches of one were bad.
            row = [round(accuracy, 2) for accuracy in figures.by_task]
            self.after_visits += [row] * (ended - len(self.after_visits))

    def as_json(self) -> dict[str, Any]:
        """Return the results so far."""
        return {
            "routing": self.routing,
            "ends": list(self.ends),
            "prequential": self.prequential,
            "after_visits": self.after_visits,
        }

    def load_json(self, found: dict[str, Any]) -> None:
        """Restore results returned by `as_json`."""
        self.prequential = [(step, accuracy) for step, accuracy in found["prequential"]]
        self.after_visits = found["after_visits"]

    @property
    def _every(self) -> int:
        return max(1, -(-self.total // POINTS))


def has_tracked_accuracy(result: Mapping[str, Any]) -> bool:
    """Return whether a result has tracked accuracies; a runaway run may have ended before the first."""
    tracked = result.get("tracked")
    return bool(tracked and tracked["prequential"] and tracked["after_visits"])


def forgetting(after_visits: Sequence[Sequence[float]], visited: Sequence[int]) -> float | None:
    """Return the mean over tasks of the best earlier accuracy since the task's first visit minus the last accuracy.

    >>> forgetting([[90, 0], [80, 70]], visited=[0, 1])
    10.0
    """
    drops = []
    for task in dict.fromkeys(visited[:-1]):
        own = [row[task] for row in after_visits[visited.index(task) :]]
        if len(own) > 1:
            drops.append(max(own[:-1]) - own[-1])
    return float(np.mean(drops)) if drops else None


def average_incremental_accuracy(after_visits: Sequence[Sequence[float]], visited: Sequence[int]) -> float:
    """Return the mean over visits of the mean accuracy of the tasks seen until then.

    >>> average_incremental_accuracy([[90, 0], [80, 70]], visited=[0, 1])
    82.5
    """
    means = [np.mean([row[task] for task in set(visited[: n + 1])]) for n, row in enumerate(after_visits)]
    return float(np.mean(means))
