"""Schedule and data of the joint score's fits: at defined events of the stream, on the replay, never at prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import logsumexp
from torch import Tensor

from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.experts.joint.discriminant import Discriminant
from hge.experts.joint.model import MAX_FEATURES_TOTAL, Evidence, EvidenceScaler, JointScore, fit_joint
from hge.experts.joint.nearest import KeptRows
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.tree import FloatArray, IntArray

GROWTH = 4
"""The joint score is refitted when an expert's number of batches has grown by this factor since the last fit."""


@dataclass(frozen=True)
class FitBudget:
    """Computational budget of a fit."""

    rows: int
    """Maximum number of replay rows used."""
    iterations: int


ROUGH, FULL = FitBudget(rows=2_000, iterations=40), FitBudget(rows=12_800, iterations=200)
"""Budgets during a stream, and at its end."""
ROWS_AT_ONCE = 512


@dataclass
class Calibration:
    """Keeps a joint score fitted to the replay of all experts."""

    pool: ExpertPool
    experts: Sequence[Expert]
    discriminant: Discriminant | None = None
    """A linear model of all rows, solved whenever the joint score is fitted."""
    joint: JointScore | None = None
    batches_at_fit: tuple[int, ...] = ()
    """Number of batches on which each expert in the joint score had been trained at the last fit."""
    _stride: int = 1
    """One in this many replay rows of an expert is used, so that memory does not grow with the number of experts."""
    _kept: dict[int, tuple[int, KeptRows]] = field(default_factory=dict)
    """Of each expert: the number of batches it was trained on, and its replay rows in the shared space."""
    _scalers: dict[int, tuple[int, EvidenceScaler]] = field(default_factory=dict)
    columns: dict[tuple[int, int], tuple[tuple[int, int], FloatArray]] = field(default_factory=dict)
    """Evidence kept for the next fit: (expert, owner of the rows) -> (batches both were trained on, its columns)."""

    @property
    def known(self) -> int:
        """Number of experts in the joint score."""
        return len(self.batches_at_fit)

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Refit with the small budget if there is a new expert, or one that was trained enough to look different."""
        if self.known < experts or min(self._batches_left()) <= 0:
            self.fit(ROUGH)

    def batches_until_due(self, experts: int, trained: int) -> int:
        """Return the number of batches that can be trained before a fit is due."""
        # Minus one, and one more because the last batch may also trigger the training on an outlier.
        return max(0, min(self._batches_left(), default=0) - 2)

    def _batches_left(self) -> list[int]:
        """Return on how many more batches each expert can be trained before a fit is due."""
        return [GROWTH * then - e.batches_trained for then, e in zip(self.batches_at_fit, self.experts, strict=False)]

    def fit(self, budget: FitBudget = FULL) -> None:
        """Fit to the experts' current replay. Evidence is recomputed only for experts trained since the last fit."""
        known = [e for e in self.experts if e.replay.kept]
        if len(known) < len(self.experts):
            return  # at the very beginning, an expert is still untrained
        if self.known == 1 < len(known):  # the first expert's deferred work was done without training it
            self._clear_cache()
        self._limit_rows(sum(len(kept.batch) for e in known for kept in e.replay.kept))
        scalers = [self._scaler(e).truncated(MAX_FEATURES_TOTAL // len(known)) for e in known]
        labels = [self._labels(e) for e in known]
        expert = np.repeat([e.id for e in known], [len(own) for own in labels])
        rows = _sample_rows(len(expert), budget.rows)
        for owner in known:
            self._read_replay(known, owner, [len(scaler.scale) for scaler in scalers])
        columns = [np.concatenate([self.columns[e.id, owner.id][1] for owner in known])[rows] for e in known]
        read = np.concatenate(columns, axis=1, dtype=np.float64)
        label = np.concatenate(labels)[rows]
        self.joint = fit_joint(scalers, read, expert[rows], label, budget.iterations, self.pool.device)
        self.batches_at_fit = tuple(e.batches_trained for e in known)
        if self.discriminant is not None:
            self.discriminant.solve()

    def state(self) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
        """Return the fitted joint score; the evidence behind it is recomputed at the next fit."""
        if self.joint is None:
            return None, {}
        facts = {
            "usual_doubt": self.joint.usual_doubt,
            "readers": len(self.joint.scalers),
            "batches_at_fit": list(self.batches_at_fit),
            "stride": self._stride,
        }
        return facts, {name: torch.from_numpy(np.array(array)) for name, array in self.joint.arrays().items()}

    def load_state(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        arrays = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
        self.joint = JointScore.from_arrays(arrays, facts["readers"], facts["usual_doubt"])
        self.batches_at_fit = tuple(facts["batches_at_fit"])
        self._stride = facts["stride"]
        self._clear_cache()

    def evidence(self, x: Tensor) -> list[Evidence]:
        """Return the evidence of every expert in the joint score."""
        assert self.joint is not None
        return self._evidence(self.experts[: len(self.joint.scalers)], x)

    def log_probabilities(self, x: Tensor, queried: npt.NDArray[np.bool_] | None = None) -> FloatArray:
        """Return [experts, rows]: log P(expert | row), from the evidence of all experts or of those in `queried`.

        The evidence of the others is replaced by its mean, and their probability is 0.
        """
        assert self.joint is not None
        joint = self.joint
        if queried is None:
            return joint.experts(joint.pairs(self.evidence(x)))
        columns = []
        for expert, own in zip(range(len(joint.scalers)), joint.spans, strict=True):
            read = np.tile(joint.mean[own], (len(x), 1))
            rows = np.flatnonzero(queried[expert])
            if len(rows):
                (evidence,) = self._evidence([self.experts[expert]], x[torch.from_numpy(rows)])
                read[rows] = joint.scalers[expert].transform(evidence)
            columns.append(read)
        logs = joint.experts(joint.pairs_from_columns(np.concatenate(columns, axis=1)))
        logs[~queried] = -np.inf
        normalised: FloatArray = logs - logsumexp(logs, axis=0)
        return normalised

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds per row and queried expert, beyond the experts' own evidence."""
        assert self.joint is not None
        own = self.joint.weights.size + sum(scaler.feature_basis.size for scaler in self.joint.scalers)
        near = 0.0
        if any(scaler.near for scaler in self.joint.scalers):
            inputs, directions = self.pool.space.directions.shape
            near = directions * (inputs + sum(len(self._rows(expert)) for expert in self.experts))
        return (own + near) / len(self.joint.scalers)

    def _limit_rows(self, rows: int) -> None:
        """Use fewer rows of each expert once the total is too large; in powers of two, so that this is rare."""
        stride = 1
        while rows > stride * FULL.rows:
            stride *= 2
        if stride != self._stride:
            self._stride = stride
            self._clear_cache()

    def _clear_cache(self) -> None:
        self._scalers.clear()
        self._kept.clear()
        self.columns.clear()

    def _scaler(self, expert: Expert) -> EvidenceScaler:
        version = expert.batches_trained
        if self._scalers.get(expert.id, (-1,))[0] != version:
            (own,) = self._evidence_on_replay([expert], expert)
            self._scalers[expert.id] = version, EvidenceScaler.fit(own, self._labels(expert))
        return self._scalers[expert.id][1]

    def _read_replay(self, experts: Sequence[Expert], owner: Expert, columns: Sequence[int]) -> None:
        """Keep the leading columns of all experts' evidence on the rows of one; fewer if there are more experts.

        It is computed for those experts for which it has changed, and together: most of it is the same for all.
        """
        versions = {e.id: (e.batches_trained, owner.batches_trained) for e in experts}
        changed = [e for e in experts if self.columns.get((e.id, owner.id), (None,))[0] != versions[e.id]]
        found = self._evidence_on_replay(changed, owner)
        read = {e.id: self._scaler(e).transform(own).astype(np.float32) for e, own in zip(changed, found, strict=True)}
        for e, leading in zip(experts, columns, strict=True):
            own = read[e.id] if e.id in read else self.columns[e.id, owner.id][1]
            self.columns[e.id, owner.id] = versions[e.id], np.ascontiguousarray(own[:, :leading])

    def _evidence_on_replay(self, experts: Sequence[Expert], owner: Expert) -> list[Evidence]:
        """Return the evidence of each expert on the replay rows of one."""
        if not experts:
            return []
        rows = torch.cat([as_float(kept.batch.x) for kept in owner.replay.kept])[self._rows(owner)]
        found = [self._evidence(experts, part) for part in torch.split(rows, ROWS_AT_ONCE)]
        return [_joined(parts) for parts in zip(*found, strict=True)]

    def _evidence(self, experts: Sequence[Expert], x: Tensor) -> list[Evidence]:
        """Return the pool's evidence of experts, and the distances to the rows in their replay."""
        found = self.pool.evidence([expert.id for expert in experts], x)
        if not self.pool.space.fixed:
            return found
        position = self.pool.space.position(as_float(x))
        near = [
            self._kept_rows(expert).distances(position, own.logits.shape[1])
            for expert, own in zip(experts, found, strict=True)
        ]
        return [replace(own, distances=d.double().cpu().numpy()) for own, d in zip(found, near, strict=True)]

    def _kept_rows(self, expert: Expert) -> KeptRows:
        """Return the expert's replay rows in the shared space."""
        version = expert.batches_trained
        if self._kept.get(expert.id, (-1,))[0] != version:
            rows, kept = self._rows(expert), [kept.batch for kept in expert.replay.kept]
            x, y = torch.cat([as_float(batch.x) for batch in kept])[rows], torch.cat([batch.y for batch in kept])[rows]
            self._kept[expert.id] = version, KeptRows.of(self.pool.space.position(x), y)
        return self._kept[expert.id][1]

    def _labels(self, expert: Expert) -> IntArray:
        labels: IntArray = torch.cat([kept.batch.y for kept in expert.replay.kept])[self._rows(expert)].cpu().numpy()
        return labels

    def _rows(self, owner: Expert) -> Tensor:
        """Return the indices of the replay rows of an expert that are used."""
        rows = sum(len(kept.batch) for kept in owner.replay.kept)
        return torch.from_numpy(_sample_rows(rows, -(-rows // self._stride)))


def _joined(found: Sequence[Evidence]) -> Evidence:
    """Return an expert's evidence on consecutive parts of rows as that on all of them."""
    parts, logits, features = (
        np.concatenate([getattr(e, name) for e in found]) for name in ("parts", "logits", "features")
    )
    distances = [e.distances for e in found if e.distances is not None]
    return Evidence(parts, logits, features, np.concatenate(distances) if distances else None)


def _sample_rows(rows: int, limit: int) -> IntArray:
    """Return at most `limit` row indices, drawn at random: regular steps would miss labels that alternate.

    >>> len(_sample_rows(9, 4)), _sample_rows(3, 4)
    (4, array([0, 1, 2]))
    """
    drawn = Keys(0).rng("calibration", rows, limit).permutation(rows)  # any seed will do
    return np.sort(drawn[:limit])
