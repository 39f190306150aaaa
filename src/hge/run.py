"""One run: builds the objects, drives the stream, and keeps the task numbers away from the learner."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from hge.answer import Answerer
from hge.baselines.separate import Separate, ToldAnswers
from hge.baselines.tame import Tame, TameAnswers
from hge.checkpoint import Checkpoints, read_checkpoint
from hge.config import RunConfig
from hge.data.catalogue import SCENARIOS, Request
from hge.data.datasets import data_folder
from hge.data.scenarios import Scenario, mix, revisit
from hge.evaluate import Answers, Ledger, evaluate
from hge.events import Emit, Event
from hge.keys import Keys
from hge.learner import Learner, Step
from hge.nets import AUTOENCODERS, NETS
from hge.pool import EagerPool, ExpertPool, PoolSpec, resolve_device
from hge.recipes import changes
from hge.record import RunRecorder, environment
from hge.snapshot import restore, take
from hge.stacked import StackedPool
from hge.tracking import Tracker
from hge.types import Batch

AnyLearner = Learner | Tame | Separate
RESUMABLE = frozenset({"ge", "ge-no-review", "hge"})
"""Methods that can be stopped, asked and resumed at any batch; the baselines cannot."""
RESUMABLE_NAMES = "ge, ge-no-review or hge"
CHECKPOINTS = "checkpoints"
CHECKPOINT_EVERY = 2_000
"""Batches between two checkpoints."""
OnStep = Callable[[Step, int, AnyLearner], None]
"""Called after each batch with its step, the stream's length and the learner, for a progress line."""


def run(
    config: RunConfig,
    folder: Path,
    on_step: OnStep = lambda step, total, learner: None,
    data: Path | None = None,
    *,
    resume: bool = False,
    checkpoint_every: int = CHECKPOINT_EVERY,
) -> dict[str, Any]:
    """Run `config` on the data sets in `data`, leave its files in `folder`; return what stands in result.json.

    Every so many batches a checkpoint is written to `folder`/checkpoints (0: never). With `resume` a run that was cut
    off goes on from its last one, as if nothing had happened.
    """
    check(config)
    keys = Keys(config.seed)
    scenario = build_scenario(config, keys, data)
    total = scenario.batches(config.batch_size, config.epochs)
    events: list[Event] = []
    learner = build_learner(config, scenario, keys, events.append)
    ledger, resume_at, checkpoints = Ledger(), None, None
    tracker = _build_tracker(config, scenario) if config.track else None
    if isinstance(learner, Learner) and checkpoint_every:
        checkpoints = Checkpoints(folder / CHECKPOINTS)
    if resume:
        ledger, resume_at = _go_on(config, folder, scenario, learner, tracker)
    elif checkpoints:
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # of another run
    rows, first = 0, learner.steps
    with RunRecorder(folder, config, resume_at) as recorder:  # only now: what cannot be built leaves an older run alone
        started = time.perf_counter()
        origins, batches = _apart(scenario.stream(config.batch_size, config.epochs, keys, start=first))
        while not ledger.runaway and learner.steps < total:
            # Checkpoints are taken, and questions asked, between two stretches, when nothing is under way.
            length = checkpoint_every - learner.steps % checkpoint_every if checkpoints else total
            stretch: Iterator[Batch] = islice(batches, length)
            if tracker and isinstance(learner, Learner):
                stretch = _ask_first(tracker, batches, length, learner, scenario)
            for step in _learn(learner, stretch, origins):  # the learner sees the batches, the ledger the tasks
                task, size = origins.popleft()
                ledger.observe(task, step, events)
                recorder.step(task, step, events)
                on_step(step, total, learner)
                events.clear()
                rows += size
                if ledger.runaway:
                    break
            if ledger.runaway or not isinstance(learner, Learner):
                continue
            if tracker:
                tracker.test(learner.steps, Answerer(learner), scenario.tasks, scenario.classes)
            if checkpoints and learner.steps < total and learner.steps % checkpoint_every == 0:
                facts = {"config": config.as_json(), "ledger": ledger.as_json(), "files": recorder.position()}
                checkpoints.write(take(learner), facts | {"tracked": tracker.as_json() if tracker else None})
        seconds = time.perf_counter() - started
        learner.end_stream()
        result = _result(config, scenario, learner, ledger)
        result |= {"tracked": tracker.as_json()} if tracker else {}
        result |= {"samples_per_second": round(rows / seconds, 1), "protocol": protocol(config)}
        recorder.result(result)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # nothing is left to resume
    return result


