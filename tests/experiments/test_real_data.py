"""The paper's scenarios on the real data sets. Run with HGE_DATA=DIR pytest -m data."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hge.core.events import Event
from hge.core.randomness import Keys
from hge.core.settings import override
from hge.data.catalogue import SCENARIOS
from hge.data.scenario_builders import Request
from hge.data.scenarios import Scenario
from hge.experiments.build import build_pool, build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.learning.learner import Learner

FOLDER = os.environ.get("HGE_DATA")
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(FOLDER is None, reason="HGE_DATA names no folder of data sets"),
    pytest.mark.timeout(600),
]
REAL = [name for name, info in SCENARIOS.items() if info.datasets]
TASKS_AND_CLASSES = {
    "pmnist": (20, 10),
    "smnist": (5, 10),
    "cif10": (5, 10),
    "cif100-10": (10, 100),
    "cif100-20": (20, 100),
    "imgnet-10": (10, 100),
    "imgnet-20": (20, 100),
    "mnist-kmnist": (10, 20),
    "mnist-cif10": (10, 20),
    "cif10-inv": (10, 20),
    "cif-imgnet": (20, 200),
    "cif100-superclasses": (10, 100),
}


def build(name: str, seed: int = 0) -> Scenario:
    assert FOLDER is not None
    request = Request(SCENARIOS[name].tasks, Keys(seed), Path(FOLDER), torch.device("cpu"))
    return SCENARIOS[name].build(request)


@pytest.mark.parametrize("name", REAL)
def test_scenario_is_as_the_paper_has_it(name: str) -> None:
    scenario = build(name)
    assert (len(scenario.tasks), scenario.classes) == TASKS_AND_CLASSES[name]
    flat = name in ("pmnist", "smnist", "mnist-kmnist")
    assert scenario.shape == ((784,) if flat else (3, 32, 32))
    labels = [set(task.train.whole().y.unique().tolist()) for task in scenario.tasks]
    if name == "pmnist":
        assert all(own == set(range(10)) for own in labels)
    else:
        assert len(set.union(*labels)) == scenario.classes == sum(len(own) for own in labels), "disjoint, none left out"
    for task, own in zip(scenario.tasks, labels, strict=True):
        assert set(task.test.whole().y.unique().tolist()) == own
        batch = task.train.batch(torch.arange(4))
        assert batch.x.dtype == torch.uint8


def test_hybrids_alternate_their_domains() -> None:
    domains = [build("cif10-inv").tasks[visit.task].domain for visit in build("cif10-inv").visits]
    assert domains == ["cifar10", "cifar10, inverted"] * 5
    first, second = (build("cif10-inv").tasks[t] for t in (0, 5))
    assert first.train.whole().x.float().mean() < 255 - second.train.whole().x.float().mean() + 30


def test_hybrids_may_share_their_labels() -> None:
    config = override(build_config("cif10-inv", "ge", "default"), "labels=shared")
    scenario = build_scenario(config, Keys(0), Path(str(FOLDER)))
    labels = [task.test.whole().y.unique() for task in scenario.tasks]
    assert scenario.classes == 10
    for half in (labels[:5], labels[5:]):
        assert torch.cat(half).sort().values.tolist() == list(range(10))


def test_class_splits_are_drawn_per_seed() -> None:
    assert build("cif100-10", 0).tasks[0].name != build("cif100-10", 1).tasks[0].name


@pytest.mark.parametrize("name", REAL)
def test_scenario_learns_thirty_batches_of_its_first_task(name: str) -> None:
    config, scenario, keys = build_config(name), build(name), Keys(0)
    events: list[Event] = []
    learner = Learner(config.learner, build_pool(config, scenario, keys), keys, events.append)
    losses = []
    for number, (task, batch) in enumerate(scenario.stream(config.batch_size, 2, keys)):
        if number == 30:
            break
        assert task == scenario.visits[0].task
        losses.append(learner.learn(batch).loss)
    assert len(losses) == 30
    assert len(learner.experts) == 1
    assert sum(losses[-5:]) < sum(losses[:5])


def test_switches_of_split_mnist_are_found_by_the_papers_recipe(tmp_path: Path) -> None:
    """Its gate needs more epochs than these (docs/paper.md, reading 19); ours does not."""
    config = replace(build_config("smnist", recipe="paper", epochs_scale=0.1), tasks=3)
    result = run(config, tmp_path)
    assert (result["experts"], result["switches_missed"], result["switches_false"]) == (3, 0, 0)
    ours = run(replace(build_config("smnist", epochs_scale=0.05), tasks=3), tmp_path)
    assert (ours["experts"], ours["gate_accuracy_batch"]) == (3, 100)
