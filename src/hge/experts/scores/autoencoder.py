"""The paper's score: the loss of a variational autoencoder that is trained along with the expert (appendix)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from math import inf, prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.experts.fast.cuda_graphs import SideStream
from hge.experts.networks import Autoencoder, Shape
from hge.experts.optim import build_optimiser, gradients, has_batch_norm, masked_step, multiply_adds, network_mode
from hge.experts.scores.base import Cost, Score

MAX_CONCURRENT = 4
"""Number of convolutional autoencoders run concurrently on a GPU; more are not faster."""


class AutoencoderScore(Score):
    """Mean squared reconstruction error + KL weight × KL divergence, at the latent mean or at one fixed sample."""

    optimiser: torch.optim.Optimizer
    fixed_draw: Tensor | None
    norm: Tensor
    """Norm of the last gradient computed by `compute_update`."""

    def __init__(self, net: Autoencoder, shape: Shape, config: ScoreConfig, optimiser: OptimiserConfig) -> None:
        super().__init__()
        if not isinstance(net, nn.Module):
            raise TypeError(f"autoencoder: got {type(net).__name__}, expected an nn.Module with encode and decode")
        self.net = net.float()
        self.kl_weight = 1 / prod(shape) if config.kl_weight == "elbo" else config.kl_weight
        self.variational = config.variational
        self.clip_norm = optimiser.clip_norm or inf
        self.optimiser = build_optimiser(optimiser, net.parameters())
        self.shape = shape
        self.latents = self._latent_shape()
        # The same for every expert and row: a score compares experts, and must not depend on a row's position.
        draw = torch.randn(self.latents, generator=torch.Generator().manual_seed(0))
        self.register_buffer("fixed_draw", draw if self.variational and config.sampled else None, persistent=False)

    @property
    def network(self) -> nn.Module:
        """The autoencoder."""
        return self.net

    def draw_noise(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Return the noise of the latent, or None in the non-variational ablation."""
        if not self.variational:
            return None
        return torch.randn(rows, *self.latents, generator=generator, device=generator.device)

    def compute_update(self, inputs: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Compute the gradient of the loss, with the latent sampled by `noise`."""
        with network_mode(self.network, training=True, rows=len(inputs)):
            loss = self(inputs, noise).mean()
            self.optimiser.zero_grad()
            loss.backward()
        self.norm = nn.utils.get_total_norm(gradients(self.network))

    def apply_update(self, skip: Tensor) -> None:
        """Take one optimiser step with the clipped gradient; none if it is not finite."""
        not_a_number = self.norm.isfinite().logical_not().to(skip.dtype)
        scale = (self.norm / self.clip_norm).clamp_min(1.0)
        masked_step(self.optimiser, torch.maximum(skip, not_a_number), scale)

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Never: `score` reads the trained weights directly."""
        return False

    def refresh(self, rows: int) -> None:
        """Do nothing."""

    @torch.no_grad()
    def score(self, x: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the loss of each row."""
        with network_mode(self.network, training=False, rows=len(x), batch_statistics=batch_statistics):
            return self(x)  # type: ignore[no-any-return]

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """Return the loss of each row in the network's current mode, with `noise` or the fixed draw on the latent."""
        mean, log_variance = self.net.encode(x)
        noise = self.fixed_draw if noise is None else noise
        latent = mean if noise is None else mean + (0.5 * log_variance).exp() * noise
        return self._loss(x, self.net.decode(latent), mean, log_variance)

    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count a forward pass of the autoencoder for each expert and row."""
        return Cost(
            0.0, multiply_adds(self, torch.zeros(1, *self.shape, device=next(iter(tensors.values())).device)), 0.0
        )

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return all weights and running statistics."""
        return self.state_dict(keep_vars=True)

    @torch.no_grad()
    def stacked(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, batch_statistics: bool) -> Tensor:
        """Run the autoencoders in one `vmap`; with BatchNorm, where that is slow, individually, a few at a time."""
        with network_mode(self.network, training=False, rows=len(inputs), batch_statistics=batch_statistics):
            if not has_batch_norm(self.network):
                scores: Tensor = vmap(lambda own: functional_call(self, own, (inputs,)))(dict(tensors))
                return scores
            experts = len(next(iter(tensors.values())))
            # No idle stream among them: a graph being captured must not wait for a stream that is not part of it.
            streams = [SideStream(inputs.device) for _ in range(min(MAX_CONCURRENT, experts))]
            rows = []
            for expert, stream in zip(range(experts), cycle(streams), strict=False):
                with stream():
                    rows.append(functional_call(self, {n: t[expert] for n, t in tensors.items()}, (inputs,)))
            for stream in streams:
                stream.join()
            return torch.stack(rows)

    @torch.no_grad()
    def _latent_shape(self) -> Shape:
        with network_mode(self.net, training=False, rows=1):
            device = next(self.network.parameters()).device
            mean = self.net.encode(torch.zeros(1, *self.shape, device=device))[0]
        return tuple(mean.shape[1:])

    def _loss(self, x: Tensor, reconstruction: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
        error = (reconstruction.float() - x).square().flatten(1).mean(1)
        if not self.variational:
            return error
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return error + self.kl_weight * kl
