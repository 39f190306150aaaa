"""From settings to objects: the scenario, the pool, the learner and who answers for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from hge.baselines.separate import Separate, ToldAnswers
from hge.baselines.tame import Tame, TameAnswers
from hge.core.config import RunConfig
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.data.catalogue import SCENARIOS, Request
from hge.data.datasets import data_folder
from hge.data.scenarios import Scenario, mix, revisit
from hge.experiments.metrics import Answers
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool import EagerPool, ExpertPool, PoolSpec, resolve_device
from hge.learning.learner import Learner
from hge.learning.routing import Answerer

AnyLearner = Learner | Tame | Separate
TRACKED = frozenset({"ge", "ge-no-review", "hge"})
"""Methods that can answer in the middle of a stream."""
RESUMABLE = TRACKED | {"separate", "tame"}
"""Methods that can be stopped and resumed at any batch."""


def check(config: RunConfig) -> None:
    """Reject settings that cannot run, before anything is made."""
    resolve_device(config.device)
    if config.precision != "fp32" and torch.device(config.device).type == "cpu":
        raise ValueError(f"precision: got {config.precision!r}, expected fp32: a CPU computes no other")
    if config.track and config.method not in TRACKED:
        raise ValueError(f"track: got method {config.method}, expected one of {', '.join(sorted(TRACKED))}")
    info = SCENARIOS[config.scenario]
    if config.mix and config.mix not in SCENARIOS:
        raise ValueError(f"mix: got {config.mix!r}, expected one of {', '.join(SCENARIOS)}")
    if config.tasks > info.most_tasks:
        raise ValueError(f"tasks: got {config.tasks}, expected at most {info.most_tasks} for {info.name}")
    for name, value, known in (("net", config.net, NETS), ("autoencoder", config.autoencoder, AUTOENCODERS)):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")


def check_resumable(method: str) -> None:
    """Reject a method that cannot go on from a checkpoint."""
    if method not in RESUMABLE:
        raise ValueError(f"resume: got method {method}, expected one of {', '.join(sorted(RESUMABLE))}")


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
        shortlisted=config.learner.organisation == "tree",
    )
