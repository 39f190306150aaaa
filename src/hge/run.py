"""One run: builds the objects, drives the stream, and keeps the task numbers away from the learner."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hge.answer import Answerer
from hge.baselines.separate import Separate, ToldAnswers
from hge.baselines.tame import Tame, TameAnswers
from hge.checkpoint import Checkpoints, forget_checkpoints, has_checkpoint, read_checkpoint
from hge.config import RunConfig
from hge.data.catalogue import SCENARIOS, Request
from hge.data.datasets import data_folder
from hge.data.scenarios import Scenario, mix, revisit
from hge.evaluate import Answers, Ledger, evaluate
from hge.events import Emit, Event
from hge.feed import Feed
from hge.keys import Keys
from hge.learner import Learner, Step
from hge.nets import AUTOENCODERS, NETS
from hge.pool import EagerPool, ExpertPool, PoolSpec, resolve_device
from hge.record import RunRecorder, environment
from hge.snapshot import restore, take
from hge.stacked import StackedPool

AnyLearner = Learner | Tame | Separate
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

    Every so many batches a checkpoint is written to `folder`/checkpoints (0: never), and one before an error of the
    stream is raised. With `resume` a run that was cut off goes on from its last one, as if nothing had happened. A
    checkpoint that cannot be written is a warning; events that cannot be written end the run.
    """
    check(config)
    keys = Keys(config.seed)
    scenario = build_scenario(config, keys, data)
    total = scenario.batches(config.batch_size, config.epochs)
    events: list[Event] = []
    learner = build_learner(config, scenario, keys, events.append)
    begin, checkpoints = Beginning(), None
    if isinstance(learner, Learner) and checkpoint_every:
        checkpoints = Checkpoints(folder / CHECKPOINTS)
    if resume:
        begin = _go_on(config, folder, scenario, learner)
    elif checkpoints:
        forget_checkpoints(folder / CHECKPOINTS)  # of another run
    rows, ledger = 0, begin.ledger
    # Only now: what cannot be built leaves an older run alone.
    with RunRecorder(folder, config, begin.files) as recorder:
        started = time.perf_counter()
        feed = _feed(config, scenario, learner, begin)
        while not ledger.runaway and not feed.ended and feed.position < total:
            for step in _stretch(learner, feed, checkpoint_every if checkpoints else total):
                origin = feed.origins.popleft()
                ledger.observe(origin.task, step, events)
                recorder.step(origin.task, step, [*origin.skipped, *events])
                on_step(step, total, learner)
                events.clear()
                rows += origin.rows
                if ledger.runaway:
                    break
            recorder.events(feed.take_pending())
            # A checkpoint is taken between two stretches, when nothing is under way.
            unfinished = feed.position < total or feed.error is not None
            if checkpoints and isinstance(learner, Learner) and unfinished and not ledger.runaway:
                _save(checkpoints, learner, config, ledger, feed, recorder)
        seconds = time.perf_counter() - started
        _check_end(feed, learner, total, finished=ledger.runaway)
        learner.end_stream()
        result = _result(config, scenario, learner, ledger)
        result |= {"batches_skipped": len(feed.skipped)}
        result |= {"samples_per_second": round(rows / seconds, 1), "protocol": protocol(config)}
        recorder.result(result)
    forget_checkpoints(folder / CHECKPOINTS)  # nothing is left to resume
    return result


def _stretch(learner: AnyLearner, feed: Feed, batches: int) -> Iterator[Step]:
    """Learn a stretch of the stream. The learner sees the batches; their tasks stay with the feed, for the ledger."""
    stretch = islice(feed, batches)
    if isinstance(learner, Separate):  # the one that is told
        return learner.learn_told((feed.origins[-1].task, batch) for batch in stretch)
    return learner.learn_all(stretch)


@dataclass
class Beginning:
    """Where a run begins: at the beginning, or where its last checkpoint was taken."""

    ledger: Ledger = field(default_factory=Ledger)
    files: dict[str, int] | None = None
    """How long the record's files were."""
    skipped: list[int] = field(default_factory=list)
    """Places in the stream of the bad batches that were skipped."""


def _go_on(config: RunConfig, folder: Path, scenario: Scenario, learner: AnyLearner) -> Beginning:
    """Bring the learner to where the last checkpoint was taken; where there is none, begin at the beginning."""
    if not isinstance(learner, Learner):
        raise ValueError(f"resume: got method {config.method}, expected ge, ge-no-review or hge")
    if not has_checkpoint(folder / CHECKPOINTS):
        return Beginning()
    snapshot, facts = read_checkpoint(folder / CHECKPOINTS)
    if facts.get("config") != config.as_json():
        raise ValueError(f"resume: got other settings than those of the run in {folder}, expected the same")
    restore(learner, snapshot)
    skipped = set(facts["skipped"])
    schedule = scenario.schedule(config.batch_size, config.epochs, learner.keys)
    draws = enumerate(islice(schedule, learner.steps + len(skipped)))
    tasks = [task for place, (task, _) in draws if place not in skipped]
    return Beginning(Ledger.from_json(facts["ledger"], tasks), facts["files"], facts["skipped"])


def _feed(config: RunConfig, scenario: Scenario, learner: AnyLearner, begin: Beginning) -> Feed:
    start = learner.steps + len(begin.skipped)
    stream = scenario.stream(config.batch_size, config.epochs, Keys(config.seed), start=start)
    return Feed(stream, scenario.shape, scenario.classes, config.on_bad_batch, learner.steps, begin.skipped)


def _save(
    checkpoints: Checkpoints, learner: Learner, config: RunConfig, ledger: Ledger, feed: Feed, recorder: RunRecorder
) -> None:
    """Write a checkpoint. If the disk is full, the run goes on without it, and the one before it stays."""
    facts = {
        "config": config.as_json(),
        "ledger": ledger.as_json(),
        "skipped": feed.skipped,
        "files": recorder.position(),
    }
    try:
        checkpoints.write(take(learner), facts)
    except OSError as error:
        text = (
            f"checkpoint at batch {feed.position}: {error.strerror}; the run goes on, the checkpoint before it is kept"
        )
        warnings.warn(text, stacklevel=3)


def _check_end(feed: Feed, learner: AnyLearner, total: int, *, finished: bool) -> None:
    """Raise what the source raised, now that everything before it is safe."""
    if feed.error is not None:
        raise feed.error
    if not learner.steps:
        raise ValueError(f"stream: got {len(feed.skipped)} bad batches, expected at least one that is good")
    if feed.position < total and not finished:
        warnings.warn(f"the stream ended after {feed.position} of {total} batches", stacklevel=3)


def check(config: RunConfig) -> None:
    """Reject settings that cannot run, before anything is made."""
    resolve_device(config.device)
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
    return chosen | environment()
