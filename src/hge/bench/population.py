"""A learner with as many promoted experts as a measurement needs, without streaming a whole task for each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from hge.bench.measure import Plan
from hge.bench.plain_training import Precision, ScoreName, arithmetic
from hge.bench.stream import SyntheticTask, synthetic_scenario
from hge.core.config import LearnerConfig, OptimiserConfig, RunConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.build import build_pool
from hge.experts.networks import Shape
from hge.gating.shortlist import Shortlist
from hge.gating.switch_detection import RecentEntry
from hge.learning.learner import Learner
from hge.learning.training import train

Images = Literal["28x28", "32x32x3"]
PoolName = Literal["auto", "eager", "stacked"]

LEARNING_RATE = 0.05
BATCHES_PER_EXPERT = {"sketch": 4, "autoencoder": 20}
"""Batches of its own task on which each expert is trained: enough for the gate to recognise it."""
USABLE_MEMORY = 0.7


@dataclass(frozen=True)
class Subject:
    """What is measured: networks, images and score, and how they are computed."""

    net: str
    images: Images
    score: ScoreName
    device: str
    pool: PoolName = "auto"
    precision: Precision = "fp32"

    def __str__(self) -> str:
        return f"{self.net}, {self.images}, {self.score}"

    @property
    def shape(self) -> Shape:
        """Shape of one image."""
        return (1, 28, 28) if self.images == "28x28" else (3, 32, 32)

    @property
    def autoencoder(self) -> str:
        """Network of the autoencoder score."""
        return "mlp" if self.images == "28x28" else "conv"


@dataclass(frozen=True)
class LeftOut:
    """A number of experts that was not measured, and why."""

    subject: Subject
    experts: int
    reason: str


class Population:
    """A learner whose number of experts grows on demand; expert k is trained on task k."""

    def __init__(self, subject: Subject, *, sticky: bool = True, shortlisted: bool = False) -> None:
        self.subject = subject
        self.learner = _build_learner(subject, sticky, shortlisted)
        self._seconds_per_expert = 0.0

    @property
    def size(self) -> int:
        """Number of experts."""
        return len(self.learner.experts)

    def grow(self, experts: int) -> None:
        """Add promoted experts up to this number, each trained briefly on its own task; the last one is in use.

        This method and `train` change the learner's internals: they do what creation, training and promotion would do
        in a flat organisation, without the stream of batches that leads to them.
        """
        learner, before, started = self.learner, self.size, time.perf_counter()
        while self.size < experts or not learner.experts[-1].batches_trained:
            if learner.experts[-1].batches_trained:
                learner.tree.add(learner.new_expert().id)
            newest = learner.experts[-1].id
            self.train(newest, self.task(newest).batches(0, BATCHES_PER_EXPERT[self.subject.score]))
        if self.size > max(before, 2):  # the first ones take longer: libraries are loaded, kernels chosen
            self._seconds_per_expert = (time.perf_counter() - started) / (self.size - before)

    def train(self, expert: int, batches: Iterable[Batch]) -> None:
        """Train an expert, bypassing the gate."""
        learner = self.learner
        for batch in batches:
            train(learner, learner.experts[expert], RecentEntry(learner.steps, batch))
            learner.steps += 1

    def infeasible(self, experts: int, plan: Plan) -> LeftOut | None:
        """Return why this number of experts cannot be measured, or None."""
        missing = experts - self.size
        memory = missing * self.learner.pool.memory()["bytes_per_expert"] / 1e9
        available = USABLE_MEMORY * _free_memory(self.subject.device) / 1e9
        if memory > available:
            return LeftOut(self.subject, experts, f"needs {memory:.0f} GB more, {available:.0f} are free")
        seconds = missing * self._seconds_per_expert
        if seconds > plan.setup_seconds:
            reason = f"would take {seconds:.0f} s to set up, {plan.setup_seconds:.0f} are allowed"
            return LeftOut(self.subject, experts, reason)
        return None

    def task(self, number: int, *, batches: int | None = None) -> SyntheticTask:
        """Return the images of a task: by default, as many batches as an expert is trained on."""
        batches = batches or BATCHES_PER_EXPERT[self.subject.score]
        return SyntheticTask(number, self.subject.shape, self.subject.device, batches=batches)

    def with_shortlist(self) -> Learner:
        """Return a learner with the same experts that queries only those with the best sketches."""
        learner = copy(self.learner)
        shortlist = Shortlist(learner.replays, learner.emit)
        shortlist.fit(0, self.size, 0)
        learner.organisation = copy(learner.organisation)
        learner.organisation.shortlist = shortlist
        return learner


Measure = Callable[[Population, Plan], Iterator[Any]]
"""(population, plan) -> rows of a table: measurements, and `LeftOut` for what was not measured."""


def measure_sizes(
    subject: Subject, experts: Sequence[int], measures: Sequence[Measure], plan: Plan, report: Callable[[str], None]
) -> Iterator[Any]:
    """Grow a population to each number of experts in turn, and yield the measurements at each."""
    with arithmetic(subject.precision):
        population = Population(subject, shortlisted=True)
        for number in sorted(experts):
            report(f"{subject}: {number} experts")
            if left_out := population.infeasible(number, plan):
                yield left_out
                return
            population.grow(number)
            for measure in measures:
                yield from measure(population, plan)


def _build_learner(subject: Subject, sticky: bool, shortlisted: bool) -> Learner:
    config = RunConfig(
        scenario="synthetic",
        device=subject.device,
        net=subject.net,
        autoencoder=subject.autoencoder,
        pool=subject.pool,
        precision=subject.precision,
        learner=LearnerConfig(sticky=sticky),
        optimiser=OptimiserConfig(lr=LEARNING_RATE),
        score=ScoreConfig(name=subject.score),
    )
    keys = Keys(0)
    pool_config = replace(config, learner=replace(config.learner, organisation="tree" if shortlisted else "flat"))
    pool = build_pool(pool_config, synthetic_scenario(subject.shape), keys)
    return Learner(config.learner, pool, keys, lambda event: None)


def _free_memory(device: str) -> int:
    if device.startswith("cuda"):
        # Memory that torch has reserved but does not use is free, too.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"  # macOS lacks the former
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")
