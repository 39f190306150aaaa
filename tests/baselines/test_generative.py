"""Methods with a model of the inputs: CN-DPM's shares and updates computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax

from helpers.small_methods import linear_setting
from hge.baselines import cn_dpm
from hge.baselines.cn_dpm_experts import Expert
from hge.core.randomness import Keys
from hge.core.types import Batch

Array = npt.NDArray[np.float64]
ROWS = Batch(torch.tensor([[0.1, 0.9], [0.8, 0.3]]), torch.tensor([0, 2]))


def linear(layer: Any, x: Array) -> Array:
    found: Array = x @ layer.weight.detach().double().numpy().T + layer.bias.detach().double().numpy()
    return found


def column(net: Any, x: Array) -> tuple[Array, Array]:
    units = np.maximum(linear(net.second, np.maximum(linear(net.first, x), 0)), 0)
    return linear(net.head, units), units


def nll_by_hand(expert: Expert, x: Array, draws: Array) -> Array:
    """Half the squared error, a mean over draws, and the divergence from N(0, 1)."""
    mean, log_variance = np.split(column(expert.encoder, x)[0], 2, axis=1)
    z = mean[:, None] + draws * np.exp(log_variance / 2)[:, None]
    for layer in (expert.decoder[0], expert.decoder[2]):
        z = np.maximum(linear(layer, z), 0)
    decoded = 1 / (1 + np.exp(-linear(expert.decoder[4], z)))
    divergence = 0.5 * (np.exp(log_variance) + mean**2 - 1 - log_variance).sum(1)
    found: Array = 0.5 * ((decoded - x[:, None]) ** 2).sum(2).mean(1) + divergence
    return found


def test_cn_dpm_shares_rows_by_evidence_counts_them_and_trains_in_proportion() -> None:
    learner = cn_dpm.build(linear_setting())
    mixture = learner.rule.mixture  # type: ignore[attr-defined]
    for rows in (10, 30):
        mixture.add(rows)
    x, y = ROWS.x.double().numpy(), ROWS.y.numpy()
    draws = torch.randn(2, 16, 16, generator=Keys(0).generator("latent", 0, 0, device=torch.device("cpu")))
    experts = mixture.trained
    found = [column(expert.classifier, x) for expert in experts]
    nll = np.stack([nll_by_hand(expert, x, draws.double().numpy()) for expert in experts], axis=1)
    chilled = np.stack([log_softmax(logits / 0.01, axis=1)[[0, 1], y] for logits, _ in found], axis=1)
    shares = softmax(chilled - nll + np.log([10, 30]), axis=1)
    before = [expert.classifier.head.weight.detach().double().numpy().copy() for expert in experts]
    (step,) = learner.learn_all([ROWS])
    assert step.loss == pytest.approx((nll - chilled - np.log([10, 30])).min(axis=1).mean(), abs=1e-3)
    assert mixture.counts.tolist() == pytest.approx([0, *np.add(shares.sum(axis=0), (10, 30))], abs=1e-3)
    for expert, (logits, units), share, start in zip(experts, found, shares.T, before, strict=True):
        if share.sum() < 0.1:
            continue
        error = (softmax(logits, axis=1) - np.eye(4)[y]) * share[:, None]  # not chilled
        moved = expert.classifier.head.weight.detach().double().numpy() - start
        gradient = error.T @ units
        clear = np.abs(gradient) > 1e-6
        assert moved[clear] == pytest.approx(-1e-4 * np.sign(gradient[clear]), rel=0.02)  # Adam's first step


@pytest.mark.parametrize("lateral", [False, True])
def test_cn_dpm_makes_an_expert_of_rows_that_belong_to_none(lateral: bool) -> None:
    setting = linear_setting(log_alpha=1e4, short_term=3, sleep_steps=8, lateral=lateral)
    learner = cn_dpm.build(setting)
    rule: Any = learner.rule
    list(learner.learn_all([ROWS]))
    assert (learner.rows_kept, len(rule.mixture.trained)) == (2, 0)
    assert rule.logits(ROWS.x).unique().tolist() == [0.0], "nothing is known yet"
    list(learner.learn_all([ROWS, ROWS]))
    assert (learner.rows_kept, rule.mixture.counts.tolist()) == (0, [0, 3, 3])
    assert [expert.classifier.first.out_features for expert in rule.mixture.trained] == [64, 16 if lateral else 64]
    earlier = rule.mixture.trained[0].classifier.first.weight.clone()
    rule.mixture.study(ROWS.x, ROWS.y)
    assert torch.equal(rule.mixture.trained[0].classifier.first.weight, earlier), (
        "a later expert changes no earlier one"
    )


def test_cn_dpm_predicts_by_the_sum_over_experts() -> None:
    rule: Any = cn_dpm.build(linear_setting()).rule
    for rows in (10, 30):
        rule.mixture.add(rows)
    x = ROWS.x.double().numpy()
    draws = torch.randn(1, 16, 16, generator=Keys(0).generator("latent", device=torch.device("cpu"))).double().numpy()
    joint = [
        np.log(rows) - nll_by_hand(expert, x, draws)[:, None] + log_softmax(column(expert.classifier, x)[0] / 0.01, 1)
        for rows, expert in zip((10, 30), rule.mixture.trained, strict=True)
    ]
    assert rule.logits(ROWS.x).double().numpy() == pytest.approx(logsumexp(joint, axis=0), abs=1e-3)
    assert torch.allclose(rule.logits(ROWS.x[1:]), rule.logits(ROWS.x)[1:]), "the rows beside it make no difference"
