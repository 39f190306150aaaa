from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from hge.config import OptimiserConfig, ScoreConfig
from hge.nets import AUTOENCODERS, ConvVAE
from hge.scores import Score, build_score
from hge.scores.autoencoder import AutoencoderScore
from hge.scores.subspace import SubspaceScore


def teach(score: Score, x: torch.Tensor, seed: int = 0, *, first: bool = False, skip: bool = False) -> None:
    if first:
        score.start(x)
    score.study(x, torch.zeros(len(x), dtype=torch.int64), score.draw(len(x), torch.Generator().manual_seed(seed)))
    score.learn(torch.tensor(float(skip)))


def digits() -> torch.Tensor:
    return torch.from_numpy((load_digits().data / 16).astype(np.float32))


def learned(x: torch.Tensor, batch_size: int = 32, components: int = 16) -> SubspaceScore:
    score = SubspaceScore(tuple(x.shape[1:]), components)
    for number, part in enumerate(x.split(batch_size)):
        teach(score, part, first=number == 0)
        score.refresh(number * batch_size + len(part))
    for _ in range(3):  # a few power iterations are not the last word
        score.refresh(len(x))
    return score


def test_subspace_agrees_with_scikit_learns_probabilistic_pca() -> None:
    x = digits()
    theirs = -PCA(16).fit(x).score_samples(x) - 64 / 2 * np.log(2 * np.pi)
    ours = learned(x).score(x, batch_statistics=False).numpy()
    assert np.corrcoef(ours, theirs)[0, 1] > 0.999
    np.testing.assert_allclose(ours.mean(), theirs.mean(), atol=1.0)


def test_subspace_of_a_stream_is_that_of_the_whole() -> None:
    x = digits()
    once, streamed = learned(x, batch_size=len(x)), learned(x, batch_size=7)
    torch.testing.assert_close(once.mean, streamed.mean, atol=1e-5, rtol=1e-4)
    a, b = (s.score(x, batch_statistics=False) for s in (once, streamed))
    assert torch.corrcoef(torch.stack([a, b]))[0, 1] > 0.9999
    torch.testing.assert_close(a, b, atol=0.5, rtol=1e-2)


def test_subspace_is_safe_far_from_the_origin() -> None:
    x = digits()
    near, far = learned(x), learned(x + 1000)
    a, b = near.score(x, batch_statistics=False), far.score(x + 1000, batch_statistics=False)
    assert torch.corrcoef(torch.stack([a, b]))[0, 1] > 0.99


def test_subspace_finds_its_directions_behind_constant_inputs() -> None:
    """An image's border: the first inputs never vary, and unit vectors would never leave them."""
    x = torch.cat([torch.full((1797, 100), 0.3), digits()], dim=1)
    score = learned(x)
    exact = torch.linalg.eigvalsh(torch.cov(x.T, correction=0).double())[-16:].sum()
    captured = (score.basis @ torch.cov(x.T, correction=0) @ score.basis.T).trace()
    assert captured > 0.99 * exact
    first = SubspaceScore((164,), 16)
    teach(first, x[:128], first=True)
    first.refresh(128)
    covariance = torch.cov(x[:128].T, correction=0)
    early = (first.basis @ covariance @ first.basis.T).trace()
    assert early > 0.97 * torch.linalg.eigvalsh(covariance)[-16:].sum()


def test_kl_is_summed_over_the_latents() -> None:
    score = autoencoder(ScoreConfig("autoencoder"))
    x, mean, log_variance = torch.zeros(1, 64), torch.ones(1, 32), torch.zeros(1, 32)
    torch.testing.assert_close(score._loss(x, x, mean, log_variance), torch.tensor([16.0]))  # 32 × ½·1²


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 9),
    scale=st.sampled_from([0.0, 1e-6, 1.0, 1e6]),
    seed=st.integers(0, 9),
)
def test_subspace_scores_are_finite_whatever_comes(rows: int, inputs: int, scale: float, seed: int) -> None:
    x = scale * torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))
    score = SubspaceScore((inputs,))
    for number, part in enumerate(x.split(5)):
        teach(score, part, first=number == 0)
        score.refresh(5 * number + len(part))
        assert torch.isfinite(score.score(x, batch_statistics=False)).all()
        assert torch.isfinite(score.score(x + 1e3, batch_statistics=False)).all()


def test_subspace_state_does_not_grow() -> None:
    def size(score: SubspaceScore) -> int:
        return sum(tensor.numel() for tensor in score.state_dict().values())

    score = SubspaceScore((20,))
    empty = size(score)
    for step in range(50):
        teach(score, torch.randn(16, 20, generator=torch.Generator().manual_seed(step)))
        score.refresh(16 * step + 16)
    assert size(score) == empty


def test_subspace_does_not_stop_learning_after_a_long_stream() -> None:
    """Neither overflows nor freezes before the counts of a long life."""
    score = SubspaceScore((4,))
    teach(score, torch.randn(1000, 4, generator=torch.Generator().manual_seed(0)), first=True)
    for sums in (score.total, score.products):
        sums.mul_(1e6)  # a thousand million rows
    score.refresh(10**9)
    before = score.mean.clone()
    teach(score, torch.ones(10**5, 4))
    score.refresh(10**9 + 10**5)
    assert torch.isfinite(score.basis).all()
    assert (score.mean > before).all()


