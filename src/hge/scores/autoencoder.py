"""The paper's score: the loss of a variational autoencoder that is trained beside the expert (appendix)."""

from __future__ import annotations

from math import inf, prod

import torch
from torch import Tensor, nn

from hge.config import OptimiserConfig, ScoreConfig
from hge.nets import Autoencoder, Shape
from hge.training import build_optimiser, mode_of


class AutoencoderScore(nn.Module):
    """Mean squared reconstruction error + KL weight × KL divergence, at the latent mean: deterministic."""

    def __init__(self, net: Autoencoder, shape: Shape, config: ScoreConfig, optimiser: OptimiserConfig) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"autoencoder: got {type(net).__name__}, expected an nn.Module with encode and decode")
        self.net = net
        self.kl_weight = 1 / prod(shape) if config.kl_weight == "elbo" else config.kl_weight
        self.variational = config.variational
        self.clip_norm = optimiser.clip_norm
        self.optimiser = build_optimiser(optimiser, net.parameters())

    def learn(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Take one optimiser step; the latent is sampled (unless the ablation says not to)."""
        with mode_of(self.net, training=True, rows=len(x)):
            mean, log_variance = self.net.encode(x)
            if self.variational:
                noise = torch.randn(mean.shape, generator=generator, device=mean.device)
                latent = mean + (0.5 * log_variance).exp() * noise
            else:
                latent = mean
            loss = self._loss(x, self.net.decode(latent), mean, log_variance).mean()
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.clip_norm or inf)
            if norm.isfinite():
                self.optimiser.step()

    @torch.no_grad()
    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the loss of each row."""
        with mode_of(self.net, training=False, rows=len(x), batch_statistics=batch_statistics):
            mean, log_variance = self.net.encode(x)
            return self._loss(x, self.net.decode(mean), mean, log_variance)

    def parts(self, x: Tensor) -> Tensor:
        """Return [rows, 1]: the score."""
        return self.score(x, batch_statistics=False)[:, None]

    def _loss(self, x: Tensor, reconstruction: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        error = (reconstruction - x).square().flatten(1).mean(1)
        if not self.variational:
            return error
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return error + self.kl_weight * kl
