"""Section 5.2's controlled experiment: experts trained separately, then organised in several ways."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hge.core.config import RunConfig
from hge.core.own_folder import hold
from hge.core.randomness import Keys
from hge.data.fingerprint import fingerprint
from hge.data.scenarios import Scenario
from hge.experiments.build import build_pool, build_scenario, check
from hge.experiments.feature_scenario import with_features
from hge.experiments.run_files import RUN, RunRecorder, commit
from hge.experiments.runner import protocol
from hge.experiments.separate_experts import SeparateExperts
from hge.experts.optim import deterministic_algorithms
from hge.experts.replay import ScoredReplays
from hge.gating.order_search import (
    OwnedBatches,
    TreeFigures,
    figures,
    flat_tree,
    lca_tree,
    search_upper,
    select,
    statistics,
)
from hge.gating.shortlist import Shortlist
from hge.gating.tree import FloatArray, IntArray, Routes

OnProgress = Callable[[int, int, str], None]
"""Called with the work done, the total work and the phase."""
ORDERS = 1000


def organise(
    config: RunConfig,
    folder: Path,
    on_progress: OnProgress = lambda done, total, phase: None,
    data: Path | None = None,
    orders: int = ORDERS,
    *,
    patience: float = 0.0,
) -> dict[str, Any]:
    """Train separately, organise as GE, HGE, Upper and by shortlists; return the content of result.json."""
    check(config)
    code = commit()  # read first: the files may change during the run
    keys = Keys(config.seed)
    scenario = with_features(build_scenario(config, keys, data), config, data)
    order = list(dict.fromkeys(visit.task for visit in scenario.visits))
    if len(order) < len(scenario.tasks):
        raise ValueError(f"visits: got {config.visits!r}, expected every task: each has its expert")
    # The classifiers are not used, so the smallest will do. Sketches next to a costly score give the shortlists.
    learner = replace(config.learner, organisation="tree")
    scores_only = replace(config, net="mlp", augment=False, learner=learner)
    pool = build_pool(scores_only, scenario, keys)
    experts = SeparateExperts(config.learner, scenario, pool, keys)
    with (
        hold(folder, RUN, patience),
        deterministic_algorithms(config.deterministic),
        RunRecorder(folder, config) as recorder,
    ):
        trained = scenario.batches(config.batch_size, config.epochs)
        total = trained + _to_score(scenario, config)
        for step, _, _ in experts.train(config.batch_size, config.epochs):
            on_progress(step + 1, total, "training")
        training, replay, test = _scores(
            experts, scenario, config, keys, lambda scored: on_progress(trained + scored, total, "scoring")
        )
        coverage = config.learner.path_coverage
        upper = search_upper(
            training, replay, test, coverage, orders, keys.rng("tree"), lambda done: on_progress(done, orders, "orders")
        )
        trees = {
            "ge": flat_tree(len(scenario.tasks)),
            "hge": lca_tree(order, training, replay, coverage),
            "upper": upper.tree,
            "selected": upper.selected,
        }
        routes = {name: select(tree, test.scores) for name, tree in trees.items()}
        if pool.scores_are_costly:
            trees["shortlist"], routes["shortlist"] = trees["ge"], _shortlisted(experts, scenario, config, test.scores)
        result = {
            "organisation": {name: _row(figures(r, test.owner)) for name, r in routes.items()},
            "upper_statistics": statistics(upper.all_figures),
            "orders": orders,
            "trees": {
                name: {"nodes": tree.as_json(), "reached": tree.reached(routes[name].node).round(2).tolist()}
                for name, tree in trees.items()
            },
            "domains": [task.domain for task in scenario.tasks],
            "tasks": [task.name for task in scenario.tasks],
            "data": fingerprint(scenario),
            "protocol": protocol(config) | {"commit": code},
        }
        recorder.result(result)
    return result


def _to_score(scenario: Scenario, config: RunConfig) -> int:
    """Return the maximum number of batches to score; a task with few batches has a smaller replay."""
    replay = len(scenario.tasks) * config.learner.replay_capacity
    test = sum(ceil(len(task.test) / config.test_batch_size) for task in scenario.tasks)
    return scenario.batches(config.batch_size, epochs=1) + replay + test


def _scores(
    experts: SeparateExperts, scenario: Scenario, config: RunConfig, keys: Keys, on_scored: Callable[[int], None]
) -> tuple[OwnedBatches, OwnedBatches, OwnedBatches]:
    """Score one epoch of every task's training batches, the replay, and the test batches."""
    training: list[list[torch.Tensor]] = [[] for _ in scenario.tasks]
    for task, batch in scenario.stream(config.batch_size, 1, keys):
        training[task].append(batch.x)
    replay = [[kept.batch.x for kept in e.replay.kept] for e in experts.experts]
    test = [[batch.x for batch in task.test.batches(config.test_batch_size)] for task in scenario.tasks]
    scored = itertools.count(1)

    def score(batches: list[list[torch.Tensor]]) -> OwnedBatches:
        owner = np.repeat(np.arange(len(batches)), [len(b) for b in batches])
        every = [x for b in batches for x in b]
        scores = []
        for x in every:
            scores.append(experts.batch_scores(x))
            on_scored(next(scored))
        return OwnedBatches(np.stack(scores, axis=1), owner)

    return score(training), score(replay), score(test)


def _shortlisted(experts: SeparateExperts, scenario: Scenario, config: RunConfig, scores: FloatArray) -> Routes:
    """Route the test batches by the scores of the experts on their shortlists."""
    count, replays = len(experts.experts), ScoredReplays(experts.pool, experts.experts)
    shortlist = Shortlist(replays, lambda event: None)
    shortlist.fit(0, count, 0)
    queried = []
    for batch in (batch for task in scenario.tasks for batch in task.test.batches(config.test_batch_size)):
        sketches = experts.pool.sketches(range(count), batch.x.to(experts.pool.device), together=True)
        queried.append(shortlist.choose(sketches[:, None], len(batch)))
    known = np.where(np.concatenate(queried, axis=1), scores, np.inf)
    best: IntArray = known.argmin(axis=0)
    return Routes.flat(best, known)


def _row(row: TreeFigures) -> dict[str, float]:
    return {"accuracy": round(row.accuracy, 3), "experts_queried": round(row.experts_queried, 3)}
