"""Rows that are no data: what one of them, or a burst of them, leaves of what was learned before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hge import GatedExperts
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experiments.build import build_learner, build_scenario, no_task
from hge.experiments.recipes import build_config

Log = Callable[[str], None]
Spoil = Callable[[Tensor], object]
BATCH, BURST_ROWS = 32, 900
MOST_LOST, LEAST = 1.5, 93.0
"""Points that one batch may cost a task, about one of its 71 test rows; and the accuracy of each task after a burst."""
LEARNED = {"estimator": 60, "default": 150, "best": 150, "paper": 150}
"""By model, the estimator or a recipe of `hge run`: batches of a task."""
MOMENTS = {"first": 0, "second": 1, "late": -1}
"""When the bad row comes: in one of the first batches of the stream, or when two tasks have been learned."""


def _one_feature(x: Tensor) -> None:
    x.flatten(1)[0, 20] = 1e6


def _fill(x: Tensor, rng: np.random.Generator, share: float, value: float) -> None:
    x[torch.from_numpy(rng.random(len(x)) < share)] = value


SINGLE: dict[str, Spoil] = {
    "a row of -999": lambda x: x[0].fill_(-999.0),
    "a row of 255": lambda x: x[0].fill_(255.0),
    "a row of 1e14": lambda x: x[0].fill_(1e14),
    "a feature of 1e6": _one_feature,
    "half a batch of 255": lambda x: x[:16].fill_(255.0),
}
STEADY: dict[str, Callable[[Tensor, np.random.Generator], object]] = {
    "one row in 100 of -999, for ever": lambda x, rng: _fill(x, rng, 0.01, -999.0),
    "one row in 20 of -999, for ever": lambda x, rng: _fill(x, rng, 0.05, -999.0),
    "one row in 20 of 255, for ever": lambda x, rng: _fill(x, rng, 0.05, 255.0),
    "one batch in 20 times 255, for ever": lambda x, rng: x.mul_(255.0 if rng.random() < 0.05 else 1.0),
}
KNOWN = {("default", "one batch in 20 times 255, for ever"), *(("paper", name) for name in STEADY if "in 20" in name)}
"""Models and cases of which a loss is known: docs/survival.md."""
BURSTS: dict[str, Callable[[Tensor, torch.Generator], Tensor]] = {
    "900 rows times 255": lambda x, _: 255 * x,
    "900 rows of noise": lambda x, generator: torch.randn(x.shape, generator=generator),
    "900 equal rows": lambda x, _: torch.full_like(x, 0.5),
}


def torture_outliers(
    log: Log,
    models: Iterable[str] = LEARNED,
    singles: Iterable[str] = SINGLE,
    bursts: Iterable[str] = BURSTS,
    moments: Iterable[str] = MOMENTS,
    steady: Iterable[str] = STEADY,
) -> dict[str, Any]:
    """Spoil streams of digits for every model; return the accuracies, and what was lost."""
    cases = []
    for model in models:
        for moment in moments:
            clean = _accuracies(model, moment, None)
            cases += [_single(model, moment, name, clean) for name in singles]
        cases += [_steady(model, name) for name in steady]
        if model in ("estimator", "default"):
            cases += [_burst(model, name) for name in bursts]
        log(f"outliers: {model}: {cases[-1]}")
    lost = [case for case in cases if case["lost"]]
    known = [str(case) for case in lost if (case["model"], case["what"]) in KNOWN]
    criterion = (
        f"one batch costs no task more than {MOST_LOST:g} points, against the same stream without it; after a burst, "
        f"and with bad rows for ever, every task has {LEAST:g} %"
    )
    wrong = [str(case) for case in lost if str(case) not in known]
    return {"cases": cases, "wrong": wrong, "known": known, "criterion": criterion}


def _single(model: str, moment: str, name: str, clean: list[float]) -> dict[str, Any]:
    after = _accuracies(model, moment, SINGLE[name])
    lost = any(spoiled < good - MOST_LOST for good, spoiled in zip(clean, after, strict=True))
    return {"model": model, "what": name, "when": moment, "clean": clean, "after": after, "lost": lost}


def _accuracies(model: str, moment: str, spoil: Spoil | None) -> list[float]:
    """Return the accuracy on two tasks after a stream with a spoiled batch at that moment, or with none."""
    subject, length, at = Subject(model), LEARNED[model], MOMENTS[moment]
    spoiled = {} if spoil is None else {max(at, 0): spoil}
    subject.learn(0, length, spoiled if at >= 0 else {})
    subject.learn(1, length)
    if at < 0:
        subject.learn(1, 1, spoiled)
        for task in (1, 0):
            subject.learn(task, length // 3)
    return subject.accuracy((0, 1))


def _steady(model: str, name: str) -> dict[str, Any]:
    """Learn two tasks from batches in which every row may be bad."""
    subject, rng = Subject(model), np.random.default_rng(0)

    for task in (0, 1):
        subject.learn(task, LEARNED[model], dict.fromkeys(range(LEARNED[model]), lambda x: STEADY[name](x, rng)))
    after = subject.accuracy((0, 1))
    return {"model": model, "what": name, "when": "always", "after": after, "lost": min(after) < LEAST}


def _burst(model: str, name: str) -> dict[str, Any]:
    subject, length = Subject(model), LEARNED[model]
    for task in (0, 1):
        subject.learn(task, length)
    clean = subject.accuracy((0, 1))
    subject.learn_burst(BURSTS[name])
    for task, share in ((1, 2), (0, 2), (2, 1)):
        subject.learn(task, length // share)
    after = subject.accuracy((0, 1, 2))
    return {"model": model, "what": name, "when": "burst", "clean": clean, "after": after, "lost": min(after) < LEAST}


class Subject:
    """A model that learns batches of digits, two classes a task, and is tested on single rows."""

    def __init__(self, model: str) -> None:
        keys, recipe = Keys(0), "default" if model == "estimator" else model
        config = build_config("split-digits", "ge", recipe)
        self.scenario = build_scenario(config, keys, None)
        self.generator = torch.Generator().manual_seed(0)
        self.estimator = GatedExperts() if model == "estimator" else None
        self.learner = build_learner(config, self.scenario, keys, lambda event: None, no_task)

    def learn(self, task: int, batches: int, spoiled: dict[int, Spoil] | None = None) -> None:
        """Learn random batches of a task; those with these numbers are spoiled."""
        rows, found = self.scenario.tasks[task].train.whole(), []
        for number in range(batches):
            chosen = torch.randint(len(rows), (BATCH,), generator=self.generator)
            x, y = rows.x[chosen].clone(), rows.y[chosen]
            if number in (spoiled or {}):
                (spoiled or {})[number](x)
            found.append(Batch(x, y))
        self._learn(found)

    def learn_burst(self, make: Callable[[Tensor, torch.Generator], Tensor]) -> None:
        """Learn rows that are no data, with random labels of the first two tasks."""
        rows = [self.scenario.tasks[task].train.whole() for task in (0, 1)]
        x, y = (torch.cat(part) for part in ([r.x for r in rows], [r.y for r in rows]))
        chosen = torch.randint(len(x), (BURST_ROWS,), generator=self.generator)
        spoiled, labels = (
            make(x[chosen], self.generator),
            y[torch.randperm(BURST_ROWS, generator=self.generator) % len(y)],
        )
        self._learn([Batch(*part) for part in zip(spoiled.split(BATCH), labels.split(BATCH), strict=True)])

    def accuracy(self, tasks: Iterable[int]) -> list[float]:
        """Return the accuracy on the test rows of each task, in percent."""
        found = []
        for task in tasks:
            rows = self.scenario.tasks[task].test.whole()
            if self.estimator is not None:
                answers = self.estimator.predict(rows.x.numpy())
            else:
                answerer = self.learner.answers()
                routes = answerer.route(rows.x, "sample")
                answers = answerer.probabilities(rows.x, routes, self.scenario.classes).argmax(axis=1)
            found.append(round(100 * float(np.mean(answers == rows.y.numpy())), 2))
        return found

    def _learn(self, batches: list[Batch]) -> None:
        if self.estimator is not None:
            for batch in batches:
                self.estimator.partial_fit(batch.x.numpy(), batch.y.numpy())
        else:
            for _ in self.learner.learn_all(batches):
                pass