def _learn(learner: AnyLearner, stretch: Iterator[Batch], origins: deque[tuple[int, int]]) -> Iterator[Step]:
    """Learn some batches; Separate is the one that is told where the last one pulled came from."""
    if isinstance(learner, Separate):
        return learner.learn_told((origins[-1][0], batch) for batch in stretch)
    return learner.learn_all(stretch)


def _build_tracker(config: RunConfig, scenario: Scenario) -> Tracker:
    ends = scenario.visit_ends(config.batch_size, config.epochs)
    return Tracker(ends[-1], ends, config.routing, config.test_batch_size)


def _ask_first(
    tracker: Tracker, batches: Iterator[Batch], length: int, learner: Learner, scenario: Scenario
) -> Iterator[Batch]:
    """Return the batches up to the next stop; the first one, if it is due, has been answered before it is learned."""
    length = min(length, tracker.until_stop(learner.steps))
    first = list(islice(batches, 1))
    if first and tracker.wants(learner.steps):
        tracker.answer(learner.steps, first[0], Answerer(learner), scenario.classes)
    return chain(first, islice(batches, length - 1))


def _go_on(
    config: RunConfig, folder: Path, scenario: Scenario, learner: AnyLearner, tracker: Tracker | None
) -> tuple[Ledger, dict[str, int] | None]:
    """Bring the learner to where the last checkpoint was taken; where there is none, begin at the beginning."""
    if not isinstance(learner, Learner):
        raise ValueError(f"resume: got method {config.method}, expected {RESUMABLE_NAMES}")
    if not (folder / CHECKPOINTS).is_dir():
        return Ledger(), None
    snapshot, facts = read_checkpoint(folder / CHECKPOINTS)
    if facts["config"] != config.as_json():
        raise ValueError(f"resume: got other settings than those of the run in {folder}, expected the same")
    restore(learner, snapshot)
    if tracker:
        tracker.go_on(facts["tracked"])
    schedule = scenario.schedule(config.batch_size, config.epochs, learner.keys)
    tasks = [task for task, _ in islice(schedule, learner.steps)]
    return Ledger.from_json(facts["ledger"], tasks), facts["files"]


def check(config: RunConfig) -> None:
    """Reject settings that cannot run, before anything is made."""
    resolve_device(config.device)
    if config.track and config.method not in RESUMABLE:
        raise ValueError(f"track: got method {config.method}, expected {RESUMABLE_NAMES}")
    info = SCENARIOS[config.scenario]
    if config.mix and config.mix not in SCENARIOS:
        raise ValueError(f"mix: got {config.mix!r}, expected one of {', '.join(SCENARIOS)}")
    if config.tasks > info.most_tasks:
        raise ValueError(f"tasks: got {config.tasks}, expected at most {info.most_tasks} for {info.name}")
    for name, value, known in (("net", config.net, NETS), ("autoencoder", config.autoencoder, AUTOENCODERS)):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")


def build_scenario(config: RunConfig, keys: Keys, data: Path | None) -> Scenario:
    """Return the tasks and visits that the settings ask for."""
    request = Request(config.tasks, keys, data_folder(data), torch.device(config.device))
    scenario = SCENARIOS[config.scenario].build(request)
    if config.mix:
        other = replace(request, tasks=SCENARIOS[config.mix].tasks)
        scenario = mix(scenario, SCENARIOS[config.mix].build(other))
    if config.visits:
        scenario = revisit(scenario, config.visits)
    return replace(scenario, blend=config.blend)


