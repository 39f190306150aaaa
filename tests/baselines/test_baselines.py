"""TAME and Separate: their rules on scripted losses, and whole runs."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from math import inf, nan
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from helpers.pool_checks import batch_for
from hge.baselines.separate import GivenTaskAnswers, Separate
from hge.baselines.tame import Tame, TameAnswers
from hge.core.config import OptimiserConfig, RunConfig, ScoreConfig, TameConfig
from hge.core.events import Event, ExpertChanged, ExpertCreated, UpdateSkipped
from hge.core.randomness import Keys
from hge.core.settings import override
from hge.core.types import Batch
from hge.experiments.build import build_learner, build_pool, build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.experts.eager import EagerPool
from hge.experts.fast.pool import StackedPool
from hge.experts.networks import AUTOENCODERS, NETS
from hge.experts.pool_spec import PoolSpec
from hge.gating.switch_detection import LossStats
from hge.learning.checkpoint import Checkpoints, read_checkpoint
from hge.learning.online import Step
from hge.reporting.run_report import write_report

SMALL = TameConfig(window=10, warmup=3, buffer=40, selector_epochs=2)


class ScriptedPool:
    """Experts without networks: an expert's loss is low on the tasks it was trained on. A batch carries its task."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.learned: list[set[int]] = []
        self.extra_loss: dict[int, float] = {}
        """Step -> what is added to the loss of that batch."""

    def create(self, expert: int) -> None:
        self.learned.append(set())

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        own = not self.learned[expert] or int(batch.y[0]) in self.learned[expert]
        return (0.1 if own else 9.0) + 0.01 * (step % 3) + self.extra_loss.get(step, 0.0)

    def train(self, expert: int, batch: Batch, step: int) -> float:
        loss = self.loss(expert, batch, step)
        self.learned[expert].add(int(batch.y[0]))
        return loss

    def train_run(
        self, expert: int, items: Iterable[tuple[int, Batch]], losses: LossStats, epsilon: float
    ) -> Iterator[float]:
        for step, batch in items:
            yield self.train(expert, batch, step)


def scripted(tasks: str, extra_loss: dict[int, float] | None = None) -> tuple[Tame, list[Step], list[Event]]:
    """Learn a stream in which each letter is a batch of four rows."""
    pool, events = ScriptedPool(), list[Event]()
    pool.extra_loss = extra_loss or {}
    learner = Tame(SMALL, pool, lambda n: ScriptedPool(), Keys(0), events.append)  # type: ignore[arg-type, return-value]
    batches = (Batch(torch.zeros(4, 2), torch.full((4,), ord(letter) - ord("A"))) for letter in tasks)
    return learner, list(learner.learn_all(batches)), events


def created(events: list[Event]) -> list[tuple[int, int]]:
    return [(e.step, e.expert) for e in events if isinstance(e, ExpertCreated)]


def test_a_new_task_makes_a_new_expert_and_a_known_one_brings_its_own_back() -> None:
    _, steps, events = scripted("A" * 12 + "B" * 12 + "A" * 12)
    assert created(events) == [(12, 1)]
    assert [(e.step, e.previous, e.expert) for e in events if isinstance(e, ExpertChanged)] == [(12, 0, 1), (24, 1, 0)]
    assert [s.expert for s in steps] == [0] * 12 + [1] * 12 + [0] * 12
    assert all(s.trained == ((s.step, s.expert),) for s in steps)
    assert [s.queried for s in steps if s.queried > 1] == [2], "all experts are evaluated only above the bound"
    assert (steps[12].loss, steps[12].bound) == (pytest.approx(0.1), inf), "those of the one that takes the batch"
    assert steps[24].loss <= steps[24].bound < inf


def test_the_loss_is_smoothed() -> None:
    """An outlier of 0.1 above a bound some 0.03 wide is let pass, one of 9 is not: there is no review."""
    assert not created(scripted("A" * 24, {12: 0.06})[2])
    assert created(scripted("A" * 24, {12: 9.0})[2]) == [(12, 1)]


def test_what_is_not_a_number_is_not_learned() -> None:
    learner, steps, events = scripted("A" * 6, {2: nan})
    assert steps[2].trained == ()
    assert [e.step for e in events if isinstance(e, UpdateSkipped)] == [2]
    assert np.isfinite(learner.active.losses.bound)


def test_no_bound_before_the_warm_up() -> None:
    _, steps, _ = scripted("AAAA")
    assert [s.bound == inf for s in steps] == [True, True, True, False]


def test_the_buffer_is_shared() -> None:
    """40 rows in all, in batches of four: an expert more means fewer for each."""
    learner, _, _ = scripted("A" * 20)
    assert [len(e.buffer.kept) for e in learner.experts] == [10]
    learner, _, _ = scripted("A" * 20 + "B" * 20 + "C" * 2)
    assert [len(e.buffer.kept) for e in learner.experts] == [4, 4, 2]
    assert all({int(b.batch.y[0]) for b in e.buffer.kept} == {e.id} for e in learner.experts)


