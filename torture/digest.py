"""Digests of a learner's whole state and of its predictions: two are equal only if every bit is."""

from __future__ import annotations

import hashlib
import json

from torch import Tensor

from hge.data.scenarios import Scenario
from hge.learning.learner import Learner
from hge.learning.routing import Answerer
from hge.learning.state import Snapshot, take_snapshot


def state_digest(learner: Learner) -> str:
    """Return the digest of a learner's whole state."""
    return snapshot_digest(take_snapshot(learner))


def snapshot_digest(snapshot: Snapshot) -> str:
    """Return the digest of a state, in memory or read from disk."""
    digest = hashlib.sha256(json.dumps(snapshot.facts, sort_keys=True).encode())
    for tensors in (snapshot.tensors, *snapshot.experts):
        for name in sorted(tensors):
            digest.update(name.encode() + _bytes(tensors[name]))
    return digest.hexdigest()


def answers_digest(learner: Learner, scenario: Scenario) -> str:
    """Return the digest of the probabilities of all test rows."""
    answerer, digest = Answerer(learner), hashlib.sha256()
    for task in scenario.tasks:
        x = task.test.whole().x
        digest.update(answerer.probabilities(x, answerer.route(x, "sample"), scenario.classes).tobytes())
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().numpy().tobytes()
