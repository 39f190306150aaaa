"""A learner's complete state as tensors and JSON values, and its exact (bitwise) restoration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hge.core.types import Batch
from hge.experts.pool import ExpertPool
from hge.experts.replay import ReplayBatch
from hge.gating.switch_detection import LabelCounts, LossStats, RecentEntry
from hge.learning.manifest_check import check_learner

if TYPE_CHECKING:
    from hge.learning.learner import Learner


@dataclass(frozen=True)
class Snapshot:
    """A learner's state at one moment."""

    facts: dict[str, Any]
    """All state that is not a tensor, as JSON values."""
    tensors: dict[str, Tensor]
    """Tensors that change with every batch."""
    experts: list[dict[str, Tensor]]
    """Tensors that change when the expert is trained; `facts["experts"][i]["batches"]` is the version of its state."""


def take_snapshot(learner: Learner) -> Snapshot:
    """Copy a learner's state; must not be called while `learn_all` is running."""
    facts: dict[str, Any] = {
        "steps": learner.steps,
        "last_used": learner.last_used,
        "evaluations": dict(learner.evaluations),
        "experts": [
            {
                "batches": e.batches_trained,
                "losses": asdict(e.losses),
                "mistakes": asdict(e.mistakes),
                "undone": e.undone,
                "merged_into": e.merged_into,
                "knows_nothing": e.knows_nothing,
                "labels": [[label, count] for label, count in e.labels.items()],
                "seen": e.replay.seen,
                "remembered": [kept.step for kept in e.replay.kept],
            }
            for e in learner.experts
        ],
        "recent": {
            "previous_expert": learner.recent.previous_expert,
            "entries": [[entry.step, entry.expert, entry.refused_by] for entry in learner.recent],
        },
        "organisation": learner.organisation.state(),
        "outliers": learner.outlier_rate.outliers,
        "suspicion": learner.suspicion.level,
        "limited_told": learner.limited_told,
        "shortlist": None if learner.shortlist is None else learner.shortlist.state(),
        "merging": None if learner.merging is None else learner.merging.state(),
    }
    facts["guard"], good = learner.guard.state()
    facts["calibration"], joint = (None, {}) if learner.calibration is None else learner.calibration.state()
    facts["memory"], memory = (None, {}) if learner.memory is None else learner.memory.state()
    tensors = (
        named("memory", memory)
        | named("kept", good)
        | named("joint", joint)
        | named("discriminant", {} if learner.discriminant is None else learner.discriminant.state())
        | named("shared", learner.pool.shared_state())
    )
    for place, entry in enumerate(learner.recent):
        put_batch(tensors, f"recent.{place}", entry.batch)
    experts = []
    for expert in learner.experts:
        own = named("pool", learner.pool.state(expert.id))
        for place, kept in enumerate(expert.replay.kept):
            put_batch(own, f"replay.{place}", kept.batch)
        experts.append(own)
    return Snapshot(facts, tensors, experts)


def restore(learner: Learner, snapshot: Snapshot) -> None:
    """Load a snapshot into a new learner with the same settings; raise a ValueError if it does not fit."""
    assert not learner.steps, "only a learner that has seen nothing can become another"
    with reading("state"):
        check_learner(snapshot.facts)
        _restore(learner, snapshot)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn errors from missing or malformed entries of a checkpoint into a ValueError that names them."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{name}: {error!r} is missing or of the wrong kind") from error


def _restore(learner: Learner, snapshot: Snapshot) -> None:
    facts, device = snapshot.facts, learner.pool.device
    restore_shared(learner.pool, snapshot)
    while len(learner.experts) < len(facts["experts"]):
        learner.new_expert()
    for expert, own, fact in zip(learner.experts, snapshot.experts, facts["experts"], strict=True):
        learner.pool.load_state(expert.id, part("pool", own))
        expert.losses, expert.undone = LossStats(**fact["losses"]), fact["undone"]
        expert.mistakes = LossStats(**fact["mistakes"])
        expert.merged_into, expert.knows_nothing = fact["merged_into"], fact["knows_nothing"]
        expert.labels = LabelCounts({int(label): int(count) for label, count in fact["labels"]})
        expert.replay.seen = fact["seen"]
        batches = [get_batch(own, f"replay.{place}", device) for place in range(len(fact["remembered"]))]
        expert.replay.kept = [ReplayBatch(s, b) for s, b in zip(fact["remembered"], batches, strict=True)]
    learner.outlier_rate.outliers, learner.limited_told = facts["outliers"], facts["limited_told"]
    learner.suspicion.level = facts["suspicion"]
    learner.steps, learner.last_used = facts["steps"], facts["last_used"]
    learner.evaluations.clear()
    learner.evaluations.update(facts["evaluations"])  # in place: shared with the replays
    learner.recent.previous_expert = facts["recent"]["previous_expert"]
    for place, (step, *fate) in enumerate(facts["recent"]["entries"]):
        learner.recent.append(RecentEntry(step, get_batch(snapshot.tensors, f"recent.{place}", device), *fate))
    learner.organisation.load_state(facts["organisation"])
    shortlist, merging, guard, calibration = (facts[name] for name in ("shortlist", "merging", "guard", "calibration"))
    if learner.shortlist is not None:
        learner.shortlist.load_state(shortlist)
    if learner.merging is not None:
        learner.merging.load_state(merging)
    if guard is not None:
        learner.guard.load_state(learner.experts[guard["expert"]], guard, part("kept", snapshot.tensors))
    if learner.memory is not None:
        learner.memory.load_state(facts["memory"], part("memory", snapshot.tensors))
    if learner.discriminant is not None:
        learner.discriminant.load_state(part("discriminant", snapshot.tensors))
    if learner.calibration is not None and calibration is not None:
        learner.calibration.load_state(calibration, part("joint", snapshot.tensors))


def shared_tensors(pool: ExpertPool) -> dict[str, Tensor]:
    """Return the state shared by a pool's experts, by name."""
    return named("shared", pool.shared_state())


def restore_shared(pool: ExpertPool, snapshot: Snapshot) -> None:
    """Restore the state shared by a pool's experts."""
    pool.load_shared_state(part("shared", snapshot.tensors))


def named(owner: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Prefix the tensors' names with the owner's."""
    return {f"{owner}.{name}": tensor for name, tensor in tensors.items()}


def part(owner: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the owner's tensors, with the prefix removed from their names."""
    start = f"{owner}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}


def put_batch(tensors: dict[str, Tensor], name: str, batch: Batch) -> None:
    """Add a batch to named tensors."""
    tensors |= {f"{name}.x": batch.x.cpu().contiguous(), f"{name}.y": batch.y.cpu().contiguous()}


def get_batch(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Batch:
    """Return a batch added by `put_batch`."""
    return Batch(tensors[f"{name}.x"], tensors[f"{name}.y"]).to(device)