@pytest.mark.parametrize(("experts", "share"), [(2, 20), (3, 13), (11, 3)])
def test_the_selector_is_shown_all_of_each_share_and_no_more(experts: int, share: int) -> None:
    learner, _, _ = scripted("".join(12 * letter for letter in "ABCDEFGHIJK"[:experts]))
    shown: Counter[int] = Counter()

    class Selector(ScriptedPool):
        def train(self, expert: int, batch: Batch, step: int) -> float:
            shown.update(batch.y.tolist())
            return 0.0

    learner.build_selector = lambda n: Selector()  # type: ignore[assignment, return-value]
    learner.end_stream()
    assert shown == dict.fromkeys(range(experts), share * SMALL.selector_epochs)
    assert learner.rows_kept == experts * share


def test_tame_is_never_told_a_task() -> None:
    assert list(inspect.signature(Tame.learn).parameters) == ["self", "batch"]
    assert list(inspect.signature(Tame.learn_all).parameters) == ["self", "batches"]


def test_a_selector_is_needed_to_answer() -> None:
    learner, _, _ = scripted("A")
    with pytest.raises(ValueError, match="expected one whose stream has ended"):
        TameAnswers(learner).route(torch.zeros(2, 2), "sample")


@pytest.fixture(scope="module")
def trained() -> tuple[RunConfig, Tame]:
    config = override(build_config("split-digits", "tame", epochs_scale=0.2), "tame.selector_epochs=10")
    keys = Keys(0)
    scenario = build_scenario(config, keys, None)
    pool = build_pool(config, scenario, keys)
    learner = Tame(config.tame, pool, lambda n: build_pool(config, replace(scenario, classes=n), keys), keys, print)
    for _ in learner.learn_all(batch for _, batch in scenario.stream(config.batch_size, config.epochs, keys)):
        pass
    learner.end_stream()
    return config, learner


@pytest.mark.slow
def test_a_row_is_routed_by_itself(trained: tuple[RunConfig, Tame]) -> None:
    config, learner = trained
    tasks = build_scenario(config, Keys(0), None).tasks
    answers, x = TameAnswers(learner), torch.cat([task.test.whole().x for task in tasks])
    together = answers.route(x, "sample")
    alone = [int(answers.route(x[i : i + 1], "sample").expert[0]) for i in range(0, len(x), 17)]
    assert together.expert[::17].tolist() == alone
    assert set(together.queried) == {1}
    assert np.allclose(answers.probabilities(x, together, 10).sum(axis=1), 1)


@pytest.mark.slow
def test_a_batch_goes_by_the_mean_of_its_rows(trained: tuple[RunConfig, Tame]) -> None:
    config, learner = trained
    answers = TameAnswers(learner)
    for task in build_scenario(config, Keys(0), None).tasks:
        x = task.test.whole().x[:32]
        one = answers.route(x, "batch")
        assert len(one.expert) == 1
        assert one.expert[0] == np.bincount(answers.route(x, "sample").expert).argmax()


def test_separate_keeps_to_the_tasks() -> None:
    pool, events = ScriptedPool(), list[Event]()
    learner = Separate(pool, events.append)  # type: ignore[arg-type]
    tasks = [2, 2, 0, 2, 1]
    stream = ((task, Batch(torch.zeros(4, 2), torch.full((4,), task))) for task in tasks)
    assert [s.expert for s in learner.learn_with_tasks(stream)] == [0, 0, 1, 0, 2]
    assert created(events) == [(2, 1), (4, 2)]
    assert pool.learned == [{2}, {0}, {1}]
    assert GivenTaskAnswers(learner, 0).route(torch.zeros(3, 2), "sample").expert.tolist() == [1, 1, 1]
    assert GivenTaskAnswers(learner, 1).route(torch.zeros(3, 2), "batch").expert.tolist() == [2]
    assert GivenTaskAnswers(learner, 7).route(torch.zeros(3, 2), "batch").expert.tolist() == [0], "never seen"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [EagerPool, StackedPool])