def autoencoder(config: ScoreConfig, optimiser: OptimiserConfig | None = None, net: str = "mlp") -> AutoencoderScore:
    torch.manual_seed(0)
    shape = (64,) if net == "mlp" else (3, 32, 32)
    score = build_score(config, optimiser or OptimiserConfig(), AUTOENCODERS[net], shape, 10)
    assert isinstance(score, AutoencoderScore)
    return score


def test_autoencoder_score_is_deterministic_and_falls_with_training() -> None:
    x = digits()[:256]
    score = autoencoder(ScoreConfig("autoencoder", kl_weight="elbo"), OptimiserConfig("adam", lr=1e-3))
    before = score.score(x, batch_statistics=False)
    torch.testing.assert_close(before, score.score(x, batch_statistics=False), rtol=0, atol=0)
    for step in range(100):
        teach(score, x, seed=step)
    assert score.score(x, batch_statistics=False).mean() < before.mean()


def test_autoencoders_compare_at_one_draw_whatever_the_company() -> None:
    x = digits()[:64]
    at_mean, drawn, plain = (
        autoencoder(ScoreConfig("autoencoder", variational=variational, sampled=sampled))
        for variational, sampled in ((True, False), (True, True), (False, True))
    )
    drawn.load_state_dict(at_mean.state_dict())
    losses = drawn.score(x, batch_statistics=False)
    assert (losses != at_mean.score(x, batch_statistics=False)).all()
    torch.testing.assert_close(losses[7:8], drawn.score(x[7:8], batch_statistics=False))
    noise = drawn.fixed_draw
    assert noise is not None
    torch.testing.assert_close(losses, at_mean(x, noise.expand(64, -1)))
    assert plain.fixed_draw is None


def test_kl_weight_and_the_plain_autoencoder() -> None:
    x = digits()[:8]
    full, elbo, plain = (
        autoencoder(config)
        for config in (
            ScoreConfig("autoencoder"),
            ScoreConfig("autoencoder", kl_weight="elbo"),
            ScoreConfig("autoencoder", variational=False),
        )
    )
    assert full.kl_weight == 1.0
    assert elbo.kl_weight == pytest.approx(1 / 64)
    error = plain.score(x, batch_statistics=False)
    kl = full.score(x, batch_statistics=False) - error
    torch.testing.assert_close(elbo.score(x, batch_statistics=False), error + kl / 64)
    assert plain.draw(8, torch.Generator()) is None, "the ablation draws no noise"


@pytest.mark.parametrize("optimiser", [OptimiserConfig("sgd", lr=0.01), OptimiserConfig("adam", lr=1e-3)])
def test_convolutional_vae_does_not_diverge(optimiser: OptimiserConfig) -> None:
    """Reading 7 of docs/paper.md: with stock initialisation it is at 1e17 within three steps."""
    score = autoencoder(ScoreConfig("autoencoder"), optimiser, net="conv")
    x = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for step in range(8):
        teach(score, x, seed=step)
        value = score.score(x, batch_statistics=True).mean()
        assert torch.isfinite(value)
        assert value < 1e4


def test_log_variance_starts_at_zero_and_the_gradient_is_clipped() -> None:
    score = autoencoder(ScoreConfig("autoencoder"), OptimiserConfig(lr=1.0, momentum=0.0, weight_decay=0.0), net="conv")
    assert score.net.encode(torch.rand(2, 3, 32, 32))[1].abs().max() == 0
    before = [p.detach().clone() for p in score.net.parameters()]
    teach(score, 100 * torch.rand(8, 3, 32, 32))
    moved = sum(float((p.detach() - b).square().sum()) for p, b in zip(score.net.parameters(), before, strict=True))
    assert moved**0.5 <= 1.001


def test_log_variance_is_bounded() -> None:
    net = ConvVAE((1, 4, 4)).eval()
    torch.nn.init.constant_(net.log_variance.bias, 1e6)
    assert net.encode(torch.rand(2, 1, 4, 4))[1].abs().max() <= 6


@pytest.mark.parametrize("name", ["sketch", "autoencoder"])
def test_a_skipped_batch_leaves_no_trace(name: Literal["sketch", "autoencoder"]) -> None:
    torch.manual_seed(0)
    x, score = digits(), build_score(ScoreConfig(name), OptimiserConfig(), AUTOENCODERS["mlp"], (64,), 10)
    teach(score, x[:64], first=True)
    before = {key: value.clone() for key, value in score.state_dict().items()}
    for bad in (x[64:128], torch.full((3, 64), torch.nan)):
        teach(score, bad, skip=True)
        for key, value in score.state_dict().items():
            torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sketch", "autoencoder"])
def test_stacked_scores_are_those_of_each_expert(name: Literal["sketch", "autoencoder"]) -> None:
    torch.manual_seed(0)
    x, scores = digits(), []
    for expert in range(3):
        score = build_score(ScoreConfig(name), OptimiserConfig(), AUTOENCODERS["mlp"], (64,), 10)
        teach(score, x[100 * expert : 100 * expert + 100], first=True)
        score.refresh(100)
        scores.append(score)
    tensors = {key: torch.stack([s.gate_tensors()[key].detach() for s in scores]) for key in scores[0].gate_tensors()}
    together = scores[0].stacked(tensors, x[:9], batch_statistics=False)
    alone = torch.stack([s.score(x[:9], batch_statistics=False) for s in scores])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-3)
