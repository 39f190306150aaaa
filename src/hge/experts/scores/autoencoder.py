"""The paper's score: the loss of a variational autoencoder that is trained along with the expert (appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from math import inf, prod

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from hge.core.config import OptimiserConfig, ScoreConfig
from hge.core.randomness import Keys
from hge.experts.inputs import far_rows
from hge.experts.networks import Autoencoder, Shape
from hge.experts.optim import build_optimiser, gradients, has_batch_norm, masked_step, multiply_adds, network_mode
from hge.experts.scores.base import Cost, Score
from hge.experts.side_stream import SideStream

MAX_CONCURRENT = 4
"""Number of convolutional autoencoders run concurrently on a GPU; more are not faster."""
DRAWS = 1024
"""Draws of the latent noise at which experts are compared; longer batches use them again."""
DRAWS_PER_ROW = 8
"""Draws over which the score of a single row is averaged (results/choices/readings/ compares other numbers)."""


class AutoencoderScore(Score):
    """Mean squared reconstruction error + KL weight × KL divergence, at the latent's mean or at samples of it.

    The samples are deterministic, and the same for all experts, since a score compares experts. In a batch each row has
    a draw of its own, by its position: one draw for all rows would decide for the whole batch (docs/paper.md, reading
    19). The score of a single row must not depend on its position, and is the mean over a few draws.
    """

    optimiser: torch.optim.Optimizer
    norm: Tensor
    """Norm of the last gradient computed by `compute_update`."""

    def __init__(
        self,
        net: Autoencoder,
        shape: Shape,
        config: ScoreConfig,
        optimiser: OptimiserConfig,
        keys: Keys,
        device: torch.device,
    ) -> None:
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
        # No buffer: those are an expert's state, and the draws are the same for all experts.
        draws = torch.randn(DRAWS, *self.latents, generator=keys.generator("latent", device=torch.device("cpu")))
        self.draws = draws.to(device) if self.variational and config.sampled else None
        """[DRAWS, latents] Noise at which experts are compared; None: they are compared at the mean."""

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
            loss = self(inputs, [noise]).masked_fill(far_rows(inputs)[0], 0.0).mean()
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
            return self(x, self._noises(len(x), together=batch_statistics))  # type: ignore[no-any-return]

    def forward(self, x: Tensor, noises: Sequence[Tensor | None]) -> Tensor:
        """Return the loss of each row in the network's current mode: the mean over noises of the latent, None for 0.

        Never in 16 bits: experts differ by less than such a network's rounding (docs/paper.md, reading 21).
        """
        with torch.autocast(x.device.type, enabled=False):
            mean, log_variance = self.net.encode(x)
            deviation = (0.5 * log_variance).exp()
            errors = [
                self._error(x, self.net.decode(mean if noise is None else mean + deviation * noise)) for noise in noises
            ]
        error = sum(errors[1:], errors[0]) / len(errors)
        if not self.variational:
            return error
        kl = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)
        return error + self.kl_weight * kl

    def _noises(self, rows: int, *, together: bool) -> Sequence[Tensor | None]:
        """Return the noises at which rows are scored: one of its own for each row of a batch, a few for any single row.

        A single row that is a batch is scored as any single row, as it is by a BatchNorm.
        """
        if self.draws is None:
            return [None]
        if together and rows > 1:
            return [self.draws.repeat(-(-rows // DRAWS), 1)[:rows]]
        return [*self.draws[:DRAWS_PER_ROW, None]]

    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count a forward pass of the autoencoder for each expert and row, with all its draws if the row is single."""
        row = torch.zeros(1, *self.shape, device=next(iter(tensors.values())).device)
        single = self._noises(1, together=False)
        alone, in_batch = (multiply_adds(self, row, noises) for noises in (single, single[:1]))
        return Cost(0.0, alone, 0.0, in_batch)

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return all weights and running statistics."""
        return self.state_dict(keep_vars=True)

    @torch.no_grad()
    def stacked(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, batch_statistics: bool) -> Tensor:
        """Run the autoencoders in one `vmap`; with BatchNorm, where that is slow, individually, a few at a time."""
        with network_mode(self.network, training=False, rows=len(inputs), batch_statistics=batch_statistics):
            noises = self._noises(len(inputs), together=batch_statistics)
            if not has_batch_norm(self.network):
                scores: Tensor = vmap(lambda own: functional_call(self, own, (inputs, noises)))(dict(tensors))
                return scores
            experts = len(next(iter(tensors.values())))
            # No idle stream among them: a graph being captured must not wait for a stream that is not part of it.
            streams = [SideStream(inputs.device) for _ in range(min(MAX_CONCURRENT, experts))]
            rows = []
            for expert, stream in zip(range(experts), cycle(streams), strict=False):
                with stream():
                    rows.append(functional_call(self, {n: t[expert] for n, t in tensors.items()}, (inputs, noises)))
            for stream in streams:
                stream.join()
            return torch.stack(rows)

    @torch.no_grad()
    def together(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the mean scores [experts] of rows that belong together, those that are too long left out."""
        far = far_rows(inputs)[0]
        scores = self.stacked(tensors, inputs, batch_statistics=True).double().masked_fill(far, 0.0)
        return scores.sum(1) / (len(inputs) - far.sum())

    @torch.no_grad()
    def _latent_shape(self) -> Shape:
        with network_mode(self.net, training=False, rows=1):
            device = next(self.network.parameters()).device
            mean = self.net.encode(torch.zeros(1, *self.shape, device=device))[0]
        return tuple(mean.shape[1:])

    @staticmethod
    def _error(x: Tensor, reconstruction: Tensor) -> Tensor:
        return (reconstruction - x).square().flatten(1).mean(1)
