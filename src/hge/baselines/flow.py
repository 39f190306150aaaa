"""A normalising flow on rows (RealNVP): affine couplings by small networks, with its inverse and its log-determinant.

Source: Dinh et al. 2017, for rows instead of images: each coupling has an order of the features of its own, drawn at
random, and scales and shifts one half of them by a network of the other half.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

COUPLINGS = 6
HIDDEN = 256
LARGEST = 2.0
"""Largest logarithm of a coupling's scale."""
LEAST_SCALE = 0.05
"""Least deviation of a feature in the first rows."""


class Flow(nn.Module):
    """Rows -> latents of the same size; at first the rows, standardised.

    >>> flow = Flow(size=3)
    >>> rows = torch.tensor([[1.0, 2.0, 3.0], [0.0, 4.0, 3.0]])
    >>> flow.start(rows)
    >>> z, log_determinant = flow(rows)
    >>> torch.allclose(flow.inverse(z), rows, atol=1e-5), log_determinant.shape
    (True, torch.Size([2]))
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        if size < 2:
            raise ValueError(f"inputs: got {size}, expected at least 2, one of which transforms the other")
        self.shift, self.log_scale = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.zeros(size))
        self.couplings = nn.ModuleList(Coupling(size) for _ in range(COUPLINGS))

    @torch.no_grad()
    def start(self, rows: Tensor) -> None:
        """Standardise by the first rows."""
        self.log_scale.copy_(-rows.std(dim=0, correction=0).clamp_min(LEAST_SCALE).log())
        self.shift.copy_(-rows.mean(dim=0) * self.log_scale.exp())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return latents, and the logarithm of the determinant of the derivative, for each row."""
        z, log_determinant = x * self.log_scale.exp() + self.shift, self.log_scale.sum().expand(len(x))
        for coupling in self.couplings:
            z, log_scale = coupling(z)
            log_determinant = log_determinant + log_scale.sum(dim=1)
        return z, log_determinant

    def inverse(self, z: Tensor) -> Tensor:
        """Return the rows of latents."""
        for coupling in reversed(self.couplings):
            assert isinstance(coupling, Coupling)
            z = coupling.inverse(z)
        return (z - self.shift) * (-self.log_scale).exp()


class Coupling(nn.Module):
    """Scales and shifts the second half of the features, in an order of its own; at first by 1 and 0."""

    order: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = size // 2
        self.register_buffer("order", torch.randperm(size))
        layers = [nn.Linear(self.first, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(HIDDEN, 2 * (size - self.first)))
        for weight in self.net[-1].parameters():
            nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features in the new order, and the logarithms of the scales."""
        x = x[:, self.order]
        kept = x[:, : self.first]
        log_scale, shift = self._by(kept)
        return torch.cat([kept, x[:, self.first :] * log_scale.exp() + shift], dim=1), log_scale

    def inverse(self, z: Tensor) -> Tensor:
        """Return the features in the order before."""
        kept = z[:, : self.first]
        log_scale, shift = self._by(kept)
        x = torch.cat([kept, (z[:, self.first :] - shift) * (-log_scale).exp()], dim=1)
        return x[:, self.order.argsort()]

    def _by(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        log_scale, shift = self.net(kept).chunk(2, dim=1)
        return LARGEST * torch.tanh(log_scale / LARGEST), shift
