from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.small_learners import BATCHES, MLP, SETTINGS, SHORTLISTED, learner_of
from hge.core.config import LearnerConfig, OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.data.catalogue import SCENARIOS
from hge.data.scenario_builders import Request
from hge.data.scenarios import Scenario, Task
from hge.experts.eager import EagerPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.learning.learner import Learner
from hge.learning.routing import Answerer

NEVER = 10**6
EPOCHS = 8


@cache
def learned(
    config: LearnerConfig, score: str = "sketch", batches_after_last_creation: int | None = None
) -> tuple[Learner, Scenario]:
    """A learner of five tasks. Tests share it: what they change, they take back."""
    keys = Keys(0)
    scenario = SCENARIOS["split-digits"].build(Request(5, keys, Path(), torch.device("cpu")))
    spec = PoolSpec(
        scenario.shape,
        scenario.classes,
        NETS["mlp"],
        AUTOENCODERS["mlp"],
        ScoreConfig(score),  # type: ignore[arg-type]
        OptimiserConfig(),
    )
    learner = Learner(config, EagerPool(spec, keys, torch.device("cpu")), keys, lambda event: None)
    for _, batch in scenario.stream(32, EPOCHS, keys):
        learner.learn(batch)
        newest = learner.experts[-1]
        if newest.id == 4 and newest.batches_trained - 19 == batches_after_last_creation:
            break
    return learner, scenario


def accuracy(learner: Learner, tasks: Sequence[Task]) -> float:
    answerer = Answerer(learner)
    x = torch.cat([task.test.whole().x for task in tasks])
    y = torch.cat([task.test.whole().y for task in tasks]).numpy()
    answers = answerer.probabilities(x, answerer.route(x, "sample"), outputs=10)
    return 100 * float((answers.argmax(axis=1) == y).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("score", "least"), [("sketch", 93), ("autoencoder", 80)])
