"""The leaderboard of scores: all of them over the same trained experts (`hge gates SCENARIO`).

Experts are trained separately, one per task, so that a figure depends on the score alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from hge.core.config import RunConfig, ScoreConfig
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.data.holdout import validation_scenario
from hge.data.scenarios import Scenario
from hge.experiments.build import build_pool, build_scenario, build_spec, check
from hge.experiments.feature_scenario import with_features
from hge.experiments.novelty_roc import unknown_task_roc
from hge.experiments.run_files import commit
from hge.experiments.runner import protocol
from hge.experiments.separate_experts import SeparateExperts
from hge.experts.joint.calibration import Calibration
from hge.experts.joint.model import JointScore
from hge.experts.optim import deterministic_algorithms, has_batch_norm
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.experts.scores import Score, ScoreTrainer, build_score
from hge.gating.tree import FloatArray, IntArray

GROUPS = (1, 8, 32, 128)
ROWS_AT_ONCE = 512
TIMED_ROWS, REPEATS = 256, 5
OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Candidate:
    """A score to compare; lower is better, and a group's score is the mean over its rows."""

    name: str
    rows: Callable[[Tensor], FloatArray]
    """Returns [experts, rows], each row scored by itself."""
    together: Callable[[Tensor], FloatArray] | None = None
    """Returns [experts] for rows known to belong together; None if the score does not use that."""
    extra_multiply_adds: float = 0.0
    """Per row and expert, in addition to those counted in torch."""


@dataclass(frozen=True)
class Samples:
    """Rows of all tasks, and every expert's predictions."""

    x: Tensor
    task: IntArray
    label: IntArray
    answer: IntArray
    """[experts, rows]"""


def gates(
    config: RunConfig,
    folder: Path,
    on_progress: OnProgress = lambda done, total, phase: None,
    data: Path | None = None,
    *,
    validation: bool = False,
    autoencoder: bool = True,
) -> dict[str, Any]:
    """Train experts separately, route the same rows by every score; return the content of gates.json.

    With `validation` the test rows are not used: for choosing settings.
    """
    config = replace(config, score=replace(config.score, name="class-sketch"))
    check(config)
    code = commit()  # read first: the files may change during the run
    keys = Keys(config.seed)
    scenario = build_scenario(config, keys, data)
    scenario = with_features(validation_scenario(scenario) if validation else scenario, config, data)
    pool = build_pool(config, scenario, keys)
    others = ("sketch", "autoencoder") if autoencoder else ("sketch",)
    folder.mkdir(parents=True, exist_ok=True)
    with deterministic_algorithms(config.deterministic):
        experts, learned = _train(config, scenario, pool, keys, others, on_progress)
    calibration = Calibration(pool, experts)
    calibration.fit()
    assert calibration.joint is not None
    candidates = [*_candidates(pool, experts, learned, calibration)]
    samples = _samples(scenario, pool)
    rows = []
    for done, candidate in enumerate(candidates):
        on_progress(done, len(candidates), "scoring")
        rows.append(_row(candidate, samples, keys))
    right = samples.answer[samples.task, np.arange(len(samples.task))] == samples.label
    result = {
        "scores": rows,
        "separate": mean_over_tasks(right, samples.task),
        "mixture": _mixture(calibration, samples, scenario.classes),
        "unknown": _unknown_task(pool, experts, samples, keys) if len(experts) > 2 else None,
        "groups": list(GROUPS),
        "tasks": [task.name for task in scenario.tasks],
        "part": "validation" if validation else "test",
        "protocol": protocol(config) | {"commit": code, "score": "all", "net": config.net},
    }
    write_json(folder / "gates.json", result)
    return result


def _train(
    config: RunConfig, scenario: Scenario, pool: ExpertPool, keys: Keys, others: Sequence[str], on_progress: OnProgress
) -> tuple[list[Expert], dict[str, list[ScoreTrainer]]]:
    """Train an expert per task, together with the scores that are not part of the pool."""
    spec, device, count = build_spec(config, scenario), pool.device, len(scenario.tasks)
    space = spec.build_space(device)
    separate = SeparateExperts(config.learner, scenario, pool, keys)
    learned: dict[str, list[ScoreTrainer]] = {name: [] for name in others}
    for expert in range(count):
        for name, scores in learned.items():
            score_config = ScoreConfig(name=name, kl_weight=config.score.kl_weight)  # type: ignore[arg-type]
            with keys.seeded("weights", expert, device=device):
                made = build_score(
                    score_config, spec.optimiser, spec.autoencoder, spec.shape, spec.outputs, space, keys
                )
            scores.append(ScoreTrainer(made.to(device).eval()))
    total = scenario.batches(config.batch_size, config.epochs)
    for step, task, own in separate.train(config.batch_size, config.epochs):
        for scores in learned.values():
            scores[task].train(as_float(own.x), own.y, keys.generator("noise", step, task, device=device))
        on_progress(step + 1, total, "training")
    return separate.experts, learned


