"""A hypernetwork: its penalty a step ahead, which task's weights answer, and that earlier tasks are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from helpers.small_methods import linear_setting
from hge.baselines import hn, hn_entropy
from hge.baselines.hypernetwork import Hypernetwork, TaskWeights
from hge.core.types import Batch
from hge.experiments.build import build_learner, build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.experts.networks import NETS

FIRST = Batch(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 2]))
SECOND = Batch(torch.tensor([[-1.0, 0.5], [2.0, 1.0]]), torch.tensor([1, 1]))


def made(factor: float = 0.5) -> TaskWeights:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hypernetwork = Hypernetwork(torch.nn.Linear(2, 3))
        for weight in hypernetwork.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        return TaskWeights(hypernetwork, embedding, factor)


def embedding(task: int) -> torch.Tensor:
    return torch.randn(32, generator=torch.Generator().manual_seed(task))


def task_loss(weights: Any) -> Any:
    return cross_entropy(SECOND.x @ weights["weight"].T + weights["bias"], SECOND.y)


def test_the_penalty_is_of_the_weights_one_step_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    generated = made(factor=5.0)
    generated.begin(1)
    generated.begin(2)
    taken: list[Any] = []
    monkeypatch.setattr(generated.trained, "update", lambda gradients: taken.append(gradients) or True)
    generated.step(task_loss)

    ahead = made(factor=5.0)  # the same, moved along the gradient of the loss alone
    ahead.begin(1)
    ahead.begin(2)
    own = ahead.trained.gradient(task_loss(ahead.hypernetwork(ahead.embedding)))
    for weight, gradient in zip(ahead.trained.weights, own, strict=True):
        weight.data -= 1e-3 * gradient
    apart = [
        (now - ahead.targets[task][name]).square().sum()
        for task in (0, 1)
        for name, now in ahead.hypernetwork(ahead.embeddings[task]).items()
    ]
    penalty = ahead.trained.gradient(5.0 * sum(apart) / 2)
    assert max(float(gradient.abs().max()) for gradient in penalty) > 1e-3
    for found, first, second in zip(taken[0], own, penalty, strict=True):
        assert torch.allclose(found, first + second, atol=1e-6)


def test_a_task_begins_with_an_embedding_of_its_own_and_leaves_those_of_others_alone() -> None:
    drawn = [torch.zeros(32), torch.ones(32)]
    generated = TaskWeights(Hypernetwork(torch.nn.Linear(2, 3)), lambda task: drawn[task].clone(), factor=0.5)
    generated.step(task_loss)
    generated.begin(1)
    assert torch.equal(generated.embeddings[1], drawn[1])
    first = generated.embeddings[0].clone()
    for _ in range(2):  # the heads are 0, so the first step does not move the embedding
        generated.step(task_loss)
    assert torch.equal(generated.embeddings[0], first)
    assert not torch.equal(generated.embeddings[1], drawn[1])
    assert list(generated.targets) == [0]
    generated.begin(0)
    assert list(generated.targets) == [1], "a task that recurs is trained again, and the other one protected"


def test_a_step_moves_no_generated_weight_by_many_times_the_learning_rate() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        hypernetwork = Hypernetwork(NETS["mlp"]((4,), 3))
        generated = TaskWeights(hypernetwork, embedding, factor=0.5)
    before = generated.weights(0)
    x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3
    net = NETS["mlp"]((4,), 3)
    generated.step(lambda weights: cross_entropy(functional_call(net, weights, (x,)), y))
    moved = [(new - before[name]).abs().max() for name, new in generated.weights(0).items()]
    assert 1e-3 < max(map(float, moved)) < 5e-3


def test_the_rows_of_a_tensor_do_not_move_together() -> None:
    hypernetwork = made().hypernetwork
    for head in hypernetwork.heads:
        torch.nn.init.zeros_(head.bias)
    moved = hypernetwork(embedding(0))["weight"].detach() - hypernetwork.initial[0]
    assert float(moved.abs().max()) > 1e-4
    torch.testing.assert_close(moved.mean(dim=0), torch.zeros(2), atol=1e-6, rtol=0)


def test_the_first_weights_are_those_of_the_network() -> None:
    net = NETS["mlp"]((4,), 3)
    for weights in (Hypernetwork(net)(torch.randn(32)), Hypernetwork(net)(torch.zeros(32))):
        assert all(torch.equal(weights[name], weight) for name, weight in net.named_parameters())


def test_the_task_of_a_row_is_the_one_with_the_lowest_entropy_and_of_a_batch_with_the_lowest_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = hn_entropy.build(linear_setting())
    list(learner.learn_all([FIRST]))
    learner.boundary()
    list(learner.learn_all([SECOND]))
    # Two rows: the first network is rather sure of one and not of the other, the second one fairly sure of both.
    logits = [[[4.0, 0, 0, 0], [0, 0, 0, 0]], [[0, 3.0, 0, 0], [0, 3.0, 0, 0]]]
    monkeypatch.setattr(learner.rule, "logits_of", lambda task, x: torch.tensor(logits[task])[: len(x)])
    answers, x = learner.answers(), torch.zeros(2, 2)
    routes = answers.route(x, "sample")
    assert routes.expert.tolist() == [0, 1]
    assert answers.route(x, "batch").expert.tolist() == [1]
    p = np.exp(3.0) / (np.exp(3.0) + 3)
    entropy = -p * np.log(p) - (1 - p) * np.log((1 - p) / 3)
    assert routes.scores[:, 1] == pytest.approx([np.log(4), entropy])
    assert answers.probabilities(x, routes, 4)[1] == pytest.approx([(1 - p) / 3, p, (1 - p) / 3, (1 - p) / 3])


def test_a_given_task_answers_by_its_own_weights() -> None:
    current = [3]
    learner = hn.build(replace(linear_setting(), current_task=lambda: current[0]))
    list(learner.learn_all([FIRST] * 3))
    current[0] = 1
    list(learner.learn_all([SECOND] * 3))
    for task, expert in ((3, 0), (1, 1), (7, 0)):
        answers = learner.answers_for(task)
        routes = answers.route(FIRST.x, "sample")
        assert routes.expert.tolist() == [expert, expert]
        expected = learner.rule.logits_of(expert, FIRST.x).double().softmax(1).numpy()
        assert answers.probabilities(FIRST.x, routes, 4) == pytest.approx(expected)
    assert len(learner.experts) == 2


def test_a_batch_norm_is_refused() -> None:
    config = replace(build_config("smnist", "hn"), net="conv4-narrow", images=True)
    setting = linear_setting()
    spec = replace(setting.spec, net=NETS[config.net], shape=(1, 28, 28))
    with pytest.raises(ValueError, match="net: got a network with a BatchNorm, expected one without"):
        hn.build(replace(setting, spec=spec))


def test_what_is_not_a_number_changes_nothing() -> None:
    learner = hn_entropy.build(linear_setting())
    before = learner.rule.logits(FIRST.x)
    (step,) = learner.learn_all([Batch(FIRST.x * torch.nan, FIRST.y)])
    assert step.trained == ()
    assert torch.equal(learner.rule.logits(FIRST.x), before)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_seed_learns(seed: int, tmp_path: Path) -> None:
    assert run(replace(build_config("split-digits", "hn"), tasks=3, seed=seed), tmp_path)["accuracy_sample"] > 90


@pytest.mark.slow
def test_digits_are_kept_with_given_tasks_and_with_some_seeds_found_by_entropy(tmp_path: Path) -> None:
    given, found = (
        run(replace(build_config("split-digits", name), tasks=2, seed=1), tmp_path / name)
        for name in ("hn", "hn-entropy")
    )
    assert given["accuracy_sample"] > 90
    assert given["gate_accuracy_sample"] == 100
    assert 60 < found["gate_accuracy_sample"] < 100
    assert found["gate_accuracy_batch"] == 100


@pytest.mark.slow
def test_a_recurring_task_brings_its_weights_back() -> None:
    from hge.core.randomness import Keys

    config, keys, current = build_config("split-digits", "hn"), Keys(0), [0]
    scenario = build_scenario(config, keys, None)
    learner: Any = build_learner(config, scenario, keys, lambda event: None, lambda: current[0])
    for task, batch in scenario.stream(32, 40, keys):
        if task > 1:
            break
        current[0] = task
        list(learner.learn_all([batch]))
    current[0] = 0
    test = scenario.tasks[0].test.whole()
    assert (learner.rule.logits_of(0, test.x).argmax(1) == test.y).float().mean() > 0.9