def test_newcomers_that_were_never_promoted_answer(score: str, least: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 12 of docs/paper.md: without this, five correct experts give 20 %."""
    learner, scenario = learned(LearnerConfig(promotion_window=NEVER, promote_by_replay=False), score)
    assert len(learner.experts) == 5
    assert len(learner.newcomers) == 4
    assert accuracy(learner, scenario.tasks) > least
    monkeypatch.setattr(learner, "config", replace(learner.config, newcomers_answer=False))
    assert accuracy(learner, scenario.tasks) < 25


@pytest.mark.slow
def test_newcomer_answers_without_spoiling_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped soon after the last expert was created: its task is answered, and the others hardly lose."""
    learner, scenario = learned(LearnerConfig(promote_by_replay=False), batches_after_last_creation=20)
    assert learner.newcomers == [4]
    others, last = scenario.tasks[:4], scenario.tasks[4:]
    with_newcomer = accuracy(learner, others), accuracy(learner, last)
    monkeypatch.setattr(learner, "config", replace(learner.config, newcomers_answer=False))
    without = accuracy(learner, others), accuracy(learner, last)
    assert with_newcomer[0] > without[0] - 3
    assert without[1] == 0
    assert with_newcomer[1] > 90


@pytest.mark.slow
def test_without_newcomers_the_option_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, scenario = learned(LearnerConfig())
    x = scenario.tasks[2].test.whole().x
    on = Answerer(learner).route(x, "sample")
    monkeypatch.setattr(learner, "config", replace(learner.config, newcomers_answer=False))
    off = Answerer(learner).route(x, "sample")
    np.testing.assert_array_equal(on.expert, off.expert)
    np.testing.assert_array_equal(on.scores, off.scores)


@pytest.mark.slow
@pytest.mark.parametrize("window", [50, NEVER])
def test_row_is_answered_alike_alone_in_a_pure_and_in_a_mixed_batch(window: int) -> None:
    learner, scenario = learned(LearnerConfig(promotion_window=window, promote_by_replay=False))
    answerer = Answerer(learner)
    pure = scenario.tasks[1].test.whole().x
    mixed = torch.cat([pure[:1], scenario.tasks[3].test.whole().x, scenario.tasks[0].test.whole().x])
    results = []
    for rows in (pure[:1], pure, mixed):
        routes = answerer.route(rows, "sample")
        results.append((int(routes.expert[0]), answerer.probabilities(rows, routes, scenario.classes)[0]))
    assert len({expert for expert, _ in results}) == 1
    for _, probabilities in results:
        np.testing.assert_allclose(probabilities, results[0][1], atol=1e-5)


@pytest.mark.slow
def test_large_inputs_are_cut_into_parts_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, scenario = learned(LearnerConfig())
    x = torch.cat([task.test.whole().x for task in scenario.tasks])
    answerer = Answerer(learner)
    whole = answerer.route(x, "sample")
    expected = answerer.probabilities(x, whole, scenario.classes)
    monkeypatch.setattr("hge.learning.routing.ROWS_AT_ONCE", 7)
    parts = answerer.route(x, "sample")
    np.testing.assert_array_equal(parts.expert, whole.expert)
    np.testing.assert_allclose(answerer.probabilities(x, parts, scenario.classes), expected, atol=1e-5)


@pytest.mark.slow
def test_confidence_is_a_probability_that_falls_with_doubt() -> None:
    learner, scenario = learned(LearnerConfig())
    answerer, x = Answerer(learner), torch.cat([task.test.whole().x for task in scenario.tasks])
    confidence = answerer.confidence(answerer.route(x, "sample"), "sample")
    assert ((confidence > 0) & (confidence <= 1)).all()
    between = (scenario.tasks[0].test.whole().x[:50] + scenario.tasks[1].test.whole().x[:50]) / 2
    doubtful = answerer.confidence(answerer.route(between, "sample"), "sample")
    assert doubtful.mean() < confidence.mean()
    followed = answerer.route(x, "window")
    posterior = np.exp(-followed.scores)
    np.testing.assert_allclose(posterior.sum(axis=0), 1)
    np.testing.assert_allclose(answerer.confidence(followed, "window"), posterior.max(axis=0))


@pytest.mark.slow
def test_batch_routing_chooses_one_expert() -> None:
    learner, scenario = learned(LearnerConfig())
    routes = Answerer(learner).route(scenario.tasks[3].test.whole().x, "batch")
    assert routes.expert.shape == (1,)
    assert routes.queried.tolist() == [5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [LearnerConfig(organisation="tree"), LearnerConfig(promotion_window=NEVER, promote_by_replay=False)]
)
def test_a_pool_that_is_asked_for_all_at_once_routes_alike(
    config: LearnerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, scenario = learned(config)
    answerer, x = Answerer(learner), torch.cat([task.test.whole().x for task in scenario.tasks])
    expected = [answerer.route(x, routing) for routing in ("sample", "batch")]  # type: ignore[arg-type]
    calls: list[int] = []

    def counted(ask: Callable[..., Any]) -> Callable[..., Any]:
        return lambda pool, experts, *args, **kw: (calls.append(len(experts)), ask(pool, experts, *args, **kw))[1]

    monkeypatch.setattr(EagerPool, "scores_all_at_once", True)
    for name in ("scores", "batch_scores", "sketches"):
        monkeypatch.setattr(EagerPool, name, counted(getattr(EagerPool, name)))
    routed = [answerer.route(x, routing) for routing in ("sample", "batch")]  # type: ignore[arg-type]
    assert calls.count(5) == len(calls) == 2, "once for the rows, once for the batch"
    for one, other in zip(routed, expected, strict=True):
        np.testing.assert_array_equal(one.expert, other.expert)
        np.testing.assert_array_equal(one.queried, other.queried)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-2)


def test_the_first_expert_stands_at_the_first_node_however_rows_are_routed() -> None:
    learner, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    for batch in BATCHES[:5]:
        learner.learn(batch)
    for routing in ("sample", "window", "stream"):
        routes = Answerer(learner).route(BATCHES[5].x, routing)  # type: ignore[arg-type]
        assert routes.expert.tolist() == [0] * len(BATCHES[5])
        assert routes.node.tolist() == [1] * len(BATCHES[5])


def test_the_cost_of_the_gate_is_that_of_the_scores_and_of_the_sketches_before_them() -> None:
    plain, _ = learner_of(SETTINGS["sticky"], "eager", MLP)
    assert Answerer(plain).gate_multiply_adds(2.5, 8) == plain.pool.costs().score.per_row(2.5, 8) > 0
    listed, _ = learner_of(SETTINGS["tree"], "eager", SHORTLISTED)
    costs = listed.pool.costs()
    expected = costs.sketch.per_row(1, 8) + costs.score.per_row(2.5, 8)
    assert Answerer(listed).gate_multiply_adds(2.5, 8) == expected > costs.score.per_row(2.5, 8)