def _candidates(
    pool: ExpertPool, experts: Sequence[Expert], learned: dict[str, list[ScoreTrainer]], calibration: Calibration
) -> list[Candidate]:
    joint = calibration.joint
    assert joint is not None
    ids = [expert.id for expert in experts]

    def energy(x: Tensor) -> FloatArray:
        logits = [pool.logits(e, x)[:, joint.scalers[e].classes] for e in ids]
        return np.stack([-answers.logsumexp(1).double().cpu().numpy() for answers in logits])

    made = []
    for name, trainers in learned.items():
        scores = [trainer.score for trainer in trainers]
        made.append(Candidate(name, _of(scores), _together(scores)))
    made.append(Candidate("class-sketch", lambda x: pool.scores(ids, x)))
    made.append(Candidate("energy", energy))
    made.append(
        Candidate(
            "joint",
            lambda x: -joint.experts(joint.pairs(calibration.evidence(x))),
            extra_multiply_adds=calibration.multiply_adds,
        )
    )
    return made


def _of(scores: Sequence[Score]) -> Callable[[Tensor], FloatArray]:
    """Return a function that evaluates all scores as a gate does: the rows are read once."""
    first, own = scores[0], [score.gate_tensors() for score in scores]
    stacked = {name: torch.stack([tensors[name].detach() for tensors in own]) for name in own[0]}

    def rows(x: Tensor) -> FloatArray:
        answers = first.stacked(stacked, first.preprocess(as_float(x)), batch_statistics=False)
        return np.asarray(answers.double().cpu())

    return rows


def _together(scores: Sequence[Score]) -> Callable[[Tensor], FloatArray] | None:
    if not any(has_batch_norm(score) for score in scores):
        return None
    return lambda x: np.array([float(s.score(as_float(x), batch_statistics=True).mean()) for s in scores])


def _samples(scenario: Scenario, pool: ExpertPool) -> Samples:
    batches = [task.test.whole().to(pool.device) for task in scenario.tasks]
    x, label = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches]).cpu().numpy()
    answers = [
        torch.cat([pool.logits(e, part).argmax(1) for part in torch.split(x, ROWS_AT_ONCE)])
        for e in range(len(batches))
    ]
    task = np.repeat(np.arange(len(batches)), [len(b) for b in batches])
    return Samples(x, task, label, torch.stack(answers).cpu().numpy())


def _row(candidate: Candidate, samples: Samples, keys: Keys) -> dict[str, Any]:
    """Return a row of the leaderboard."""
    scores = np.concatenate([candidate.rows(part) for part in torch.split(samples.x, ROWS_AT_ONCE)], axis=1)
    gate, accuracy = {}, {}
    for size in GROUPS:
        groups = group_rows(samples.task, size, keys)
        if not len(groups):
            continue
        if size > 1 and candidate.together is not None:
            means = np.stack([candidate.together(samples.x[torch.from_numpy(group)]) for group in groups], axis=1)
        else:
            means = scores[:, groups].mean(axis=2)
        chosen, task = means.argmin(axis=0), samples.task[groups[:, 0]]
        right = samples.answer[chosen[:, None], groups] == samples.label[groups]
        gate[str(size)] = mean_over_tasks(chosen == task, task)
        accuracy[str(size)] = mean_over_tasks(right.mean(axis=1), task)
    return {"score": candidate.name, "gate_accuracy": gate, "accuracy": accuracy} | _cost(candidate, samples.x)


def group_rows(task: IntArray, size: int, keys: Keys) -> IntArray:
    """Return [groups, size]: full groups of rows of one task, shuffled."""
    made = []
    for number in np.unique(task):
        rows = keys.rng("shuffle", int(number), size).permutation(np.flatnonzero(task == number))
        made.append(rows[: len(rows) // size * size].reshape(-1, size))
    return np.concatenate(made)


def mean_over_tasks(values: Any, task: IntArray) -> float:
    """Return the mean over tasks of the mean of a task's values, in percent."""
    return round(float(100 * np.mean([np.mean(values[task == t]) for t in np.unique(task)])), 3)


def _cost(candidate: Candidate, x: Tensor) -> dict[str, float]:
    """Return multiply-adds and time, per row and expert."""
    x = x[:TIMED_ROWS]
    with FlopCounterMode(display=False) as counter:
        experts = len(candidate.rows(x))
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        candidate.rows(x)  # returns host data, so work on a device is included
        seconds.append(time.perf_counter() - started)
    each = len(x) * experts
    multiply_adds = counter.get_total_flops() / 2 / each + candidate.extra_multiply_adds
    return {"multiply_adds": round(multiply_adds), "microseconds": round(1e6 * float(np.median(seconds)) / each, 3)}


def _unknown_task(pool: ExpertPool, experts: Sequence[Expert], samples: Samples, keys: Keys) -> dict[str, Any]:
    """Return how well the last task is recognised as unknown, by single rows and by groups."""
    groups = {size: group_rows(samples.task, size, keys) for size in GROUPS[1:]}
    full = {size: rows for size, rows in groups.items() if len(rows)}
    return unknown_task_roc(pool, experts, samples.x, samples.task, full)


def _mixture(calibration: Calibration, samples: Samples, outputs: int) -> float:
    """Return the accuracy of the mixture of all experts on single samples."""
    joint: JointScore | None = calibration.joint
    assert joint is not None
    parts = torch.split(samples.x, ROWS_AT_ONCE)
    answers = np.concatenate([joint.mixture(calibration.evidence(part), outputs).argmax(axis=1) for part in parts])
    return mean_over_tasks(answers == samples.label, samples.task)
