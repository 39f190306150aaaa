"""The registry of methods: every line builds a learner that keeps the protocol; tasks reach only those given them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hge.core.randomness import Keys
from hge.core.settings import override
from hge.experiments.build import build_answers, build_learner, build_scenario, check
from hge.experiments.methods import METHODS
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

SHORTENED = {"cn-dpm": "baseline.sleep_steps=8", "cn-dpm-lateral": "baseline.sleep_steps=8"}
"""Method -> a setting with which it is trained in no time."""
STREAMING = [name for name, method in METHODS.items() if method.learns_a_stream]


QUICK = {"ge", "hge", "tame", "naive", "er", "ewc-detected"}
SLOW_TOO = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in STREAMING]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW_TOO)
def test_a_line_makes_a_learner_that_goes_on_where_it_was_stopped(name: str) -> None:
    config, keys = build_config("split-digits", name), Keys(0)
    if name in SHORTENED:
        config = override(config, SHORTENED[name])
    scenario = build_scenario(config, keys, None)
    stream = [item for _, item in zip(range(40), scenario.stream(config.batch_size, 1, keys), strict=False)]
    current = [0]

    def batches(start: int, stop: int):  # type: ignore[no-untyped-def]
        for task, batch in stream[start:stop]:
            current[0] = task
            yield batch

    def made():  # type: ignore[no-untyped-def]
        return build_learner(config, scenario, keys, lambda event: None, lambda: current[0])

    whole, first, second = made(), made(), made()
    steps = list(whole.learn_all(batches(0, 40)))
    list(first.learn_all(batches(0, 17)))
    second.restore(first.snapshot())
    assert second.steps == 17
    assert repr(list(second.learn_all(batches(17, 40)))) == repr(steps[17:])
    whole.end_stream()
    answers = build_answers(config, whole, len(scenario.tasks))
    assert len(answers) == len(scenario.tasks)
    assert (len(set(map(id, answers))) > 1) == METHODS[name].needs.task_ids
    routes = answers[0].route(torch.as_tensor(stream[0][1].x), "sample")
    assert answers[0].probabilities(stream[0][1].x, routes, scenario.classes).shape == (config.batch_size, 10)


@pytest.mark.slow
def test_a_task_reaches_only_who_is_given_tasks() -> None:
    config, keys = build_config("split-digits", "separate"), Keys(0)
    scenario = build_scenario(config, keys, None)
    for name in STREAMING:
        asked: list[int] = []
        learner = build_learner(
            replace(config, method=name), scenario, keys, lambda event: None, lambda a=asked: a.append(0) or 0
        )
        list(learner.learn_all(batch for _, (_, batch) in zip(range(3), scenario.stream(32, 1, keys), strict=False)))
        assert bool(asked) == METHODS[name].needs.task_ids, name


@pytest.mark.slow
def test_naive_is_one_network_that_forgets(tmp_path: Path) -> None:
    result = run(build_config("split-digits", "naive", epochs_scale=0.25), tmp_path)
    assert result["experts"] == 1
    assert result["gate_accuracy_sample"] == 100, "there is nothing to choose"
    assert result["accuracy_sample"] < 40, "of five tasks it knows the last"
    separate = run(build_config("split-digits", "separate", epochs_scale=0.25), tmp_path / "separate")
    assert separate["accuracy_sample"] > 95


@pytest.mark.parametrize("name", STREAMING)
def test_methods_of_one_network_have_no_views(name: str) -> None:
    views = build_config("cif10", name, "best").views
    of_experts = METHODS[name].module in ("hge.learning.gated", "hge.baselines.tame", "hge.baselines.separate")
    assert views == (4 if of_experts or name == "expert-gate" else 1)


def test_views_are_refused_where_no_loss_has_a_place_for_them() -> None:
    with pytest.raises(ValueError, match="views: got 2, expected 1 for er, whose loss knows no views"):
        check(override(build_config("split-digits", "er"), "views=2"))
    check(override(build_config("split-digits", "separate"), "views=2"))
