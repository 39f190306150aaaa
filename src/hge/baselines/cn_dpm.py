"""CN-DPM: a Dirichlet process mixture of experts, each a variational autoencoder and a classifier.

Source: Lee et al. 2020 and their code for MNIST. Expert k has nll_k(x, y) = -ELBO_k(x) - log d_k(y|x), where the ELBO
has a Gaussian likelihood of variance 1 and 16 draws of the latent, and d_k is over all classes. A row belongs to the
expert with the lowest nll_k - log n_k, n_k being the rows it has had; place 0 is an expert that is never trained,
with log n_0 = log α = -400. A row of place 0 goes to a short-term memory; the others train every expert in proportion
to its share r of the row: loss Σ r_k nll_k, n_k ← n_k + r_k. A full memory (500 rows) becomes a new expert in its
"sleep": 8 000 steps of its autoencoder and 2 000 of its classifier, 50 rows each; then it is emptied. Prediction: the
class with the highest logsumexp_k [log n_k + ELBO_k(x) + log d_k(y|x)]. The shares use a *chilled* d_k (logits /
0.01), the gradients do not. Adam 4e-4 and 1e-4, gradients clipped at ±0.5; an expert with less than 0.1 rows of a
batch is left alone. Lateral features (`baseline.lateral`): the first expert has 64 units in each layer and each later
one 16, which also see the units of all earlier experts, without changing them.

Departures: without lateral features every expert has 64 units (ours: the authors publish only the other form). No
weight decay in the sleep (theirs: 1e-5). The batches are GE's, not of 10 rows; the rows that a batch has beyond a
full memory begin the next one. The draws for predictions are the same for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan

import torch
from torch import Tensor
from torch.nn.functional import log_softmax

from hge.baselines.cn_dpm_experts import DRAWS, LATENTS, Mixture
from hge.baselines.rule import Part, RuleLearner
from hge.baselines.scaling import FlatInputs
from hge.core.types import Batch
from hge.experts.pool_spec import copy_tensors
from hge.learning.online import Setting

CHILL = 0.01
SLEEP_ROWS = 50
"""Rows of a step in a sleep."""


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(CNDPM(setting), setting)


class CNDPM:
    """Rows are shared out among experts, or wait for a new one."""

    def __init__(self, setting: Setting) -> None:
        self.keys, self.config = setting.keys, setting.config.baseline
        self.inputs = FlatInputs(setting.spec, setting.device)
        self.mixture = Mixture(setting, self.inputs)
        self.memory = ShortTermMemory(self.inputs.size, setting.device)
        self.parts: dict[str, Part] = {"inputs": self.inputs, "mixture": self.mixture, "memory": self.memory}
        self._draws = _draws(1, setting.keys.generator("latent", device=setting.device))

    @property
    def multiply_adds(self) -> float:
        """Every autoencoder, with all its draws, and every classifier."""
        return sum(expert.multiply_adds for expert in self.mixture.experts[1:])

    def learn(self, batch: Batch, step: int) -> float:
        """Train the experts on their shares of the rows; those of no expert wait until they are enough for one."""
        self.inputs.see(batch.x)
        x, y = self.inputs(batch.x), batch.y
        nll, logits = self.mixture.evidence(x, _draws(len(x), self._generator(step, 0)))
        with torch.no_grad():
            cost = nll - _label(logits / CHILL, y) - self.mixture.log_prior()
            value = float(cost.min(dim=1).values.mean())
        if not isfinite(value):
            return nan
        waits = cost.argmin(dim=1) == 0
        if not waits.all():
            own = nll[~waits, 1:] - _label(logits[~waits, 1:], y[~waits])
            self.mixture.train(own, (-cost[~waits, 1:]).softmax(dim=1))
        self.memory.add(x[waits], y[waits])
        if self.memory.rows_kept >= self.config.short_term:
            self._sleep(*self.memory.take(self.config.short_term), step)
        return value

    def _sleep(self, x: Tensor, y: Tensor, step: int) -> None:
        """Train a new expert on the rows of the memory."""
        self.mixture.add(rows=len(x))
        generator = self._generator(step, 1)
        for number in range(self.config.sleep_steps + self.config.sleep_steps // 4):
            rows = torch.randint(len(x), (SLEEP_ROWS,), generator=generator, device=x.device)
            if number < self.config.sleep_steps:
                self.mixture.dream(x[rows], _draws(SLEEP_ROWS, generator))
            else:
                self.mixture.study(x[rows], y[rows])

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Return log Σ_k n_k p_k(x) d_k(y|x), up to a constant; all classes alike while there is no expert."""
        rows = self.inputs(x)
        nll, logits = self.mixture.evidence(rows, self._draws.expand(len(rows), -1, -1))
        if nll.shape[1] == 1:
            return torch.zeros_like(logits[:, 0])
        joint = self.mixture.log_prior() - nll
        return (joint[:, 1:, None] + log_softmax(logits[:, 1:] / CHILL, dim=2)).logsumexp(dim=1)

    def _generator(self, step: int, number: int) -> torch.Generator:
        return self.keys.generator("latent", step, number, device=self.memory.device)


def _draws(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, DRAWS, LATENTS, generator=generator, device=generator.device)


def _label(logits: Tensor, y: Tensor) -> Tensor:
    """Return [rows, experts]: the log-probability of the label."""
    return log_softmax(logits, dim=2).gather(2, y[:, None, None].expand(-1, logits.shape[1], 1)).squeeze(2)


class ShortTermMemory:
    """Rows that wait for a new expert."""

    parameters = 0

    def __init__(self, size: int, device: torch.device) -> None:
        self.device = device
        self.x = torch.zeros(0, size, device=device)
        self.y = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def rows_kept(self) -> int:
        """Number of rows in it."""
        return len(self.y)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Append rows."""
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])

    def take(self, rows: int) -> tuple[Tensor, Tensor]:
        """Remove and return the oldest rows."""
        taken = self.x[:rows], self.y[:rows]
        self.x, self.y = self.x[rows:], self.y[rows:]
        return taken

    def state(self) -> dict[str, Tensor]:
        """Return copies of the rows."""
        return copy_tensors({"x": self.x, "y": self.y}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.x, self.y = tensors["x"].to(self.device, copy=True), tensors["y"].to(self.device, copy=True)