def _apart(stream: Iterator[tuple[int, Batch]]) -> tuple[deque[tuple[int, int]], Iterator[Batch]]:
    """Part a stream's tasks from its batches; (task, rows) of a batch is there once the batch was taken."""
    origins: deque[tuple[int, int]] = deque()

    def batches() -> Iterator[Batch]:
        for task, batch in stream:
            origins.append((task, len(batch)))
            yield batch

    return origins, batches()


def build_learner(config: RunConfig, scenario: Scenario, keys: Keys, emit: Emit) -> AnyLearner:
    """Return what the method learns with, untrained."""
    pool = build_pool(config, scenario, keys)
    if config.method == "separate":
        return Separate(pool, emit)
    if config.method == "tame":
        return Tame(config.tame, pool, lambda n: build_pool(config, replace(scenario, classes=n), keys), keys, emit)
    return Learner(config.learner, pool, keys, emit)


def build_answers(learner: AnyLearner, tasks: int) -> Answers | list[Answers]:
    """Return who answers at test time; for Separate, one per task."""
    if isinstance(learner, Separate):
        return [ToldAnswers(learner, task) for task in range(tasks)]
    return TameAnswers(learner) if isinstance(learner, Tame) else Answerer(learner)


def build_pool(config: RunConfig, scenario: Scenario, keys: Keys) -> ExpertPool:
    """Return an empty pool for the scenario's experts."""
    pool = EagerPool if config.pool == "eager" else StackedPool
    return pool(build_spec(config, scenario), keys, torch.device(config.device))


def build_spec(config: RunConfig, scenario: Scenario) -> PoolSpec:
    """Say how the scenario's experts are made."""
    return PoolSpec(
        scenario.shape,
        scenario.classes,
        NETS[config.net],
        AUTOENCODERS[config.autoencoder],
        config.score,
        config.optimiser,
        config.precision,
        config.idle_on_host,
        config.augment,
    )


def _result(config: RunConfig, scenario: Scenario, learner: AnyLearner, ledger: Ledger) -> dict[str, Any]:
    switches, owners = ledger.switches(), ledger.owners(len(scenario.tasks))
    answerer = build_answers(learner, len(scenario.tasks))
    figures = {
        routing: evaluate(answerer, scenario.tasks, owners, scenario.classes, routing, config.test_batch_size)
        for routing in ("sample", "batch")
    }
    return {
        **{f"accuracy_{r}": round(f.accuracy, 3) for r, f in figures.items()},
        **{f"gate_accuracy_{r}": round(f.gate_accuracy, 3) for r, f in figures.items()},
        "experts": len(learner.experts),
        "experts_unpromoted": len(learner.newcomers),
        **{f"experts_queried_{r}": round(f.experts_queried, 3) for r, f in figures.items()},
        "switches_found": switches.found,
        "switches_missed": switches.missed,
        "switches_false": switches.false,
        "switch_delay": switches.delay,
        "promotion_delay": ledger.promotion_delay,
        "score_evaluations_per_batch": {k: round(v / learner.steps, 3) for k, v in learner.evaluations.items()},
        "dnf": ledger.runaway,
        "batches": learner.steps,
        "tasks": [task.name for task in scenario.tasks],
        "visits": ledger.visits(),
        "created": [[step, expert] for step, expert in ledger.created],
        "tree": {"nodes": learner.tree.as_json(), "reached": figures["batch"].reached.round(2).tolist()},
        "domains": [task.domain for task in scenario.tasks],
        "routed": {r: f.routed.round(2).tolist() for r, f in figures.items()},
    }


def protocol(config: RunConfig) -> dict[str, Any]:
    """Say under which settings, and on what, a run was made."""
    names = (
        "scenario",
        "method",
        "recipe",
        "tasks",
        "routing",
        "batch_size",
        "test_batch_size",
        "epochs",
        "mix",
        "visits",
        "blend",
        "seed",
    )
    chosen = {name: getattr(config, name) for name in names}
    chosen |= {"score": config.score.name, "device": config.device, "precision": config.precision}
    return chosen | {"changed": changes(config)} | environment()
