from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hge.experts.features import features_and_logits
from hge.experts.joint.model import Evidence, EvidenceScaler, JointScore, fit_joint

ROWS = 200


def blobs(experts: int, seed: int = 0, scale: float = 1.0) -> tuple[list[Evidence], np.ndarray, np.ndarray]:
    """Rows around a centre per expert; an expert's score is the distance to its own centre, its answers are noise."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(experts), ROWS)
    x = owner + 0.3 * rng.standard_normal(len(owner))
    label = 2 * owner + rng.integers(0, 2, len(owner))
    evidence = [
        Evidence(
            scale * (x - e)[:, None] ** 2,
            rng.standard_normal((len(x), 2 * experts)),
            rng.standard_normal((len(x), 5)),
        )
        for e in range(experts)
    ]
    return evidence, owner, label


def of(evidence: Evidence, rows: np.ndarray) -> Evidence:
    return Evidence(evidence.parts[rows], evidence.logits[rows], evidence.features[rows])


def fitted(experts: int = 3, scale: float = 1.0) -> tuple[JointScore, list[Evidence], np.ndarray]:
    evidence, owner, label = blobs(experts, scale=scale)
    scalers = [EvidenceScaler.fit(of(e, owner == k), label[owner == k]) for k, e in enumerate(evidence)]
    columns = np.concatenate([r.transform(e) for r, e in zip(scalers, evidence, strict=True)], axis=1)
    test, owner_of_test, _ = blobs(experts, seed=1, scale=scale)
    return fit_joint(scalers, columns, owner, label, iterations=200, device=torch.device("cpu")), test, owner_of_test


def test_it_is_as_right_as_its_best_part_and_calibrated() -> None:
    joint, test, owner = fitted()
    logs = joint.experts(joint.pairs(test))
    by_part = np.concatenate([e.parts for e in test], axis=1).argmin(axis=1)
    right = logs.argmax(axis=0) == owner
    assert right.mean() > (by_part == owner).mean() - 0.02
    assert abs(np.exp(logs.max(axis=0)).mean() - right.mean()) < 0.05


def test_probabilities_sum_to_one() -> None:
    joint, test, _ = fitted()
    pairs = joint.pairs(test)
    np.testing.assert_allclose(np.exp(joint.experts(pairs)).sum(axis=0), 1)
    np.testing.assert_allclose(joint.mixture(test, outputs=6).sum(axis=1), 1)
    np.testing.assert_allclose(joint.mixture(test, outputs=3).sum(axis=1), 1)
    of_two = joint.mixture(test, outputs=6, excluded=[1])
    np.testing.assert_allclose(of_two.sum(axis=1), 1)
    assert of_two[:, 2:4].max() < joint.mixture(test, outputs=6)[:, 2:4].max()
    assert joint.pair_class.tolist() == list(range(6))
    assert joint.pair_expert.tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_the_unit_of_a_score_does_not_matter(scale: float) -> None:
    one, test, _ = fitted()
    other, scaled, _ = fitted(scale=scale)
    np.testing.assert_allclose(one.experts(one.pairs(test)), other.experts(other.pairs(scaled)), atol=0.05)


def test_a_row_of_another_world_gets_finite_probabilities() -> None:
    joint, test, _ = fitted()
    far = [Evidence(e.parts + 1e30, e.logits * 1e9, e.features * 1e9) for e in test]
    assert np.isfinite(joint.experts(joint.pairs(far))).all()


def test_parts_that_say_nothing_and_rare_classes_are_left_out() -> None:
    parts = np.stack([np.arange(100.0), np.full(100, np.nan)], axis=1)
    labels = np.array([3] * 99 + [7])
    scaler = EvidenceScaler.fit(Evidence(parts, np.zeros((100, 9)), np.zeros((100, 0))), labels)
    assert scaler.parts.tolist() == [0]
    assert scaler.classes.tolist() == [3]


@settings(max_examples=20, deadline=None)
@given(row=st.integers(0, 3 * ROWS - 1))
def test_a_row_is_judged_by_itself(row: int) -> None:
    joint, test, _ = JOINT
    alone = joint.pairs([of(e, np.array([row])) for e in test])
    np.testing.assert_allclose(alone[0], joint.pairs(test)[row], rtol=1e-9, atol=1e-9)


JOINT = fitted()


def test_features_of_nets_that_have_none() -> None:
    x = torch.rand(4, 3)
    assert features_and_logits(nn.Identity(), x)[0].shape == (4, 0)
    twice = nn.Linear(3, 3)
    assert features_and_logits(nn.Sequential(twice, twice), x)[0].shape == (4, 0)
    net = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    features, logits = features_and_logits(net, x)
    torch.testing.assert_close(net[2](features), logits)
    assert not net[2]._forward_pre_hooks
