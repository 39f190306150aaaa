"""What an answer costs is counted from what is computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.small_learners import BATCHES, CLASSES, SETTINGS, learner_of
from hge.core.settings import override
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.learning.routing import Answerer

NETWORK = 64 * 100 + 100 * 100 + 100 * 10
PROJECTION = 64 * 32
PRODUCTS = 35 * 36 // 2  # of 1, two lengths and 32 coordinates


def result_of(folder: Path, *settings: str) -> dict[str, Any]:
    config = build_config("split-digits", epochs_scale=0.1)
    for setting in ("learner.joint=false", *settings):
        config = override(config, setting)
    return run(config, folder)


def cost(result: dict[str, Any]) -> dict[str, dict[str, float]]:
    assert result["experts"] == 5
    found = dict(result["cost"])
    assert found.pop("expert_multiply_adds") == NETWORK
    for routing in ("sample", "batch"):
        row = found[routing]
        assert row["answer_multiply_adds"] == row["gate_multiply_adds"] + NETWORK
        assert row["gate_expert_equivalents"] == pytest.approx(row["gate_multiply_adds"] / NETWORK, rel=1e-3)
        assert 0 < row["gate_ms_per_row"] < row["answer_ms_per_row"]
    counted: dict[str, dict[str, float]] = found
    return counted


@pytest.mark.slow
def test_a_sketch_is_projected_once_and_a_batch_is_one_row(tmp_path: Path) -> None:
    found = cost(result_of(tmp_path, "score.name=sketch"))
    assert found["sample"]["gate_multiply_adds"] == PROJECTION + PRODUCTS + 5 * PRODUCTS
    assert found["batch"]["gate_multiply_adds"] == round(PROJECTION + PRODUCTS + 5 * PRODUCTS / 32)


@pytest.mark.slow
def test_classes_are_counted_as_far_as_they_are_an_experts_own(tmp_path: Path) -> None:
    found = cost(result_of(tmp_path, "score.name=class-sketch"))
    for routing in ("sample", "batch"):
        assert found[routing]["gate_multiply_adds"] == PROJECTION + PRODUCTS + 5 * 2 * PRODUCTS


@pytest.fixture(scope="module")
def by_autoencoder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return {
        name: result_of(tmp_path_factory.mktemp(name), "score.name=autoencoder", f"learner.organisation={name}")
        for name in ("flat", "tree")
    }


@pytest.mark.slow
def test_a_costly_score_is_asked_of_few_at_no_loss(by_autoencoder: dict[str, dict[str, Any]]) -> None:
    flat, tree = by_autoencoder["flat"], by_autoencoder["tree"]
    assert flat["experts"] == tree["experts"] == flat["experts_queried_batch"] == 5
    assert tree["experts_queried_batch"] <= 2
    assert tree["accuracy_batch"] >= flat["accuracy_batch"]
    gates = [result["cost"]["batch"]["gate_expert_equivalents"] for result in (flat, tree)]
    assert gates[1] < gates[0] / 2


@pytest.mark.slow
def test_networks_are_counted_for_those_who_are_asked(by_autoencoder: dict[str, dict[str, Any]]) -> None:
    flat, tree = (cost(by_autoencoder[name]) for name in ("flat", "tree"))
    each = flat["sample"]["gate_multiply_adds"] / 5
    assert each > NETWORK
    assert flat["batch"]["gate_multiply_adds"] == 5 * each
    sketches = PROJECTION + PRODUCTS + 5 * PRODUCTS / 32
    asked = (tree["batch"]["gate_multiply_adds"] - sketches) / each
    assert 1 <= round(asked, 3) < 5


def test_a_joint_score_has_one_projection_and_evidence_of_all_who_are_asked() -> None:
    learner, _ = learner_of(SETTINGS["joint"], "stacked", CLASSES)
    for _ in learner.learn_all(BATCHES):
        pass
    learner.end_stream()
    count = Answerer(learner).gate_multiply_adds
    once, each = count(0, 1), count(1, 1) - count(0, 1)
    assert once == learner.pool.costs().score.once > 0
    assert each > learner.pool.costs().network
    assert count(2, 8) == pytest.approx(once + 2 * each)


def test_a_shortlist_looks_at_all_sketches_first() -> None:
    learner, _ = learner_of(replace(SETTINGS["joint"], organisation="tree"), "stacked", CLASSES)
    for _ in learner.learn_all(BATCHES):
        pass
    learner.end_stream()
    costs, experts = learner.pool.costs(), len(learner.experts)
    assert Answerer(learner).gate_multiply_adds(0, 8) == costs.score.once + costs.sketch.per_row(experts, 8)
