"""Methods that replay what a model of the inputs draws: DGR's loss and HCL's, its flow and its switches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import norm

from helpers.small_methods import LR, gradient, linear_setting, weights
from hge.baselines import dgr, hcl
from hge.baselines.flow import Flow
from hge.baselines.hcl import Tasks
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

Array = npt.NDArray[np.float64]
CPU = torch.device("cpu")
FIRST = Batch(torch.tensor([[0.1, 0.9], [0.5, 0.2]]), torch.tensor([0, 2]))
SECOND = Batch(torch.tensor([[0.8, 0.5], [0.3, 0.7]]), torch.tensor([1, 1]))


def test_dgr_weighs_the_batch_and_drawn_rows_by_the_number_of_tasks() -> None:
    learner: Any = dgr.build(linear_setting())
    rule, start = learner.rule, weights(learner)
    list(learner.learn_all([FIRST]))
    first = weights(learner)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6), "nothing to replay yet"
    learner.boundary()
    before = rule.generator.vae.decoder[0].weight.clone()
    for step, tasks in ((1, 2), (2, 3)):
        old, drawn = weights(learner), rule.replay(2, step)
        assert torch.equal(drawn.x, rule.generator.draw(2, step)), "rows of the copied generator"
        (outcome,) = learner.learn_all([SECOND])
        expected = gradient(old, SECOND) / tasks + (1 - 1 / tasks) * gradient(old, drawn)
        assert weights(learner) == pytest.approx(old - LR * expected, abs=1e-6)
        assert outcome.loss == pytest.approx(cross_entropy(old, SECOND), abs=1e-5), "of the batch alone"
        learner.boundary()
    assert not torch.equal(rule.generator.vae.decoder[0].weight, before), "the generator learns, too"


def test_dgr_labels_drawn_rows_by_the_copied_classifier_among_its_classes() -> None:
    learner: Any = dgr.build(linear_setting())
    list(learner.learn_all([FIRST]))
    learner.boundary()
    teacher = weights(learner)
    list(learner.learn_all([SECOND]))
    drawn = learner.rule.replay(50, step=7)
    logits = drawn.x.double().numpy() @ teacher.T
    assert drawn.y.tolist() == np.array([0, 2])[logits[:, [0, 2]].argmax(axis=1)].tolist()
    assert drawn.x.min() >= 0
    assert drawn.x.max() <= 1


def test_dgr_generates_the_inputs_of_an_estimator_in_their_own_units() -> None:
    setting = linear_setting()
    learner: Any = dgr.build(replace(setting, spec=replace(setting.spec, scaled=True)))
    far = Batch(torch.randn(64, 2, generator=torch.Generator().manual_seed(0)) * 3 + 500, torch.zeros(64).long())
    list(learner.learn_all([far] * 30))
    learner.boundary()
    drawn = learner.rule.replay(200, step=0).x
    assert drawn.mean() == pytest.approx(500, abs=2)
    assert drawn.std() < 6


def cross_entropy(weight: Array, batch: Batch) -> float:
    logits = batch.x.double().numpy() @ weight.T
    log_p = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(len(log_p)), batch.y.numpy()].mean())


def trained_flow(size: int) -> Flow:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        flow = Flow(size)
        for weight in flow.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    return flow.double()


def test_a_flow_returns_what_its_inverse_was_given_and_the_determinant_of_its_derivative() -> None:
    flow, x = trained_flow(5), torch.randn(3, 5, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    z, log_determinant = (found.detach() for found in flow(x))
    assert torch.allclose(flow.inverse(z), x, atol=1e-8)
    for row in range(3):
        jacobian: Any = torch.autograd.functional.jacobian(lambda own: flow(own[None])[0][0], x[row])  # type: ignore[no-untyped-call]
        assert log_determinant[row].item() == pytest.approx(float(torch.linalg.slogdet(jacobian)[1]), abs=1e-6)
    with pytest.raises(ValueError, match="inputs: got 1, expected at least 2"):
        Flow(1)


def hcl_rule(**baseline: Any) -> Any:
    return hcl.build(linear_setting(**baseline)).rule


def test_hcls_loss_is_the_density_of_a_row_about_the_mean_of_its_class_and_task() -> None:
    learner: Any = hcl.build(linear_setting())
    rule = learner.rule
    (step,) = learner.learn_all([FIRST])
    noisy = FIRST.x + 0.1 * torch.randn(2, 2, generator=Keys(0).generator("noise", 0, device=CPU))
    spread = noisy.std(dim=0, correction=0).clamp_min(0.05).double().numpy()
    z = (noisy.double().numpy() - noisy.mean(dim=0).double().numpy()) / spread  # the couplings begin with the identity
    order: Any = torch.arange(2)
    for coupling in rule.flow.couplings:
        order = order[coupling.order]
    means = rule.tasks.means(0)[FIRST.y].double().numpy()
    expected = norm.logpdf(z[:, order] - means).sum(axis=1) - np.log(spread).sum()
    assert step.loss == pytest.approx(-expected.mean() / 2, rel=1e-3)
    assert rule.tasks.seen.tolist() == [[True, False, True, False]]


@pytest.mark.parametrize("functional", [True, False])
def test_hcl_replays_latents_or_densities_of_rows_of_the_copy(functional: bool) -> None:
    rule = hcl_rule(functional=functional, penalty=3.0)
    rule.learn(FIRST, 0)
    rule.tasks.add()  # a switch
    for weight in rule.flow.parameters():
        weight.data += 0.05
    pairs = torch.tensor([[0, 0], [0, 2]])[Keys(0).rng("rehearsal", 9).integers(0, 2, 4)]
    means = rule.tasks.means(0)[pairs[:, 1]]
    latents = means + torch.randn(4, 2, generator=Keys(0).generator("latent", 9, device=CPU))
    with torch.no_grad():
        z, log_determinant = rule.flow(rule.old.inverse(latents))
        density = norm.logpdf((z - means).double().numpy()).sum(axis=1) + log_determinant.double().numpy()
        expected = 3.0 * float((z - latents).square().sum(1).mean()) if functional else -density.mean()
        assert float(rule._replay(4, 9, copying=False)) == pytest.approx(expected, rel=1e-4)


def test_hcl_opens_a_task_where_all_three_statistics_are_unusual_for_every_task() -> None:
    tasks = Tasks(size=2, classes=2, keys=Keys(0), device=CPU)
    assert tasks.which(torch.zeros(0, 3)) == 0, "the first task"
    usual = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    for offset in (0.0, 20.0):
        tasks.add()
        tasks.usual[-1] = usual + offset
    tasks.active = 1
    found = torch.tensor([[9.0, 9.0, 9.0], [-11.0, -11.0, -11.0]])
    assert tasks.which(found) == 2
    assert tasks.which(torch.tensor([[9.0, 0.0, 9.0], [-11.0, -11.0, -11.0]])) == 0, "one is usual for the first"
    assert tasks.which(torch.tensor([[0.0, 0.0, 0.0], [-11.0, 19.0, -11.0]])) == 1, "the active one comes first"
    tasks.usual[0] = usual[:19]
    assert tasks.which(found) == 0, "too few batches to tell"


def test_hcl_predicts_by_the_sum_over_tasks() -> None:
    rule = hcl_rule()
    assert rule.logits(FIRST.x).unique().tolist() == [0.0], "nothing is known yet"
    rule.learn(FIRST, 0)
    rule.tasks.add()
    rule.tasks.seen[1, 2] = True
    z = rule.flow(FIRST.x)[0].detach().double().numpy()
    density = [[norm.pdf(z - rule.tasks.means(t)[y].double().numpy()).prod(axis=1) for y in (0, 2)] for t in (0, 1)]
    found = rule.logits(FIRST.x).detach().double().numpy()
    assert found[:, 0] == pytest.approx(np.log(density[0][0]), abs=1e-4)
    assert found[:, 2] == pytest.approx(np.log(density[0][1] + density[1][1]), abs=1e-4)
    assert np.isneginf(found[:, [1, 3]]).all()


@pytest.mark.parametrize("method", [dgr, hcl])
def test_a_restored_learner_continues_after_a_switch(method: Any) -> None:
    learner, restored = (method.build(linear_setting()) for _ in range(2))
    list(learner.learn_all([FIRST] * 3))
    if method is dgr:
        learner.boundary()
    else:
        learner.rule.tasks.add()
        learner.rule.tasks.active = 1
    list(learner.learn_all([SECOND]))
    restored.restore(learner.snapshot())
    losses = [[step.loss for step in model.learn_all([FIRST, SECOND, FIRST])] for model in (learner, restored)]
    assert losses[0] == losses[1]
    assert torch.equal(learner.rule.logits(FIRST.x), restored.rule.logits(FIRST.x))


@pytest.mark.slow
def test_hcl_finds_the_switches_of_digits_and_remembers_without_rows(tmp_path: Path) -> None:
    result = run(build_config("split-digits", "hcl-fr", epochs_scale=0.5), tmp_path)
    assert result["rows_kept"] == 0
    assert result["accuracy_sample"] > 80


@pytest.mark.slow
def test_dgr_remembers_more_than_a_plain_network(tmp_path: Path) -> None:
    accuracy = {}
    for method in ("naive", "dgr"):
        config = replace(build_config("split-digits", method), tasks=2)
        accuracy[method] = run(config, tmp_path / method)["accuracy_sample"]
    assert accuracy["dgr"] > accuracy["naive"] + 20, accuracy
