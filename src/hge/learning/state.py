"""Everything that a learner knows, as tensors and plain JSON; and a learner made of it again, bit for bit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hge.core.types import Batch
from hge.experts.joint.model import Joint, Reader
from hge.experts.optim import check_state
from hge.experts.pool import ExpertPool
from hge.experts.replay import Remembered
from hge.gating.promotion import Probation
from hge.gating.switch_detection import LossStats, RecentEntry
from hge.gating.tree import Tree
from hge.learning.learner import Learner
from hge.learning.rollback import Guard, Kept

SHORTLIST = ("batch", "row", "batch_rows", "experts_at_fit", "trained_at_fit")
ARRAYS = ("mean", "scale", "weights", "bias")
READER = ("classes", "parts", "centre", "spread", "feature_mean", "feature_basis")


@dataclass(frozen=True)
class Snapshot:
    """A learner's state at one moment."""

    facts: dict[str, Any]
    """What is not a tensor, as JSON values."""
    tensors: dict[str, Tensor]
    """What changes with every batch."""
    experts: list[dict[str, Tensor]]
    """What changes when that expert is trained: `facts["experts"][i]["batches"]` tells two states apart."""


def take(learner: Learner) -> Snapshot:
    """Copy a learner's state. It must not be in the middle of `learn_all`."""
    tensors: dict[str, Tensor] = {}
    facts = {
        "steps": learner.steps,
        "last_used": learner.last_used,
        "newcomers": list(learner.newcomers),
        "evaluations": dict(learner.evaluations),
        "experts": [
            {
                "batches": e.batches_trained,
                "losses": asdict(e.losses),
                "undone": e.undone,
                "seen": e.replay.seen,
                "remembered": [kept.step for kept in e.replay.kept],
            }
            for e in learner.experts
        ],
        "recent": {
            "previous_expert": learner.recent.previous_expert,
            "entries": [[entry.step, entry.expert, entry.refused_by] for entry in learner.recent],
        },
        "guard": _guard(learner.guard, tensors),
        "organisation": _organisation(learner),
        "calibration": _calibration(learner, tensors),
    }
    tensors |= shared_tensors(learner.pool)
    for place, entry in enumerate(learner.recent):
        put_batch(tensors, f"recent.{place}", entry.batch)
    experts = []
    for expert in learner.experts:
        own = {f"pool.{name}": tensor for name, tensor in learner.pool.state(expert.id).items()}
        for place, kept in enumerate(expert.replay.kept):
            put_batch(own, f"replay.{place}", kept.batch)
        experts.append(own)
    return Snapshot(facts, tensors, experts)


def restore(learner: Learner, snapshot: Snapshot) -> None:
    """Make a new learner with the same settings what the snapshot's was; raise a ValueError if it does not fit."""
    assert not learner.steps, "only a learner that has seen nothing can become another"
    with reading("state"):
        _restore(learner, snapshot)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Let what a checkpoint lacks, or has of another kind, be a ValueError that names it."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{name}: {error!r} is missing or of the wrong kind") from error


def _restore(learner: Learner, snapshot: Snapshot) -> None:
    facts, device = snapshot.facts, learner.pool.device
    restore_shared(learner.pool, snapshot)
    while len(learner.experts) < len(facts["experts"]):
        learner._new_expert()
    for expert, own, fact in zip(learner.experts, snapshot.experts, facts["experts"], strict=True):
        state = {name.removeprefix("pool."): t for name, t in own.items() if name.startswith("pool.")}
        learner.pool.load_state(expert.id, state)
        expert.losses, expert.undone = LossStats(**fact["losses"]), fact["undone"]
        expert.replay.seen = fact["seen"]
        batches = [get_batch(own, f"replay.{place}", device) for place in range(len(fact["remembered"]))]
        expert.replay.kept = [Remembered(s, b) for s, b in zip(fact["remembered"], batches, strict=True)]
    learner.steps, learner.last_used = facts["steps"], facts["last_used"]
    learner.newcomers = list(facts["newcomers"])
    learner.evaluations.clear()
    learner.evaluations.update(facts["evaluations"])  # in place: the replays count there, too
    learner.recent.previous_expert = facts["recent"]["previous_expert"]
    for place, (step, *fate) in enumerate(facts["recent"]["entries"]):
        learner.recent.append(RecentEntry(step, get_batch(snapshot.tensors, f"recent.{place}", device), *fate))
    _restore_guard(learner, facts["guard"], snapshot.tensors)
    _restore_organisation(learner, facts["organisation"])
    _restore_calibration(learner, facts["calibration"], snapshot.tensors)