def test_separate_trains_in_runs_as_one_by_one(kind: type[EagerPool] | type[StackedPool]) -> None:
    spec = PoolSpec((6,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig(), OptimiserConfig())
    separate, one = (kind(spec, Keys(3), torch.device("cpu")) for _ in range(2))
    tasks = [0, 0, 0, 0, 1, 1, 0, 0]
    batches = [batch_for(separate, seed=step) for step in range(len(tasks))]
    batches[2] = Batch(batches[2].x * nan, batches[2].y)
    events: list[Event] = []
    steps = list(Separate(separate, events.append).learn_with_tasks(zip(tasks, batches, strict=True)))
    one.create(0)
    one.create(1)
    losses = [one.train(task, batch, step) for step, (task, batch) in enumerate(zip(tasks, batches, strict=True))]
    assert repr([s.loss for s in steps]) == repr(losses)
    assert [s.step for s in steps if not s.trained] == [2] == [e.step for e in events if isinstance(e, UpdateSkipped)]
    for expert in range(2):
        assert torch.equal(separate.logits(expert, batches[0].x), one.logits(expert, batches[0].x))


@pytest.mark.slow
def test_runs_leave_what_other_methods_leave(tmp_path: Path) -> None:
    results = {}
    for method in ("ge", "tame", "separate"):
        config = build_config("split-digits", method, epochs_scale=0.25)
        results[method] = run(override(config, "tame.selector_epochs=20"), tmp_path / method)
        page = write_report(tmp_path / method).read_text()
        assert ("upper bound" in page, "selector" in page) == (method == "separate", method == "tame")
        assert json.loads((tmp_path / method / "result.json").read_text())["protocol"]["method"] == method
    assert results["ge"].keys() == results["tame"].keys() == results["separate"].keys()
    for method in ("tame", "separate"):
        figures = results[method]
        assert (figures["experts"], figures["switches_missed"], figures["switches_false"]) == (5, 0, 0)
        assert figures["accuracy_batch"] >= 98
    # Ten batches of 32 for each of five experts, and 19 in R; some are the small last ones of an epoch.
    assert 0.9 * (5 * 320 + 19 * 32) <= results["ge"]["rows_kept"] <= 5 * 320 + 19 * 32
    assert results["separate"]["rows_kept"] == 0 < results["tame"]["rows_kept"] <= 5000
    assert results["separate"]["gate_accuracy_sample"] == 100
    assert results["separate"]["accuracy_sample"] == results["separate"]["accuracy_batch"]
    assert results["tame"]["accuracy_sample"] <= results["separate"]["accuracy_sample"]


@pytest.mark.slow
def test_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    config = override(build_config("split-digits", "tame", epochs_scale=0.1), "tame.selector_epochs=2")
    results = [run(config, tmp_path / name) for name in ("a", "b")]
    for file in ("events.jsonl", "trace.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert results[0]["routed"] == results[1]["routed"]


@pytest.mark.slow
def test_tame_runs_away_where_training_is_unstable(tmp_path: Path) -> None:
    """Section 5.1: without a review, spikes of the loss breed experts; the run stops, and says so."""
    unstable = override(build_config("split-digits", "tame", epochs_scale=0.5), "optimiser.lr=1")
    result = run(override(unstable, "tame.selector_epochs=1"), tmp_path)
    assert result["dnf"]
    assert result["batches"] < 900


@pytest.mark.parametrize(
    ("setting", "message"),
    [("window=1", "window: got 1"), ("warmup=1", "warmup: got 1"), ("smoothing=0", "smoothing: got 0.0")],
)
def test_wrong_settings_are_named(setting: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        override(build_config("split-digits", "tame"), f"tame.{setting}")


@pytest.mark.slow
def test_blended_streams_run(tmp_path: Path) -> None:
    for method in ("tame", "separate"):
        config = replace(build_config("split-digits", method, epochs_scale=0.1), visits="0 1 0", blend=3)
        result = run(override(config, "tame.selector_epochs=1"), tmp_path / method)
        assert len(result["visits"]) >= 3


def test_trees_of_separate_experts_have_no_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"resume: got method organise, expected one of agem, bgd, .*hge, .*joint"):
        run(build_config("split-digits", "organise"), tmp_path / "here", resume=True)
    assert not (tmp_path / "here").exists()


def test_tame_forgets_the_same_samples_after_a_checkpoint(tmp_path: Path) -> None:
    """A new expert shrinks the buffers of all others, on which they were not trained: their files must be new, too."""
    config = override(build_config("split-digits", "tame"), "tame.buffer=60")
    keys = Keys(0)
    scenario = build_scenario(config, keys, None)
    batches = [batch for _, batch in islice(scenario.stream(config.batch_size, 1, keys), 6)]
    learner, later = (
        cast(Tame, build_learner(config, scenario, keys, lambda event: None, lambda: 0)) for _ in range(2)
    )
    for batch in batches[:4]:
        learner.learn(batch)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(learner.snapshot(), {})
    kept = len(learner.experts[0].buffer.kept)
    learner.learn(Batch(batches[4].x * 1000, batches[4].y))
    assert (len(learner.experts), len(learner.experts[0].buffer.kept)) == (2, kept - 1)
    checkpoints.write(learner.snapshot(), {})
    later.restore(read_checkpoint(tmp_path)[0])
    for mine, theirs in zip(learner.experts, later.experts, strict=True):
        assert [kept.step for kept in mine.buffer.kept] == [kept.step for kept in theirs.buffer.kept]
        assert mine.buffer.capacity == theirs.buffer.capacity
    assert [learner.learn(batch) for batch in batches[4:]] == [later.learn(batch) for batch in batches[4:]]
