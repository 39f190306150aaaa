"""Build the scenario, the pool, the learner and its predictors from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from hge.core.config import RunConfig
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.data.catalogue import SCENARIOS
from hge.data.datasets import data_folder
from hge.data.scenario_builders import Request
from hge.data.scenarios import Scenario, mix, revisit
from hge.experiments.feature_scenario import check_features
from hge.experiments.methods import METHODS
from hge.experts.eager import EagerPool
from hge.experts.fast.host_pool import build_fast_pool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.optim import resolve_device
from hge.experts.pool import ExpertPool
from hge.experts.pool_spec import PoolSpec
from hge.learning.online import Answers, GivenTasks, OnlineLearner, Setting


def check(config: RunConfig) -> None:
    """Reject settings that cannot run, before anything is built."""
    resolve_device(config.device)
    if config.precision != "fp32" and torch.device(config.device).type == "cpu":
        raise ValueError(f"precision: got {config.precision!r}, expected fp32 on a CPU")
    if config.method not in METHODS:
        raise ValueError(f"method: got {config.method!r}, expected one of {', '.join(METHODS)}")
    if config.track and not METHODS[config.method].answers_any_time:
        supported = sorted(name for name, method in METHODS.items() if method.answers_any_time)
        raise ValueError(f"track: got method {config.method}, expected one of {', '.join(supported)}")
    info = SCENARIOS[config.scenario]
    if config.mix and config.mix not in SCENARIOS:
        raise ValueError(f"mix: got {config.mix!r}, expected one of {', '.join(SCENARIOS)}")
    if config.labels == "shared" and not (info.is_hybrid or config.mix):
        raise ValueError(f"labels: got 'shared', expected 'disjoint' for {info.name}, which is no hybrid")
    if config.tasks > info.tasks and not info.unlimited:
        raise ValueError(f"tasks: got {config.tasks}, expected at most {info.tasks} for {info.name}")
    for name, value, known in (("net", config.net, NETS), ("autoencoder", config.autoencoder, AUTOENCODERS)):
        if value not in known:
            raise ValueError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
    taken = METHODS[config.method].configure(config, info.paper.promotion_rate).views
    if config.views != taken:
        raise ValueError(f"views: got {config.views}, expected {taken} for {config.method}, whose loss knows no views")
    check_features(config)


def check_resumable(method: str) -> None:
    """Reject a method that cannot resume from a checkpoint."""
    if not METHODS[method].learns_a_stream:
        supported = sorted(name for name, other in METHODS.items() if other.learns_a_stream)
        raise ValueError(f"resume: got method {method}, expected one of {', '.join(supported)}")


def build_scenario(config: RunConfig, keys: Keys, data: Path | None) -> Scenario:
    """Return the tasks and visits defined by the settings."""
    shared = config.labels == "shared"
    request = Request(config.tasks, keys, data_folder(data), torch.device(config.device), shared)
    scenario = SCENARIOS[config.scenario].build(request)
    if config.mix:
        other = replace(request, tasks=SCENARIOS[config.mix].tasks)
        scenario = mix(scenario, SCENARIOS[config.mix].build(other), shared_labels=shared)
    if config.visits:
        scenario = revisit(scenario, config.visits)
    if config.images:
        scenario = scenario.as_images()
    return replace(scenario, blend=config.blend)


def build_learner(
    config: RunConfig, scenario: Scenario, keys: Keys, emit: Emit, current_task: Callable[[], int]
) -> OnlineLearner:
    """Return the method's untrained learner; `current_task` is passed only to methods that are given task ids."""
    method = METHODS[config.method]
    setting = Setting(
        config,
        keys,
        emit,
        build_spec(config, scenario),
        lambda outputs: build_pool(config, replace(scenario, classes=outputs), keys),
        current_task if method.needs.task_ids else no_task,
    )
    return method.build(setting)


def build_answers(config: RunConfig, learner: OnlineLearner, tasks: int) -> list[Answers]:
    """Return a predictor for each task; the same one for all, unless the method is given tasks."""
    if METHODS[config.method].needs.task_ids:
        return [cast(GivenTasks, learner).answers_for(task) for task in range(tasks)]
    return [learner.answers()] * tasks


def no_task() -> int:
    """Raise: passed as `current_task` to methods that are not given tasks."""
    raise AssertionError("a method that is not given tasks requested the current task")


def build_pool(config: RunConfig, scenario: Scenario, keys: Keys) -> ExpertPool:
    """Return an empty pool for the scenario's experts."""
    build = EagerPool if config.pool == "eager" else build_fast_pool
    return build(build_spec(config, scenario), keys, torch.device(config.device))


def build_spec(config: RunConfig, scenario: Scenario) -> PoolSpec:
    """Return the specification of the scenario's experts."""
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
        views=config.views,
        answer_views=config.answer_views,
    )
