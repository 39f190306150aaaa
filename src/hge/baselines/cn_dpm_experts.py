"""The experts of CN-DPM: an autoencoder and a classifier each, with or without lateral features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from hge.baselines.scaling import FlatInputs
from hge.experts.optim import state_of
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

BASE = 64
"""Units of a layer."""
EXTENSION = 16
"""Units of a layer beside lateral features."""
LATENTS = 16
DRAWS = 16
"""Draws of the latent for a row."""
CLIP = 0.5
"""Largest gradient of a weight."""
LEAST_USE = 0.1
"""Rows of a batch below which an expert is left alone."""


class Column(nn.Module):
    """Two hidden layers and a head; each sees the units of earlier columns, too, if there are any.

    >>> column = Column(3, 4, earlier=2, outputs=5)
    >>> out, units = column(torch.zeros(7, 3), (torch.zeros(7, 2), torch.zeros(7, 2)))
    >>> out.shape, units[0].shape
    (torch.Size([7, 5]), torch.Size([7, 6]))
    """

    def __init__(self, inputs: int, width: int, earlier: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(earlier + width, width)
        self.head = nn.Linear(earlier + width, outputs)

    def forward(self, x: Tensor, earlier: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the outputs, and the units of this and all earlier columns, which later ones cannot change."""
        first = torch.cat([earlier[0], self.first(x).relu()], dim=1)
        second = torch.cat([earlier[1], self.second(first).relu()], dim=1)
        return self.head(second), (first.detach(), second.detach())


