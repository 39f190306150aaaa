"""When the joint score is fitted, and what for: at defined events of the stream, from the replay, never to answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from torch import Tensor

from hge.expert import Expert
from hge.gate import FloatArray, IntArray
from hge.joint import Evidence, Joint, Reader, fit_joint
from hge.pool import ExpertPool

GROWTH = 1.5
"""The joint is fitted anew when an expert has been trained on so many times the batches of the last time."""
MOST_ROWS = 12_800
"""Replay rows that a fit looks at, at the most."""


@dataclass
class Calibration:
    """Keeps a joint score fitted to the replay of all experts."""

    pool: ExpertPool
    experts: Sequence[Expert]
    joint: Joint | None = None
    evaluations: int = 0
    """Replay batches that were looked at by an expert so far."""
    _fitted_at: dict[int, int] = field(default_factory=dict)
    """expert -> batches on which it was trained when the joint was fitted."""
    _readers: dict[int, tuple[int, Reader]] = field(default_factory=dict)
    _columns: dict[tuple[int, int], tuple[tuple[int, int], FloatArray]] = field(default_factory=dict)

    def upkeep(self) -> bool:
        """Fit anew if an expert is new or has grown; return whether it was due."""
        due = any(e.batches_trained >= GROWTH * self._fitted_at.get(e.id, 0) for e in self.experts if e.replay.kept)
        if due:
            self.fit()
        return due

    def quiet(self, expert: Expert) -> int:
        """Return on how many batches the expert can be trained before `upkeep` has anything to do."""
        return max(0, ceil(GROWTH * self._fitted_at.get(expert.id, 0)) - expert.batches_trained - 1)

    def fit(self) -> None:
        """Fit to what the experts remember now. Only what was trained since is looked at anew."""
        known = [e for e in self.experts if e.replay.kept]
        if len(known) < len(self.experts):
            return  # an expert that was never trained, at the very beginning
        readers = [self._reader(e) for e in known]
        labels = [_labels(e) for e in known]
        read = np.concatenate([np.concatenate([self._read(e, o) for e in known], axis=1) for o in known])
        expert = np.repeat([e.id for e in known], [len(own) for own in labels])
        thin = slice(None, None, -(-len(read) // MOST_ROWS))
        self.joint = fit_joint(readers, read[thin], expert[thin], np.concatenate(labels)[thin])
        self._fitted_at = {e.id: e.batches_trained for e in known}

    def evidence(self, x: Tensor) -> list[Evidence]:
        """Ask every expert that the joint knows."""
        assert self.joint is not None
        return [self.pool.evidence(expert, x) for expert in range(len(self.joint.readers))]

    def _reader(self, expert: Expert) -> Reader:
        version = expert.batches_trained
        if self._readers.get(expert.id, (-1,))[0] != version:
            self._readers[expert.id] = version, Reader.of(self._look(expert, expert), _labels(expert))
        return self._readers[expert.id][1]

    def _read(self, expert: Expert, owner: Expert) -> FloatArray:
        key, version = (expert.id, owner.id), (expert.batches_trained, owner.batches_trained)
        if key not in self._columns or self._columns[key][0] != version:
            self._columns[key] = version, self._reader(expert).read(self._look(expert, owner))
        return self._columns[key][1]

    def _look(self, expert: Expert, owner: Expert) -> Evidence:
        """Return what an expert knows of the rows that another one remembers."""
        self.evaluations += len(owner.replay.kept)
        seen = [self.pool.evidence(expert.id, kept.batch.x) for kept in owner.replay.kept]
        parts, logits, features = (
            np.concatenate([getattr(e, name) for e in seen]) for name in ("parts", "logits", "features")
        )
        return Evidence(parts, logits, features)


def _labels(expert: Expert) -> IntArray:
    return np.concatenate([kept.batch.y.cpu().numpy() for kept in expert.replay.kept])
