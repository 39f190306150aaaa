"""A whole run against plain training of its experts, on the same batches: what a stream costs in the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from hge.bench.measure import now
from hge.bench.plain_training import Graphed, Model, Step, Trainer, arithmetic
from hge.bench.run_parts import PartTimes, time_parts
from hge.core.config import RunConfig
from hge.core.randomness import Keys
from hge.data.scenarios import Scenario
from hge.experiments.build import check
from hge.experiments.run_files import RunRecorder, environment
from hge.experiments.runner import OnStep, RunSession
from hge.learning.online import OnlineLearner
from hge.learning.online import Step as Outcome


@dataclass
class TaskRow:
    """The batches of one task of the stream."""

    task: str
    batches: int = 0
    milliseconds: float = 0.0
    """Per batch."""
    asked: float = 0.0
    """Scores that the gate computed, per batch."""
    refused: int = 0


class RunWatch:
    """Notes when each batch of a run was learned, and what became of it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.steps: list[tuple[float, int, bool]] = []
        """Time, scores computed and whether the batch was refused."""

    def __call__(self, step: Outcome, total: int, learner: OnlineLearner) -> None:
        """Note a step."""
        self.steps.append((self.clock(), step.queried, step.set_aside))

    def rows(self, begun: float, task_of_step: list[int], names: list[str]) -> list[TaskRow]:
        """Return a row for each task, in order of first appearance."""
        rows: dict[int, TaskRow] = {}
        for task, (ended, queried, refused) in zip(task_of_step, self.steps, strict=True):
            row = rows.setdefault(task, TaskRow(names[task]))
            row.batches += 1
            row.milliseconds += 1e3 * (ended - begun)
            row.asked += queried
            row.refused += refused
            begun = ended
        for row in rows.values():
            row.milliseconds = round(row.milliseconds / row.batches, 4)
            row.asked = round(row.asked / row.batches, 3)
        return list(rows.values())


def bench_run(config: RunConfig, data: Path | None, report: Callable[[str], None]) -> dict[str, Any]:
    """Return the time of a whole run and of plain training, per batch, and where the run's time goes.

    The parts are timed in a second run, so that timing them does not slow the first. CPU time on a CPU, where other
    processes do not count, elapsed time on a GPU.
    """
    check(config)
    report("the run")
    clock = time.process_time if config.device == "cpu" else time.perf_counter
    watch = RunWatch(clock)
    session, seconds = learn_stream(config, data, watch)
    batches, names = session.learner.steps, [task.name for task in session.scenario.tasks]
    begun = watch.steps[-1][0] - seconds
    report("plain training")
    plain = _plain_seconds(config, session.scenario, batches)
    report("the run's parts")
    parts = PartTimes(clock)
    _, in_parts = learn_stream(config, data, ignore_step, prepare=lambda other: time_parts(other, parts))
    parts.seconds["records"] = in_parts - sum(parts.seconds.values())
    return {
        "milliseconds": _per_batch(seconds, batches),
        "plain_milliseconds": _per_batch(plain, batches),
        "ratio": round(plain / seconds, 4),
        "batches": batches,
        "asked": round(sum(queried for _, queried, _ in watch.steps) / batches, 3),
        "refused": sum(refused for _, _, refused in watch.steps),
        "experts": len(session.learner.experts),
        "tasks": [asdict(row) for row in watch.rows(begun, session.ledger.task_of_step, names)],
        "parts": {name: _per_batch(spent, batches) for name, spent in parts.seconds.items()},
        "calls": {name: round(count / batches, 4) for name, count in parts.calls.items()},
        "settings": config.as_json(),
        "protocol": environment(),
    }


def learn_stream(
    config: RunConfig, data: Path | None, watch: OnStep, prepare: Callable[[RunSession], None] = lambda session: None
) -> tuple[RunSession, float]:
    """Learn a whole stream as `hge run` does, without checkpoints and tests; return the session and its seconds."""
    with TemporaryDirectory() as folder:
        session = RunSession(config, Path(folder), data, checkpoint_every=0)
        prepare(session)
        with RunRecorder(Path(folder), config) as recorder:
            session.learn(recorder, watch)
            now(config.device)  # nothing of the run is pending
    return session, session.training_seconds


def ignore_step(step: Outcome, total: int, learner: OnlineLearner) -> None:
    """Do nothing after a batch."""


def _plain_seconds(config: RunConfig, scenario: Scenario, batches: int) -> float:
    """Return the seconds of training one network and its score on the same batches, which costs the same for any."""
    model = Model(
        config.net,
        "autoencoder" if config.score.name == "autoencoder" else "sketch",
        config.autoencoder,
        scenario.shape,
        scenario.classes,
        config.precision,
        config.optimiser.lr,
    )
    clock = time.process_time if config.device == "cpu" else time.perf_counter
    with arithmetic(config.precision):
        steps = _plain_steps(model, config, scenario)
        now(config.device)
        started = clock()
        for number, (_, batch) in enumerate(scenario.stream(config.batch_size, config.epochs, Keys(config.seed))):
            if number == batches:  # a run with too many experts ends early
                break
            steps[len(batch)](batch.x, batch.y)
        now(config.device)
    return clock() - started


def _plain_steps(model: Model, config: RunConfig, scenario: Scenario) -> dict[int, Step]:
    """Return the step for each size of a batch in the stream; on a GPU a graph for each."""
    trainer, steps = Trainer(model, torch.device(config.device)), dict[int, Step]()
    for task, positions in _one_of_each_size(config, scenario):
        batch = scenario.tasks[task].train.batch(positions)
        on_gpu = batch.x.is_cuda
        steps[len(batch)] = Graphed(trainer, batch.x, batch.y).step if on_gpu else trainer.step
    return steps


def _one_of_each_size(config: RunConfig, scenario: Scenario) -> Iterator[tuple[int, torch.Tensor]]:
    seen = set[int]()
    for task, positions in scenario.schedule(config.batch_size, 1, Keys(config.seed)):
        if len(positions) not in seen:
            seen.add(len(positions))
            yield task, positions


def _per_batch(seconds: float, batches: int) -> float:
    return round(1e3 * seconds / batches, 4)