class Expert(nn.Module):
    """An autoencoder and a classifier, each with its optimiser."""

    def __init__(self, inputs: FlatInputs, outputs: int, earlier: int, width: int) -> None:
        super().__init__()
        self.encoder = Column(inputs.size, width, earlier, 2 * LATENTS)
        layers = [nn.Linear(LATENTS, BASE), nn.ReLU(), nn.Linear(BASE, BASE), nn.ReLU(), nn.Linear(BASE, inputs.size)]
        self.decoder = nn.Sequential(*layers, *([nn.Sigmoid()] if inputs.bounded else []))
        self.classifier = Column(inputs.size, width, earlier, outputs)
        generative = [*self.encoder.parameters(), *self.decoder.parameters()]
        self.optimisers = {
            "autoencoder": torch.optim.Adam(generative, lr=4e-4, fused=True),
            "classifier": torch.optim.Adam(self.classifier.parameters(), lr=1e-4, fused=True),
        }

    @property
    def multiply_adds(self) -> float:
        """A product for each weight; the decoder once for each draw."""
        sizes = [sum(w.numel() for w in net.parameters()) for net in (self.encoder, self.decoder, self.classifier)]
        return float(sizes[0] + DRAWS * sizes[1] + sizes[2])

    def nll(self, x: Tensor, code: Tensor, draws: Tensor) -> Tensor:
        """Return -ELBO of each row, without the constant that all experts share."""
        mean, log_variance = code.chunk(2, dim=1)
        z = mean[:, None] + draws * (0.5 * log_variance).exp()[:, None]
        apart = 0.5 * (self.decoder(z) - x[:, None]).square().sum(2).mean(1)
        result: Tensor = apart + 0.5 * (log_variance.exp() + mean.square() - 1 - log_variance).sum(1)
        return result

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors that training changes, not copied."""
        autoencoder = state_of(self, self.optimisers["autoencoder"], "autoencoder")
        return autoencoder | state_of(self.classifier, self.optimisers["classifier"], "classifier")

    def follow(self, *names: str) -> None:
        """Let the named optimisers follow the gradients, clipped."""
        for name in names or self.optimisers:
            optimiser = self.optimisers[name]
            nn.utils.clip_grad_value_(optimiser.param_groups[0]["params"], CLIP)
            optimiser.step()
            optimiser.zero_grad()


class Mixture:
    """The experts and the number of rows that each has had; the first is never trained."""

    rows_kept = 0

    def __init__(self, setting: Setting, inputs: FlatInputs) -> None:
        self.keys, self.config, self.device = setting.keys, setting.config.baseline, setting.device
        self.inputs, self.outputs = inputs, setting.spec.outputs
        self.experts: list[Expert] = []
        self.counts = torch.zeros(0, dtype=torch.float64, device=setting.device)
        self.add(rows=0)

    @property
    def trained(self) -> list[Expert]:
        """All experts but the first."""
        return self.experts[1:]

    @property
    def parameters(self) -> int:
        """Number of weights of the trained experts."""
        return sum(weight.numel() for expert in self.trained for weight in expert.parameters())

    def add(self, rows: int) -> None:
        """Add an untrained expert, and count rows as its own."""
        before = max(len(self.experts) - 1, 0) if self.config.lateral else 0
        earlier, width = (BASE + EXTENSION * (before - 1), EXTENSION) if before else (0, BASE)
        with self.keys.seeded("weights", len(self.experts), device=self.device):
            self.experts.append(Expert(self.inputs, self.outputs, earlier, width).to(self.device))
        self.counts = torch.cat([self.counts, self.counts.new_full((1,), rows)])

    def log_prior(self) -> Tensor:
        """Return log n of each expert; log α for the first."""
        return torch.cat([self.counts.new_full((1,), self.config.log_alpha), self.counts[1:].log()]).float()

    def evidence(self, x: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return -ELBO [rows, experts] and logits [rows, experts, classes]."""
        first = self.experts[:1]
        codes = self._outputs([e.encoder for e in first], x) + self._outputs([e.encoder for e in self.trained], x)
        logits = [self._outputs([e.classifier for e in group], x) for group in (first, self.trained)]
        nll = [expert.nll(x, code, draws) for expert, code in zip(self.experts, codes, strict=True)]
        return torch.stack(nll, dim=1), torch.stack(logits[0] + logits[1], dim=1)

    def train(self, nll: Tensor, shares: Tensor) -> None:
        """Train each expert on its shares [rows, experts] of rows, and count them."""
        (nll * shares).sum().backward()  # type: ignore[no-untyped-call]
        used = shares.sum(dim=0)
        self.counts[1:] += used
        for expert, use in zip(self.trained, used.tolist(), strict=True):
            if use > LEAST_USE:
                expert.follow()
            expert.zero_grad()

    def dream(self, x: Tensor, draws: Tensor) -> None:
        """Train the autoencoder of the newest expert."""
        expert = self.experts[-1]
        code = self._outputs([e.encoder for e in self._beside_newest()], x)[-1]
        expert.nll(x, code, draws).mean().backward()  # type: ignore[no-untyped-call]
        expert.follow("autoencoder")

    def study(self, x: Tensor, y: Tensor) -> None:
        """Train the classifier of the newest expert."""
        logits = self._outputs([e.classifier for e in self._beside_newest()], x)[-1]
        cross_entropy(logits, y).backward()  # type: ignore[no-untyped-call]
        self.experts[-1].follow("classifier")

    def _beside_newest(self) -> list[Expert]:
        return self.trained if self.config.lateral else self.experts[-1:]

    def _outputs(self, columns: Sequence[Column], x: Tensor) -> list[Tensor]:
        """Return the outputs of columns; with lateral features, each sees the units of those before it."""
        units, found = (x[:, :0], x[:, :0]), []
        for column in columns:
            out, own = column(x, units)
            units = own if self.config.lateral else units
            found.append(out)
        return found

    def state(self) -> dict[str, Tensor]:
        """Return copies of counts, weights and the state of the optimisers."""
        found = {"counts": self.counts}
        for number, expert in enumerate(self.experts):
            found |= {f"{number}.{name}": tensor for name, tensor in expert.tensors().items()}
        return copy_tensors(found, on_host=True)

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        while len(self.experts) < len(tensors["counts"]):
            self.add(rows=0)
        self.counts.copy_(tensors["counts"])
        for number, expert in enumerate(self.experts):
            for name, tensor in expert.tensors().items():
                tensor.copy_(tensors[f"{number}.{name}"])
