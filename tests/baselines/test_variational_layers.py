"""HVCL and SNCL: what is added to the loss, which rows are kept, and the networks that they refuse."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy, norm
from torch import nn

from helpers.small_methods import linear_setting
from hge.baselines import hvcl, sncl
from hge.baselines.sncl import ByLoss
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.experts.networks import NETS
from hge.learning.online import Setting

FIRST = Batch(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 2]))
SECOND = Batch(torch.tensor([[-1.0, 0.5], [2.0, 1.0]]), torch.tensor([1, 1]))
MODULES = {"hvcl": hvcl, "sncl": sncl}


def small_mlp(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, outputs))


def mlp_setting(**baseline: Any) -> Setting:
    setting = linear_setting(**baseline)
    return replace(setting, spec=replace(setting.spec, net=small_mlp))


def numpy(tensor: Any) -> Any:
    return tensor.detach().double().numpy()


def test_hvcl_measures_the_distance_from_the_prior() -> None:
    layer = hvcl.VariationalExperts(nn.Linear(3, 2))
    prior_mean, prior_deviation = numpy(layer.mean).copy(), np.log1p(np.exp(-2.6))
    prior_gate, gate_bias = numpy(layer.gate.weight).copy(), numpy(layer.gate.bias).copy()
    with torch.no_grad():
        layer.mean += torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
        layer.rho += 0.5
        layer.gate.weight += 1.0
        layer.gate.weight[0] -= 2.0
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    layer.train()(x)
    deviation = np.log1p(np.exp(-2.1))
    grid = norm(0, deviation).expect  # KL(N(m, s) ‖ N(0, p)) by integration
    kl = np.array(
        [
            grid(lambda v, m=m: norm.logpdf(v, 0, deviation) - norm.logpdf(v + m, 0, prior_deviation))
            for m in (numpy(layer.mean) - prior_mean).flatten()
        ]
    ).mean()
    p, q = (
        np.exp(g) / np.exp(g).sum(1, keepdims=True)
        for g in (numpy(x) @ numpy(layer.gate.weight).T + gate_bias, numpy(x) @ prior_gate.T + gate_bias)
    )
    apart = ((numpy(layer.mean)[0] - numpy(layer.mean)[1]) ** 2).mean()  # the deviations are alike
    kernel = np.exp(-np.array([[0, apart], [apart, 0]]) / 10)
    spread = entropy(p.mean(0)) + np.mean([entropy(row) for row in p]) - np.linalg.det(kernel)
    gate = np.mean([entropy(own, prior) for own, prior in zip(p, q, strict=True)])
    assert layer.penalty(3.0).item() == pytest.approx(3.0 * kl + 0.5 * gate + 0.02 * spread, rel=1e-4)
    layer.consolidate()
    layer.train()(x)
    assert layer.penalty(3.0).item() == pytest.approx(0.02 * spread, rel=1e-4), "the posterior is the prior now"


def test_hvcl_answers_by_the_mean_weights_of_the_gates_choice() -> None:
    layer = hvcl.VariationalExperts(nn.Linear(3, 2)).eval()
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(1))
    chosen = layer.gate(x).argmax(1).tolist()
    assert len(set(chosen)) == 2
    for row, expert, found in zip(x, chosen, layer(x), strict=True):
        assert torch.allclose(found, layer.mean[expert] @ row + layer.bias[expert], atol=1e-6)


def test_hvcls_noise_has_the_deviation_of_each_unit_and_differs_between_rows() -> None:
    layer = hvcl.VariationalExperts(nn.Linear(3, 2))
    layer.rho.data[:, 1] = 1.0
    x = torch.tensor([[1.0, -2.0, 2.0]]).repeat(4000, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        noise = torch.cat([layer._flipout(x[:40]) for _ in range(200)])
    expected = 3 * np.log1p(np.exp([-2.6, 1.0]))  # the length of x
    assert numpy(noise.std(dim=0)[0]) == pytest.approx(expected, rel=0.1)
    assert len(noise[:40, 0, 0].unique()) > 2


def test_hvcl_makes_the_posterior_the_prior_at_a_boundary() -> None:
    learner: Any = hvcl.build(mlp_setting())
    list(learner.learn_all([FIRST] * 3))
    layer = learner.rule.layers[0]
    assert not torch.equal(layer.prior_mean, layer.mean)
    learner.boundary()
    assert torch.equal(layer.prior_mean, layer.mean)


def test_sncl_adds_what_remembered_rows_had_and_the_penalty_of_the_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    learner: Any = sncl.build(mlp_setting(logit_weight=0.3, label_weight=0.7, penalty=2.0))
    rule = learner.rule
    rule.gated.rho.data -= 40  # gates without noise
    list(learner.learn_all([FIRST]))
    kept = rule.memory.columns
    assert sorted(kept["hidden"].tolist()) == sorted(rule.gated.hidden.tolist()), "as answered after the step"
    for name in ("logits", "hidden"):
        kept[name] += torch.randn(kept[name].shape, generator=torch.Generator().manual_seed(0))
    certain = numpy(rule.gated.mean) / np.log1p(np.exp(numpy(rule.gated.rho)))
    gates = 0.5 * np.log(1 + certain**2).mean()
    seen: list[Any] = []
    monkeypatch.setattr(rule.network, "step", lambda loss, step: seen.append(loss(rule.network.net)) or 1.0)
    old = rule.memory.draw(2, 1)
    (outcome,) = learner.learn_all([SECOND])

    def answered(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, _, last = rule.gated.layers
        hidden = first(x).relu() * rule.gated.mean
        return last(hidden), hidden

    logits, hidden = answered(old["x"])
    own = nn.functional.cross_entropy(answered(SECOND.x)[0], SECOND.y)
    match = (logits - old["logits"]).square().mean() + (hidden - old["hidden"]).square().mean()
    expected = own + 2.0 * gates + 0.3 * match + 0.7 * nn.functional.cross_entropy(logits, old["y"])
    assert gates > 10
    assert seen[0].item() == pytest.approx(expected.item(), rel=1e-5)
    assert outcome.loss == pytest.approx(own.item(), rel=1e-5), "of the batch alone"


def test_sncl_keeps_rows_with_odds_in_proportion_to_their_loss() -> None:
    counts: Counter[int] = Counter()
    for seed in range(600):
        memory = ByLoss(1, Keys(seed))
        memory.offer(0, torch.tensor([1.0, 3.0]), x=torch.tensor([[0], [1]]))
        memory.offer(1, torch.tensor([4.0]), x=torch.tensor([[2]]))
        counts[int(memory.columns["x"])] += 1
    assert [counts[row] / 600 for row in range(3)] == pytest.approx([1 / 8, 3 / 8, 4 / 8], abs=0.06)
    assert (memory.seen, memory.rows_kept) == (3, 1)


@pytest.mark.parametrize("name", MODULES)
def test_networks_that_are_no_mlp_are_refused(name: str) -> None:
    setting = linear_setting()
    spec = replace(setting.spec, net=NETS["conv4-narrow"], shape=(1, 28, 28))
    with pytest.raises(ValueError, match="net: got a network with a Conv2d, expected an MLP, as net=mlp"):
        MODULES[name].build(replace(setting, spec=spec))  # type: ignore[attr-defined]


def test_sncl_wants_hidden_units() -> None:
    with pytest.raises(ValueError, match="net: got a network without hidden units"):
        sncl.build(linear_setting())


@pytest.mark.slow
def test_sncl_remembers_digits(tmp_path: Path) -> None:
    assert run(build_config("split-digits", "sncl", epochs_scale=0.5), tmp_path)["accuracy_sample"] > 85
