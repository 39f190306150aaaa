"""EWC, SI, LwF and BGD: each update against a step computed by hand, and when they consolidate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import softmax

from helpers.small_methods import LR, gradient, linear_setting, weights
from hge.baselines import bgd, ewc, expandable, lwf, si
from hge.baselines.consolidation import AtDetectedSwitches
from hge.core.config import LearnerConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.build import build_learner, build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

Array = npt.NDArray[np.float64]
FIRST = Batch(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 2]))
SECOND = Batch(torch.tensor([[-1.0, 0.5], [2.0, 1.0]]), torch.tensor([1, 1]))


def learn_three(method: Any, **baseline: Any) -> list[Array]:
    """Learn the first batch, consolidate, then learn the second one twice; return the weights before and after each."""
    learner = method.build(linear_setting(**baseline))
    found = [weights(learner)]
    for number, batch in enumerate((FIRST, SECOND, SECOND)):
        if number == 1:
            learner.boundary()
        list(learner.learn_all([batch]))
        found.append(weights(learner))
    return found


def row_gradients(weight: Array, batch: Batch) -> list[Array]:
    return [gradient(weight, Batch(batch.x[n : n + 1], batch.y[n : n + 1])) for n in range(len(batch))]


def test_ewc_pulls_back_by_the_mean_of_squared_gradients() -> None:
    start, first, second, third = learn_three(ewc, penalty=3.0)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6)
    fisher = np.mean([np.square(g) for g in row_gradients(first, FIRST)], axis=0)
    assert second == pytest.approx(proximal_step(first, first, 2 * 3.0 * fisher), abs=1e-6), "still at the anchor"
    assert third == pytest.approx(proximal_step(second, first, 2 * 3.0 * fisher), abs=1e-6)


def test_si_pulls_back_by_the_path() -> None:
    start, first, second, third = learn_three(si, penalty=3.0)
    path = -gradient(start, FIRST) * (first - start)
    importance = path / ((first - start) ** 2 + 1.0)
    assert (path > 0).any()
    assert third == pytest.approx(proximal_step(second, first, 2 * 3.0 * importance), abs=1e-6)


def proximal_step(weight: Array, anchor: Array, curvature: Array) -> Array:
    """The minimum of the loss, linear on the second batch, of the penalty, and of the squared way over 2 LR."""
    return (weight - LR * gradient(weight, SECOND) + LR * curvature * anchor) / (1 + LR * curvature)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("method", [ewc, si])
def test_a_penalty_much_steeper_than_the_loss_is_minimised_with_it(method: Any, momentum: float) -> None:
    setting = linear_setting(penalty=1e3)
    optimiser = replace(setting.spec.optimiser, momentum=momentum)
    learner = method.build(replace(setting, spec=replace(setting.spec, optimiser=optimiser)))
    list(learner.learn_all([FIRST]))
    anchor = weights(learner)
    learner.boundary()
    list(learner.learn_all([SECOND] * 3000))
    curvature = 2 * 1e3 * learner.rule.penalty.importance[0].double().numpy()
    assert LR * curvature.max() > 2 * (1 + momentum), "plain steps diverge"
    assert gradient(weights(learner), SECOND) == pytest.approx(-curvature * (weights(learner) - anchor), abs=1e-3)


def test_lwf_trains_towards_the_old_answers_of_old_classes() -> None:
    start, first, second, third = learn_three(lwf, penalty=0.7)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6), "no teacher yet"
    old, x = [0, 2], SECOND.x.double().numpy()

    def distillation(weight: Array) -> Array:
        target, mine = (softmax(x @ w[old].T / 2, axis=1) for w in (first, weight))
        result = np.zeros_like(weight)
        result[old] = (mine - target).T @ x / 2 / len(x)
        return result

    assert second == pytest.approx(first - LR * gradient(first, SECOND), abs=1e-6), "the teacher agrees with itself"
    expected = gradient(second, SECOND) + 0.7 * distillation(second)
    assert third == pytest.approx(second - LR * expected, abs=1e-6)


def test_expandable_trains_both_heads_and_leaves_the_frozen_extractor_alone() -> None:
    learner = expandable.build(linear_setting())
    list(learner.learn_all([FIRST]))
    learner.boundary()  # type: ignore[attr-defined]
    own = learner.rule.representation  # type: ignore[attr-defined]
    x, y = torch.cat([SECOND.x, FIRST.x]), torch.cat([SECOND.y, FIRST.y]).numpy()
    features = own.features(x).detach().double().numpy()
    assert features[:, :64] == pytest.approx(features[:, 64:]), "the new extractor begins with the old one's weights"

    def expected(head: torch.nn.Linear, inputs: Array, labels: Any) -> Array:
        weight = head.weight.detach().double().numpy()
        error = softmax(inputs @ weight.T + head.bias.detach().double().numpy(), axis=1) - np.eye(len(weight))[labels]
        found: Array = weight - LR * error.T @ inputs / len(inputs)
        return found

    head = expected(own.head, features, y)
    auxiliary = expected(own.auxiliary, features[:, 64:], [1, 1, 4, 4])  # 4 stands for all old classes
    frozen = own.frozen[0].weight.clone()
    list(learner.learn_all([SECOND]))
    assert own.head.weight.detach().double().numpy() == pytest.approx(head, abs=1e-6)
    assert own.auxiliary.weight.detach().double().numpy() == pytest.approx(auxiliary, abs=1e-6)
    assert torch.equal(own.frozen[0].weight, frozen)
    assert not torch.equal(own.newest.weight, frozen)
    restored = expandable.build(linear_setting())
    restored.restore(learner.snapshot())
    losses = [[step.loss for step in model.learn_all([FIRST, SECOND])] for model in (learner, restored)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("labels_trick", [False, True])
def test_bgd_moves_means_and_deviations(labels_trick: bool) -> None:
    learner = bgd.build(linear_setting(deviation=0.1, labels_trick=labels_trick))
    start = weights(learner)
    list(learner.learn_all([FIRST]))
    keys, absent = Keys(0), (1, 3) if labels_trick else ()
    mean, noisy = np.zeros_like(start), np.zeros_like(start)
    for number in range(10):
        generator = keys.generator("noise", 0, number, device=torch.device("cpu"))
        noise = torch.randn(4, 2, generator=generator).double().numpy()
        g = 2 * gradient(start + 0.1 * noise, FIRST, absent)  # a sum over two rows
        mean, noisy = mean + g / 10, noisy + g * noise / 10
    assert weights(learner) == pytest.approx(start - 0.1**2 * mean, abs=1e-6)
    sigma = 0.1 * np.sqrt(1 + (0.1 * noisy / 2) ** 2) - 0.1**2 * noisy / 2
    assert learner.rule.deviations.sigmas[0].numpy() == pytest.approx(sigma, abs=1e-6)  # type: ignore[attr-defined]


class ScriptedRule:
    """Losses as scripted: what is learned and consolidated is written down."""

    multiply_adds = 0.0

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}
        self.log: list[str] = []

    def probe(self, batch: Batch) -> float:
        return float(batch.x[0])

    def learn(self, batch: Batch, step: int) -> float:
        self.log.append(str(step))
        return self.probe(batch)

    def consolidate(self) -> None:
        self.log.append("switch")

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_switch_is_detected_where_the_loss_stays_high_and_an_outlier_is_none() -> None:
    rule = ScriptedRule()
    detecting = AtDetectedSwitches(rule, LearnerConfig(recent_capacity=5), torch.device("cpu"))
    losses = [1.0, 1.1, 1.0, 9.0, 1.0, 9.0, 9.0, 9.0, 9.0, 8.0]
    for step, loss in enumerate(losses):
        detecting.learn(Batch(torch.tensor([loss]), torch.tensor([0])), step)
    assert rule.log == ["0", "1", "2", "3", "4", "switch", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize("method", ["ewc", "si", "lwf", "dgr"])
def test_every_n_consolidates_at_regular_intervals(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config("split-digits", f"{method}-every")
    config = replace(config, baseline=replace(config.baseline, consolidate_every=4))
    scenario = build_scenario(config, Keys(0), None)
    learner = build_learner(config, scenario, Keys(0), lambda event: None, lambda: 0)
    rule, at = learner.rule.rule, list[int]()  # type: ignore[attr-defined]
    monkeypatch.setattr(rule, "consolidate", lambda: at.append(learner.steps))
    list(learner.learn_all(batch for _, batch in list(scenario.stream(32, 1, Keys(0)))[:10]))
    assert at == [3, 7]


@pytest.mark.slow
def test_detected_switches_of_digits_are_the_boundaries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    monkeypatch.setattr(lwf.LearningWithoutForgetting, "consolidate", lambda self: found.append(1))
    run(build_config("split-digits", "lwf-detected", epochs_scale=0.5), tmp_path)
    assert len(found) == 4


@pytest.mark.slow
def test_protection_helps_where_the_classes_stay_the_same(tmp_path: Path) -> None:
    """Permuted digits: all tasks share the ten classes, so that weights can be protected at all."""
    accuracy = {}
    for method in ("naive", "ewc", "ewc-every", "si", "bgd"):
        config = replace(build_config("permuted-digits", method, epochs_scale=0.3), tasks=3)
        config = replace(config, baseline=replace(config.baseline, consolidate_every=20))
        accuracy[method] = run(config, tmp_path / method)["accuracy_sample"]
    assert accuracy["ewc"] > accuracy["naive"]
    assert accuracy["ewc-every"] > accuracy["naive"] + 20, "also by the sum of 40 consolidations"
    assert accuracy["si"] > accuracy["naive"]
    assert accuracy["bgd"] > 40, accuracy
