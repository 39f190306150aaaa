"""All metrics of a run, defined in docs/protocol.md."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from hge.core.events import Event, ExpertCreated, ExpertPromoted
from hge.data.scenarios import Task
from hge.gating.tree import FloatArray, IntArray
from hge.learning.online import Answers, Routing, Step
from hge.learning.routing import ROWS_AT_ONCE

OWNER_SHARE = 0.1
"""An expert belongs to a task if it was trained on at least this share of the task's batches (Section 5.3)."""
CALIBRATION_BINS = 15
"""Bins of probability over which the calibration error is computed."""
RUNAWAY = 5
"""If more experts than this are created within one task, the run counts as not finished (Section 5.1)."""


@dataclass(frozen=True)
class Switches:
    """Switch detection per distinct task: a new task without a new expert is missed, any beyond the first is false."""

    found: int
    missed: int
    false: int
    delay: float | None
    """Mean number of batches from a found task's first batch to the creation of its expert."""


@dataclass
class Ledger:
    """Tracks a run using the task of each batch, which is not given to the learner.

    >>> ledger = Ledger()
    >>> ledger.observe(0, Step(0, 0, 2.3, 9.9, False, 1, trained=((0, 0),)), [])
    >>> ledger.observe(1, Step(1, 0, 9.9, 2.3, True, 1, trained=()), [ExpertCreated(step=1, expert=1, batches=19)])
    >>> ledger.switches()
    Switches(found=1, missed=0, false=0, delay=0.0)
    """

    task_of_step: list[int] = field(default_factory=list)
    trained: dict[int, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """task -> expert -> number of the task's batches that the expert was trained on."""
    created: list[tuple[int, int]] = field(default_factory=list)
    """(step, expert) of every creation, except the learner's initial expert."""
    promoted: dict[int, int] = field(default_factory=dict)
    """expert -> step of its promotion."""

    def observe(self, task: int, step: Step, events: Sequence[Event]) -> None:
        """Record one step of the run and its events, after the learner has processed it."""
        self.task_of_step.append(task)
        self.created += [(event.step, event.expert) for event in events if isinstance(event, ExpertCreated)]
        self.promoted |= {event.expert: event.step for event in events if isinstance(event, ExpertPromoted)}
        for trained_step, expert in step.trained:
            self.trained[self.task_of_step[trained_step]][expert] += 1

    def as_json(self) -> dict[str, Any]:
        """Return everything but the tasks, which can be recovered from the stream."""
        trained = {str(task): {str(e): n for e, n in counts.items()} for task, counts in self.trained.items()}
        return {"trained": trained, "created": self.created, "promoted": list(self.promoted.items())}

    @classmethod
    def from_json(cls, values: dict[str, Any], task_of_step: list[int]) -> Ledger:
        """Read a ledger returned by `as_json`."""
        ledger = cls(task_of_step, created=[(s, e) for s, e in values["created"]], promoted=dict(values["promoted"]))
        for task, counts in values["trained"].items():
            ledger.trained[int(task)] = Counter({int(e): n for e, n in counts.items()})
        return ledger

    @property
    def runaway(self) -> bool:
        """Whether more than `RUNAWAY` experts were created within one task."""
        per_task = Counter(self.task_of_step[step] for step, _ in self.created)
        return any(count > RUNAWAY for count in per_task.values())

    @property
    def promotion_delay(self) -> float | None:
        """Mean number of batches from creation to promotion, over the promoted experts."""
        delays = [self.promoted[expert] - step for step, expert in self.created if expert in self.promoted]
        return float(np.mean(delays)) if delays else None

    def switches(self) -> Switches:
        """Compare the creations with the tasks."""
        first_step = {task: step for step, task in reversed(list(enumerate(self.task_of_step)))}
        tasks = sorted(first_step, key=lambda task: first_step[task])
        steps = defaultdict(list)
        for step, _ in self.created:
            steps[self.task_of_step[step]].append(step)
        found = [t for t in tasks[1:] if steps[t]]
        expected = {t: int(t != tasks[0]) for t in tasks}  # the first task uses the initial expert
        delays = [steps[t][0] - first_step[t] for t in found]
        return Switches(
            found=len(found),
            missed=len(tasks) - 1 - len(found),
            false=sum(max(0, len(steps[t]) - expected[t]) for t in tasks),
            delay=float(np.mean(delays)) if delays else None,
        )

    def owners(self, tasks: int) -> list[set[int]]:
        """Return, for each task, the experts that belong to it."""
        batches = Counter(self.task_of_step)
        return [
            {expert for expert, count in self.trained[task].items() if count >= OWNER_SHARE * batches[task]}
            for task in range(tasks)
        ]

    def visits(self) -> list[dict[str, int]]:
        """Return the visits, i.e. maximal runs of one task: task, first step, and the step after the last."""
        task = np.array(self.task_of_step)
        edges = [0, *(np.flatnonzero(np.diff(task)) + 1).tolist(), len(task)]
        return [{"task": int(task[a]), "start": a, "stop": b} for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Figures:
    """Metrics on test data for one granularity of routing. Percentages are means over tasks."""

    accuracy: float
    gate_accuracy: float
    experts_queried: float
    routed: FloatArray
    """[tasks, experts] percentage of a task's groups routed to each expert."""
    reached: FloatArray
    """[nodes] percentage of a task's groups routed to a node of the tree or below it."""
    by_task: tuple[float, ...]
    """Accuracy of each task."""
    calibration_error: float
    """Expected calibration error of the predicted labels' probabilities, over the test rows of all tasks."""


def evaluate(
    answers: Sequence[Answers],
    tasks: Sequence[Task],
    owners: Sequence[set[int]],
    classes: int,
    routing: Routing,
    batch_size: int,
) -> Figures:
    """Test every task, routing single rows, or same-task batches as one group (including the last, partial one).

    `answers` has one entry per task, for methods that are given tasks; for others they are all the same.
    """
    rows: list[tuple[float, float, float, FloatArray, FloatArray]] = []
    confidence, right = [], []
    for answerer, task, own in zip(answers, tasks, owners, strict=True):
        experts = len(answerer.learner.experts)
        batches = list(task.test.batches(ROWS_AT_ONCE if routing == "sample" else batch_size))
        routes = [answerer.route(batch.x, routing) for batch in batches]
        probabilities = np.concatenate(
            [answerer.probabilities(b.x, r, classes) for b, r in zip(batches, routes, strict=True)]
        )
        chosen: IntArray = np.concatenate([r.expert for r in routes])
        labels = torch.cat([batch.y for batch in batches]).cpu().numpy()
        correct: npt.NDArray[Any] = probabilities.argmax(axis=1) == labels
        confidence.append(probabilities.max(axis=1))
        right.append(correct)
        rows.append(
            (
                100 * float(correct.mean()),
                100 * float(np.isin(chosen, list(own)).mean()),
                float(np.concatenate([r.queried for r in routes]).mean()),
                100 * np.bincount(chosen, minlength=experts) / len(chosen),
                answerer.learner.tree.reached(np.concatenate([r.node for r in routes])),
            )
        )
    accuracy, gate, queried, routed, reached = zip(*rows, strict=True)
    return Figures(
        float(np.mean(accuracy)),
        float(np.mean(gate)),
        float(np.mean(queried)),
        np.stack(routed),
        np.mean(reached, axis=0),
        accuracy,
        expected_calibration_error(np.concatenate(confidence), np.concatenate(right)),
    )


def expected_calibration_error(confidence: FloatArray, right: npt.NDArray[Any]) -> float:
    """Return the mean distance, in points, of confidence from accuracy over equally wide bins of confidence.

    >>> expected_calibration_error(np.array([1.0, 1.0, 0.5, 0.5]), np.array([True, True, True, False]))
    0.0
    >>> expected_calibration_error(np.array([1.0, 1.0, 0.5, 0.5]), np.array([True, False, True, False]))
    25.0
    >>> expected_calibration_error(np.array([1.0, 0.0]), np.array([False, True]))  # opposite errors do not cancel
    100.0
    """
    number = np.minimum((confidence * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
    return float(100 * np.abs(np.bincount(number, weights=confidence - right)).sum() / len(right))
