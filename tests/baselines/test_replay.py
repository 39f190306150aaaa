"""Methods with a memory: each update against a step computed by hand, and whole runs on digits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from helpers.small_methods import LR, gradient, linear_setting, weights
from hge.baselines import agem, der, er, er_ace, gdumb, joint
from hge.baselines.memory import Reservoir
from hge.core.randomness import Keys
from hge.core.settings import override
from hge.core.types import Batch
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

Array = npt.NDArray[np.float64]
FIRST = Batch(torch.tensor([[1.0, 2.0], [0.5, -1.0]]), torch.tensor([0, 2]))
SECOND = Batch(torch.tensor([[-1.0, 0.5], [2.0, 1.0]]), torch.tensor([1, 1]))


def learn_two(method: Any, **baseline: float) -> tuple[Array, Array, Array]:
    """Return the weights before, after the first and after the second batch."""
    learner = method.build(linear_setting(**baseline))
    found = [weights(learner)]
    for batch in (FIRST, SECOND):
        list(learner.learn_all([batch]))
        found.append(weights(learner))
    return found[0], found[1], found[2]


def test_er_trains_on_the_batch_and_the_memory_in_one_mean() -> None:
    start, first, second = learn_two(er)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6)
    both = Batch(torch.cat([FIRST.x, SECOND.x]), torch.cat([FIRST.y, SECOND.y]))
    assert second == pytest.approx(first - LR * gradient(first, both), abs=1e-6)


def test_er_ace_leaves_seen_classes_out_of_the_new_batchs_loss_but_not_unseen_ones() -> None:
    start, first, second = learn_two(er_ace)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6)
    # Class 3 was never seen: it stays in. The class with the highest number seen is 2, and the new one is 1.
    expected = gradient(first, SECOND, absent=(0, 2)) + gradient(first, FIRST)
    assert second == pytest.approx(first - LR * expected, abs=1e-6)


def test_agem_turns_a_step_that_would_raise_the_loss_of_the_memory() -> None:
    against = Batch(FIRST.x, FIRST.y.flip(0))
    learner = agem.build(linear_setting())
    list(learner.learn_all([FIRST]))
    first = weights(learner)
    g, r = gradient(first, against), gradient(first, FIRST)
    assert (g * r).sum() < 0
    list(learner.learn_all([against]))
    expected = g - (g * r).sum() / (r * r).sum() * r
    assert weights(learner) == pytest.approx(first - LR * expected, abs=1e-6)
    assert learner.rows_kept == 4


def test_agem_leaves_a_step_alone_that_helps_the_memory() -> None:
    learner = agem.build(linear_setting())
    list(learner.learn_all([FIRST]))
    first = weights(learner)
    list(learner.learn_all([FIRST]))
    assert weights(learner) == pytest.approx(first - LR * gradient(first, FIRST), abs=1e-6)


@pytest.mark.parametrize("label_weight", [0.0, 0.7])
def test_der_trains_towards_the_logits_of_the_step_that_stored_the_row(label_weight: float) -> None:
    start, first, second = learn_two(der, logit_weight=0.3, label_weight=label_weight)
    assert first == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6)
    x = FIRST.x.double().numpy()
    apart = x @ (first - start).T
    distance = 2 * apart.T @ x / 8  # a mean over two rows of four classes, unseen ones included
    expected = gradient(first, SECOND) + 0.3 * distance + label_weight * gradient(first, FIRST)
    assert second == pytest.approx(first - LR * expected, abs=1e-6)


@pytest.mark.parametrize("method", [gdumb, joint])
def test_what_is_learned_at_the_end_is_the_memory_in_as_many_steps(method: Any) -> None:
    learner = method.build(linear_setting(batch_size=2))
    start = weights(learner)
    list(learner.learn_all([FIRST]))
    assert (weights(learner) == start).all()
    learner.end_stream()
    assert weights(learner) == pytest.approx(start - LR * gradient(start, FIRST), abs=1e-6)


def test_a_batch_that_cannot_be_learned_leaves_nothing_behind() -> None:
    bad = Batch(SECOND.x * torch.nan, SECOND.y)
    for method in (er, er_ace, der):
        learner = method.build(linear_setting())
        list(learner.learn_all([FIRST]))
        before = {name: tensor.clone() for name, tensor in learner.snapshot().experts[0].items()}
        assert [step.trained for step in learner.learn_all([bad])] == [()]
        after = learner.snapshot().experts[0]
        assert before.keys() == after.keys()
        assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


@pytest.mark.slow
def test_a_reservoir_keeps_early_and_late_rows_alike() -> None:
    kept: Counter[int] = Counter()
    for seed in range(300):
        memory = Reservoir(10, Keys(seed))
        for step in range(20):
            memory.add(step, x=torch.arange(5 * step, 5 * step + 5))
        kept.update(memory.columns["x"].tolist())
    by_fifth = [sum(kept[row] for row in range(start, start + 20)) for start in range(0, 100, 20)]
    # 3000 rows in all; a fifth of them each, with a standard deviation of 20.
    assert by_fifth == pytest.approx([600] * 5, abs=80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "at_least"), [("er", 75), ("er-ace", 80), ("der", 75), ("der++", 80), ("gdumb", 80)]
)
def test_a_memory_prevents_forgetting(method: str, at_least: float, tmp_path: Path) -> None:
    config = build_config("split-digits", method, epochs_scale=0.25)
    result = run(override(config, "baseline.memory=200"), tmp_path)
    assert result["rows_kept"] == 200
    assert result["accuracy_sample"] >= at_least
    assert result["accuracy_sample"] == result["accuracy_batch"], "there is nothing to choose"


@pytest.mark.slow
def test_joint_training_is_the_bound(tmp_path: Path) -> None:
    result = run(build_config("split-digits", "joint", epochs_scale=0.25), tmp_path)
    assert result["accuracy_sample"] >= 95
    assert result["rows_kept"] == 1437, "every training row once, in spite of ten epochs"


def test_expert_gate_has_an_expert_for_each_boundary(tmp_path: Path) -> None:
    config = replace(build_config("split-digits", "expert-gate", epochs_scale=0.1), visits="0 1 0 2")
    result = run(config, tmp_path)
    assert [step for step, _ in result["created"]] == [visit["start"] for visit in result["visits"][1:]]
    assert result["experts"] == 4
    assert result["rows_kept"] == 0


@pytest.mark.slow
def test_expert_gate_chooses_by_reconstruction(tmp_path: Path) -> None:
    result = run(build_config("split-digits", "expert-gate"), tmp_path)
    assert result["gate_accuracy_batch"] >= 95
    assert result["accuracy_batch"] > result["accuracy_sample"] > 50