def shared_tensors(pool: ExpertPool) -> dict[str, Tensor]:
    """Return what a pool's experts share, by name."""
    return {f"shared.{name}": tensor for name, tensor in pool.shared_state().items()}


def restore_shared(pool: ExpertPool, snapshot: Snapshot) -> None:
    """Let a pool's experts share what they shared."""
    shared = {n.removeprefix("shared."): t for n, t in snapshot.tensors.items() if n.startswith("shared.")}
    pool.load_shared_state(shared)


def put_batch(tensors: dict[str, Tensor], name: str, batch: Batch) -> None:
    """Add a batch to named tensors."""
    tensors |= {f"{name}.x": batch.x.cpu().contiguous(), f"{name}.y": batch.y.cpu().contiguous()}


def get_batch(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Batch:
    """Return a batch that `put_batch` added."""
    return Batch(tensors[f"{name}.x"], tensors[f"{name}.y"]).to(device)


def _guard(guard: Guard, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    if guard.expert is None:
        return None
    kept = guard.kept
    tensors |= {f"kept.{name}": tensor.cpu().contiguous() for name, tensor in kept.tensors.items()}
    return {"expert": guard.expert.id, "losses": asdict(kept.losses), "trained": kept.trained}


def _restore_guard(learner: Learner, facts: dict[str, Any] | None, tensors: Mapping[str, Tensor]) -> None:
    if facts is None:
        return
    kept = {name.removeprefix("kept."): tensor for name, tensor in tensors.items() if name.startswith("kept.")}
    check_state(kept, learner.pool.state(facts["expert"]))
    learner.guard.expert = learner.experts[facts["expert"]]
    learner.guard.kept = Kept(kept, LossStats(**facts["losses"]), facts["trained"])


def _organisation(learner: Learner) -> dict[str, Any]:
    organisation, shortlist = learner.organisation, learner.shortlist
    return {
        "tree": organisation.tree.as_json(),
        "probations": {
            str(expert): {"lower": list(p.lower), "paths": [[list(path), count] for path, count in p.paths.items()]}
            for expert, p in organisation.probations.items()
        },
        "shortlist": None if shortlist is None else {name: getattr(shortlist, name) for name in SHORTLIST},
    }


def _restore_organisation(learner: Learner, facts: dict[str, Any]) -> None:
    organisation = learner.organisation
    organisation.tree = Tree.from_json(facts["tree"])
    for expert, fact in facts["probations"].items():
        paths = Counter({tuple(path): count for path, count in fact["paths"]})
        organisation.probations[int(expert)] = Probation(organisation.window, deque(fact["lower"]), paths)
    if learner.shortlist is not None:
        for name in SHORTLIST:
            setattr(learner.shortlist, name, facts["shortlist"][name])


def _calibration(learner: Learner, tensors: dict[str, Tensor]) -> dict[str, Any] | None:
    """The joint score as it was fitted; what it was fitted to is looked at anew when it is due again."""
    calibration = learner.calibration
    if calibration is None or calibration.joint is None:
        return None
    joint = calibration.joint
    tensors |= {f"joint.{name}": torch.from_numpy(np.array(getattr(joint, name))) for name in ARRAYS}
    for number, reader in enumerate(joint.readers):
        arrays = {name: torch.from_numpy(np.array(getattr(reader, name))) for name in READER}
        tensors |= {f"joint.{number}.{name}": array for name, array in arrays.items()}
    return {
        "usual_doubt": joint.usual_doubt,
        "readers": len(joint.readers),
        "known": calibration.known,
        "trained_at_fit": calibration.trained_at_fit,
    }


def _restore_calibration(learner: Learner, facts: dict[str, Any] | None, tensors: Mapping[str, Tensor]) -> None:
    if facts is None or learner.calibration is None:
        return
    arrays = {name: tensors[f"joint.{name}"].numpy().copy() for name in ARRAYS}
    readers = [
        Reader(**{name: tensors[f"joint.{number}.{name}"].numpy().copy() for name in READER})
        for number in range(facts["readers"])
    ]
    learner.calibration.joint = Joint(tuple(readers), **arrays, usual_doubt=facts["usual_doubt"])
    learner.calibration.known, learner.calibration.trained_at_fit = facts["known"], facts["trained_at_fit"]
