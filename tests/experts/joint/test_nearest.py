from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.random import default_rng

from hge.experts.joint.model import Evidence, EvidenceScaler, JointScore, fit_joint
from hge.experts.joint.nearest import KeptRows

ROWS = 300


def rings(seed: int) -> tuple[torch.Tensor, np.ndarray]:
    """Four rings around the same middle: 0 and 2 are classes of one expert, 1 and 3 of another."""
    rng = default_rng(seed)
    label = rng.integers(0, 4, ROWS)
    angle, radius = rng.uniform(0, 2 * np.pi, ROWS), 1 + label + 0.1 * rng.standard_normal(ROWS)
    rows = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return torch.from_numpy(rows).float(), label


def evidence_of(kept: KeptRows, x: torch.Tensor) -> Evidence:
    """Of an expert that knows nothing but the rows that it keeps."""
    nothing = np.zeros((len(x), 4))
    return Evidence(nothing[:, :0], nothing, nothing[:, :0], kept.distances(x, outputs=4).double().numpy())


def fitted() -> tuple[JointScore, list[KeptRows]]:
    x, label = rings(seed=1)
    owner = label % 2
    kept = [KeptRows.of(x[owner == e], torch.from_numpy(label[owner == e])) for e in range(2)]
    scalers = [EvidenceScaler.fit(evidence_of(kept[e], x[owner == e]), label[owner == e]) for e in range(2)]
    columns = np.concatenate([s.transform(evidence_of(k, x)) for s, k in zip(scalers, kept, strict=True)], axis=1)
    return fit_joint(scalers, columns, owner, label, 100, torch.device("cpu")), kept


def test_rows_are_told_apart_by_their_neighbours_alone() -> None:
    joint, kept = fitted()
    x, label = rings(seed=2)
    pairs = joint.pairs([evidence_of(k, x) for k in kept])
    assert (joint.pair_class[pairs.argmax(axis=1)] == label).mean() > 0.97


def test_what_is_fitted_to_kept_rows_holds_for_others() -> None:
    """A kept row is not its own neighbour, or distances on the replay would be lower than they ever are again."""
    joint, kept = fitted()
    doubts = []
    for x, _ in (rings(seed=1), rings(seed=2)):
        logs = joint.experts(joint.pairs([evidence_of(k, x) for k in kept]))
        doubts.append(-logs.max(axis=0).mean())
    assert doubts[1] < 2 * doubts[0]


def test_an_only_row_of_a_class_is_no_evidence_and_no_error() -> None:
    rows, label = torch.tensor([[0.0, 0.0], [5.0, 0.0], [5.0, 1.0]]), torch.tensor([0, 1, 1])
    own = evidence_of(KeptRows.of(rows, label), rows)
    assert np.isnan(own.distances[0, 0])  # type: ignore[index]
    scaler = EvidenceScaler.fit(own, label.numpy())
    assert np.isfinite(scaler.transform(own)).all()


def test_a_scaler_fitted_without_distances_ignores_them() -> None:
    x, label = rings(seed=1)
    evidence = evidence_of(KeptRows.of(x, torch.from_numpy(label)), x)
    without = EvidenceScaler.fit(replace(evidence, distances=None), label)
    assert not without.near
    assert len(without.scale) == without.transform(evidence).shape[1]


def test_a_common_offset_changes_nothing() -> None:
    x, label = rings(seed=1)
    labels = torch.from_numpy(label)
    near, far = (KeptRows.of(x + offset, labels).distances(x + offset, outputs=4) for offset in (0.0, 4096.0))
    assert torch.allclose(near, far, atol=2e-3)
