from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.experts.networks import AUTOENCODERS, ConvVAE
from hge.experts.scores import Score, ShortlistedScore, Space, build_score
from hge.experts.scores.autoencoder import DRAWS, DRAWS_PER_ROW, AutoencoderScore


def train(score: Score, x: torch.Tensor, seed: int = 0, *, skip: bool = False) -> None:
    noise = score.draw_noise(len(x), torch.Generator().manual_seed(seed))
    score.compute_update(score.preprocess(x), torch.arange(len(x)) % 3, noise)
    score.apply_update(torch.tensor(float(skip)))


def digits() -> torch.Tensor:
    return torch.from_numpy((load_digits().data / 16).astype(np.float32))


def test_kl_is_summed_over_the_latents(monkeypatch: pytest.MonkeyPatch) -> None:
    score = autoencoder(ScoreConfig("autoencoder"))
    x, mean, log_variance = torch.zeros(1, 64), torch.ones(1, 32), torch.zeros(1, 32)
    monkeypatch.setattr(score.net, "encode", lambda seen: (mean, log_variance))
    monkeypatch.setattr(score.net, "decode", lambda latent: x)
    torch.testing.assert_close(score.score(x, batch_statistics=False), torch.tensor([16.0]))  # 32 × ½·1²


def autoencoder(config: ScoreConfig, optimiser: OptimiserConfig | None = None, net: str = "mlp") -> AutoencoderScore:
    torch.manual_seed(0)
    shape = (64,) if net == "mlp" else (3, 32, 32)
    score = build_score(config, optimiser or OptimiserConfig(), AUTOENCODERS[net], shape, 10, Space(shape), Keys(0))
    assert isinstance(score, AutoencoderScore)
    return score


@pytest.mark.slow
def test_autoencoder_score_is_deterministic_and_falls_with_training() -> None:
    x = digits()[:256]
    score = autoencoder(ScoreConfig("autoencoder", kl_weight="elbo"), OptimiserConfig("adam", lr=1e-3))
    before = score.score(x, batch_statistics=False)
    torch.testing.assert_close(before, score.score(x, batch_statistics=False), rtol=0, atol=0)
    for step in range(100):
        train(score, x, seed=step)
    assert score.score(x, batch_statistics=False).mean() < before.mean()


def test_autoencoders_compare_at_draws_of_the_latent() -> None:
    """Reading 19 of docs/paper.md."""
    x = digits()[:64]
    at_mean, drawn, plain = (
        autoencoder(ScoreConfig("autoencoder", variational=variational, sampled=sampled))
        for variational, sampled in ((True, False), (True, True), (False, True))
    )
    drawn.load_state_dict(at_mean.state_dict())
    draws = drawn.draws
    assert draws is not None
    assert plain.draws is None, "the ablation has no draws"

    single = drawn.score(x, batch_statistics=False)
    each = [at_mean(x, [draw]) for draw in draws[:DRAWS_PER_ROW]]
    torch.testing.assert_close(single, torch.stack(each).mean(0))
    torch.testing.assert_close(single[7:8], drawn.score(x[7:8], batch_statistics=False))
    torch.testing.assert_close(single[7:8], drawn.score(x[7:8], batch_statistics=True))

    torch.testing.assert_close(drawn.score(x, batch_statistics=True), at_mean(x, [draws[:64]]))
    long = x[:1].expand(DRAWS + 1, -1)  # equal rows, different draws, and the first one again
    scores = drawn.score(long, batch_statistics=True)
    assert len(scores.unique()) > DRAWS // 2
    torch.testing.assert_close(scores[0], scores[-1])


def test_draws_are_those_of_the_seed_for_every_expert() -> None:
    def draws(seed: int, expert: int) -> torch.Tensor:
        torch.manual_seed(expert)
        config, space = ScoreConfig("autoencoder", sampled=True), Space((64,))
        score = build_score(config, OptimiserConfig(), AUTOENCODERS["mlp"], (64,), 10, space, Keys(seed))
        assert isinstance(score, AutoencoderScore)
        assert score.draws is not None
        return score.draws

    torch.testing.assert_close(draws(0, 0), draws(0, 1), rtol=0, atol=0)
    assert (draws(0, 0) != draws(1, 0)).any()


def test_autoencoders_never_compute_in_16_bits() -> None:
    """Reading 21 of docs/paper.md."""
    score, x = autoencoder(ScoreConfig("autoencoder", sampled=True)), digits()[:32]
    expected = score.score(x, batch_statistics=True)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(score.score(x, batch_statistics=True), expected, rtol=0, atol=0)


