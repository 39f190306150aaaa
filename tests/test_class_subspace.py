from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from hge.scores import Pupil, class_subspace
from hge.scores.class_subspace import ClassSubspaceScore, StreamingSubspaces


def teach(score: ClassSubspaceScore, x: torch.Tensor, y: torch.Tensor) -> None:
    Pupil(score).teach(x, y, torch.Generator())


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = load_digits()
    return torch.from_numpy((data.data / 16).astype(np.float32)), torch.from_numpy(data.target).long()


def learned(x: torch.Tensor, y: torch.Tensor, batch_size: int = 32) -> ClassSubspaceScore:
    score = ClassSubspaceScore(tuple(x.shape[1:]), outputs=10)
    for rows, labels in zip(x.split(batch_size), y.split(batch_size), strict=True):
        teach(score, rows, labels)
    return score


def test_streamed_subspace_agrees_with_scikit_learns_probabilistic_pca() -> None:
    x, _ = digits()
    theirs = -PCA(16).fit(x).score_samples(x) - 64 / 2 * np.log(2 * np.pi)
    pca = StreamingSubspaces(count=3, inputs=64, components=16)
    for rows in x.split(32):
        pca.learn(1, rows)
    ours = pca.score(x, torch.tensor([1]))[:, 0].numpy()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.995
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=1.5)


def test_mean_and_variance_are_exact_whatever_the_batches() -> None:
    x, _ = digits()
    for size in (7, 100, len(x)):
        pca = StreamingSubspaces(1, 64, 8)
        for rows in x.split(size):
            pca.learn(0, rows)
        torch.testing.assert_close(pca.mean[0], x.mean(0), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(pca.total[0], x.var(0, unbiased=False).sum(), atol=1e-3, rtol=1e-3)
        basis = pca.basis[0]
        torch.testing.assert_close(basis.T @ basis, torch.eye(16), atol=1e-3, rtol=1e-3)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    x, _ = digits()
    twice, weighted = StreamingSubspaces(1, 64, 8), StreamingSubspaces(1, 64, 8)
    twice.learn(0, x[:40])
    twice.learn(0, torch.cat([x[40:60]] * 2))
    weighted.learn(0, x[:40])
    weighted.learn(0, x[40:60], weight=2)
    torch.testing.assert_close(twice.mean, weighted.mean, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(twice.variances, weighted.variances, atol=1e-4, rtol=1e-3)


def test_classes_tell_experts_apart_better_than_one_subspace_does() -> None:
    """Two experts with two unlike digits each: what lies between those is nobody's."""
    x, y = digits()
    pairs = [(8, 0), (9, 1)]
    train = torch.arange(len(x)) % 2 == 0
    experts = [learned(x[train & own], y[train & own]) for own in (torch.isin(y, torch.tensor(p)) for p in pairs)]
    right = {"classes": 0.0, "one": 0.0}
    for number, pair in enumerate(pairs):
        rows = x[~train & torch.isin(y, torch.tensor(pair))]
        by_class = torch.stack([e.score(rows, batch_statistics=False) for e in experts]).argmin(0)
        by_one = torch.stack([e(rows)[:, 0] for e in experts]).argmin(0)
        right["classes"] += float((by_class == number).float().mean()) / 2
        right["one"] += float((by_one == number).float().mean()) / 2
    assert right["classes"] >= right["one"]
    assert right["classes"] > 0.97


def test_an_outlier_batch_adds_no_class() -> None:
    x, y = digits()
    score = learned(x[y < 2], y[y < 2])
    for _ in range(4):
        teach(score, x[y < 2], y[y < 2])
    before = score.own.tolist()
    teach(score, x[y == 7][:2], y[y == 7][:2])
    assert score.own.tolist() == before == [0, 1]
    assert score(x[:3])[:, 1 + 7].isnan().all()
    assert torch.isfinite(score.score(x, batch_statistics=False)).all()


def test_an_untrained_score_is_finite() -> None:
    score = ClassSubspaceScore((6,), outputs=3)
    assert torch.isfinite(score.score(torch.rand(4, 6), batch_statistics=False)).all()
    assert score(torch.rand(4, 6))[:, 1:].isnan().all()


def test_tensors_keep_their_place_and_size() -> None:
    """A pool may hand in views of stacked memory: nothing is rebound."""
    x, y = digits()
    score = ClassSubspaceScore((64,), outputs=10)
    places = {name: (tensor.data_ptr(), tensor.shape) for name, tensor in score.state_dict().items()}
    for _ in range(5):
        teach(score, x, y)
    assert places == {name: (tensor.data_ptr(), tensor.shape) for name, tensor in score.state_dict().items()}


def test_a_long_stream_is_taken_in_ever_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []
    monkeypatch.setattr(StreamingSubspaces, "learn", lambda self, which, x, weight=1: merged.append(weight))
    score = ClassSubspaceScore((4,), outputs=1)
    batches = 16 * class_subspace.EVERY_BATCH
    for _ in range(batches):
        teach(score, torch.rand(1, 4), torch.zeros(1, dtype=torch.int64))
    taken = merged[::2]  # all classes together, then the one class
    assert sum(taken) == batches, "what is left out is counted by what is taken in"
    assert len(taken) == class_subspace.EVERY_BATCH * 3  # all of the first, then half as many per doubling


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 20),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
    shift=st.sampled_from([0.0, 1e3]),
    seed=st.integers(0, 9),
)
def test_scores_are_finite_whatever_comes(rows: int, inputs: int, scale: float, shift: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = scale * torch.randn(rows, inputs, generator=generator) + shift
    y = torch.randint(0, 3, (rows,), generator=generator)
    score = ClassSubspaceScore((inputs,), outputs=3)
    for part, labels in zip(x.split(5), y.split(5), strict=True):
        teach(score, part, labels)
        assert torch.isfinite(score.score(x, batch_statistics=False)).all()
        assert torch.isfinite(score.score(x + 1e3, batch_statistics=False)).all()
        assert not score(x)[:, 0].isnan().any()
