from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hge.core.events import ExpertCreated, ExpertPromoted
from hge.data.scenarios import Part, Source, Task
from hge.data.transforms import AsIs
from hge.experiments.metrics import Ledger, Switches, evaluate, expected_calibration_error
from hge.gating.tree import Routes, Tree
from hge.learning.online import Step


def ledger_of(tasks: str, created: dict[int, int], trained: dict[int, int] | None = None) -> Ledger:
    """A run in which each letter is a batch; `created`: step -> expert; `trained`: step -> expert."""
    ledger = Ledger()
    for step, letter in enumerate(tasks):
        events = [ExpertCreated(step, created[step], batches=19)] if step in created else []
        pairs = ((step, trained[step]),) if trained and step in trained else ()
        ledger.observe(ord(letter) - ord("A"), Step(step, 0, 1.0, 2.0, False, 1, pairs), events)
    return ledger


@pytest.mark.parametrize(
    ("tasks", "created", "expected"),
    [
        ("AAAA", {}, Switches(0, 0, 0, None)),
        ("AAAABBBB", {6: 1}, Switches(1, 0, 0, 2.0)),
        ("AAAABBBB", {}, Switches(0, 1, 0, None)),
        ("AAAABBBB", {2: 1, 6: 2}, Switches(1, 0, 1, 2.0)),  # the first task has an expert already
        ("AAAABBBB", {5: 1, 6: 2, 7: 3}, Switches(1, 0, 2, 1.0)),
        ("AABBAABB", {3: 1, 5: 2}, Switches(1, 0, 1, 1.0)),  # A was known
        ("AABBAABB", {7: 1}, Switches(1, 0, 0, 5.0)),  # found at its second visit
        ("AABBAABBCC", {3: 1, 7: 2}, Switches(1, 1, 1, 1.0)),  # so was B; C was missed
    ],
)
def test_switches(tasks: str, created: dict[int, int], expected: Switches) -> None:
    assert ledger_of(tasks, created).switches() == expected


def test_expert_belongs_to_a_task_from_a_tenth_of_its_batches_on() -> None:
    tasks = "A" * 20 + "B" * 20
    trained = dict.fromkeys(range(20), 0) | {20: 0} | dict.fromkeys(range(21, 40), 1)
    assert ledger_of(tasks, {}, trained).owners(2) == [{0}, {1}]
    assert ledger_of(tasks, {}, trained | {21: 0}).owners(2) == [{0}, {0, 1}]


def test_older_batches_count_for_the_task_they_came_from() -> None:
    ledger = Ledger()
    ledger.observe(0, Step(0, 0, 1.0, 2.0, True, 1, ()), [])
    ledger.observe(1, Step(1, 0, 1.0, 2.0, False, 1, ((0, 7), (1, 8))), [])
    assert ledger.owners(2) == [{7}, {8}]


def test_more_than_five_experts_in_a_task_is_a_runaway() -> None:
    assert not ledger_of("A" * 9, {step: step for step in range(1, 6)}).runaway
    assert ledger_of("A" * 9, {step: step for step in range(1, 7)}).runaway
    assert not ledger_of("AAAAABBBBB", {step: step for step in range(2, 8)}).runaway


def test_promotion_takes_from_an_experts_creation_to_its_own_promotion() -> None:
    ledger = ledger_of("AAABBBBB", {4: 1, 5: 2})
    assert ledger.promotion_delay is None
    ledger.observe(1, Step(8, 0, 1.0, 2.0, False, 1, ()), [ExpertPromoted(8, expert=1, rate=1.0, parent=0)])
    assert ledger.promotion_delay == 4


def test_visits_are_the_runs_of_one_task() -> None:
    assert ledger_of("AABA", {}).visits() == [
        {"task": 0, "start": 0, "stop": 2},
        {"task": 1, "start": 2, "stop": 3},
        {"task": 0, "start": 3, "stop": 4},
    ]


class FixedAnswers:
    """Sends every group to expert 1 of 3 and answers class 0."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.learner = SimpleNamespace(experts=(0, 1, 2), tree=Tree())

    def route(self, x: torch.Tensor, routing: str) -> Routes:
        self.groups.append(len(x))
        groups = len(x) if routing == "sample" else 1
        scores = np.full((3, groups), np.inf)
        scores[:2] = 0.0
        return Routes(np.ones(groups, np.int64), np.zeros(groups, np.int64), scores)

    def probabilities(self, x: torch.Tensor, routes: Routes, outputs: int) -> np.ndarray:
        return np.eye(outputs)[np.zeros(len(x), np.int64)]


def task_with(labels: list[int]) -> Task:
    source = Source(torch.zeros(len(labels), 2), torch.tensor(labels))
    rows = Part(source, torch.arange(len(labels)), AsIs())
    return Task(rows, rows, "task")


@pytest.mark.parametrize(("routing", "groups"), [("sample", [10, 4]), ("batch", [4, 4, 2, 4])])
def test_figures_are_means_over_tasks(routing: str, groups: list[int]) -> None:
    """Tasks of 10 and 4 rows count alike; the last partial batch is a batch."""
    answers = FixedAnswers()
    tasks = [task_with([0] * 5 + [1] * 5), task_with([0, 0, 0, 1])]
    figures = evaluate([answers] * 2, tasks, [{0}, {1, 2}], 2, routing, batch_size=4)  # type: ignore[arg-type]
    assert answers.groups == groups
    assert figures.accuracy == pytest.approx((50 + 75) / 2)
    assert figures.gate_accuracy == pytest.approx((0 + 100) / 2)
    assert figures.experts_queried == 2
    assert figures.calibration_error == pytest.approx(100 * 6 / 14), "sure of 14 rows, wrong about 6"
    assert figures.routed.tolist() == [[0, 100, 0], [0, 100, 0]]


def test_probabilities_that_are_as_often_right_as_they_say_have_no_calibration_error() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.1, 1, 200_000)
    right = rng.uniform(size=len(confidence)) < confidence
    assert expected_calibration_error(confidence, right) < 0.5
    assert expected_calibration_error(np.sqrt(confidence), right) == pytest.approx(
        100 * np.mean(np.sqrt(confidence) - confidence), abs=0.5
    ), "too sure everywhere"