def test_a_single_row_costs_a_decoding_per_draw() -> None:
    score = autoencoder(ScoreConfig("autoencoder", sampled=True))
    cost = score.cost(score.gate_tensors())
    encoder, decoder = 64 * 512 + 2 * 512 * 32, 32 * 512 + 512 * 64
    assert (cost.each, cost.each_in_batch) == (encoder + DRAWS_PER_ROW * decoder, encoder + decoder)
    assert cost.per_row(experts=3, rows=1) == 3 * cost.each
    assert cost.per_row(experts=3, rows=128) == 3 * cost.each_in_batch


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
    assert plain.draw_noise(8, torch.Generator()) is None, "the ablation draws no noise"


@pytest.mark.slow
@pytest.mark.parametrize("optimiser", [OptimiserConfig("sgd", lr=0.01), OptimiserConfig("adam", lr=1e-3)])
def test_convolutional_vae_does_not_diverge(optimiser: OptimiserConfig) -> None:
    """Reading 7 of docs/paper.md: with stock initialisation it is at 1e17 within three steps."""
    score = autoencoder(ScoreConfig("autoencoder"), optimiser, net="conv")
    x = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for step in range(5):
        train(score, x, seed=step)
        value = score.score(x, batch_statistics=True).mean()
        assert torch.isfinite(value)
        assert value < 1e4


@pytest.mark.slow
def test_log_variance_starts_at_zero_and_the_gradient_is_clipped() -> None:
    score = autoencoder(ScoreConfig("autoencoder"), OptimiserConfig(lr=1.0, momentum=0.0, weight_decay=0.0), net="conv")
    assert score.net.encode(torch.rand(2, 3, 32, 32))[1].abs().max() == 0
    before = [p.detach().clone() for p in score.net.parameters()]
    train(score, 100 * torch.rand(8, 3, 32, 32))
    moved = sum(float((p.detach() - b).square().sum()) for p, b in zip(score.net.parameters(), before, strict=True))
    assert moved**0.5 <= 1.001


def test_log_variance_is_bounded() -> None:
    net = ConvVAE((1, 4, 4)).eval()
    torch.nn.init.constant_(net.log_variance.bias, 1e6)
    assert net.encode(torch.rand(2, 1, 4, 4))[1].abs().max() <= 6


NAMES = ["sketch", "class-sketch", "autoencoder", "shortlisted"]


def made(name: str, space: Space) -> Score:
    """A score of digits: one of those with a name, or the autoencoder with a sketch beside it."""
    torch.manual_seed(0)
    shortlisted = name == "shortlisted"
    config = ScoreConfig("autoencoder" if shortlisted else name)  # type: ignore[arg-type]
    score = build_score(
        config, OptimiserConfig(), AUTOENCODERS["mlp"], (64,), 10, space, Keys(0), shortlisted=shortlisted
    )
    assert isinstance(score, ShortlistedScore) == shortlisted
    return score


def kept(score: Score, space: Space) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in (score.state_dict() | space.state()).items()}


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_skipped_batch_leaves_no_trace(name: str, opened: bool) -> None:
    x, space = digits(), Space((64,))
    score = made(name, space)
    train(score, x[:64])
    if opened:
        score.finish_deferred()
    before = kept(score, space)
    for bad in (x[64:128], torch.full((3, 64), torch.nan)):
        train(score, bad, skip=True)
        after = kept(score, space)
        assert after.keys() == before.keys()
        for key, value in after.items():
            torch.testing.assert_close(value, before[key], rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_stacked_scores_are_those_of_each_expert(name: str) -> None:
    x, space, scores = digits(), Space((64,)), []
    for expert in range(3):
        scores.append(made(name, space))
        train(scores[-1], x[100 * expert : 100 * expert + 100])
        scores[-1].finish_deferred()
        scores[-1].refresh(100)
    tensors = {key: torch.stack([s.gate_tensors()[key].detach() for s in scores]) for key in scores[0].gate_tensors()}
    rows = scores[0].preprocess(x[:9])
    stacked = scores[0].stacked(tensors, rows, batch_statistics=False)
    alone = torch.stack([s.score(x[:9], batch_statistics=False) for s in scores])
    torch.testing.assert_close(stacked, alone, rtol=1e-4, atol=1e-3)
    together = scores[0].together(tensors, rows)
    torch.testing.assert_close(together, torch.stack([s.score_together(x[:9]) for s in scores]), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(together, alone.double().mean(1), rtol=1e-4, atol=1e-3)
    assert len(together.unique()) == 3
