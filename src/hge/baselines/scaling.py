"""Inputs of generative models: flat rows, standardised by the first batch where inputs have units of their own."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from hge.core.types import as_float
from hge.experts.inputs import Standardise
from hge.experts.pool_spec import PoolSpec, copy_tensors


class FlatInputs:
    """Batches of inputs -> rows of floats. A scale that kept moving would change what earlier rows look like.

    >>> from hge.core.config import OptimiserConfig, ScoreConfig
    >>> from hge.experts.networks import AUTOENCODERS, NETS
    >>> spec = PoolSpec((2,), 3, NETS["mlp"], AUTOENCODERS["mlp"], ScoreConfig(), OptimiserConfig(), scaled=True)
    >>> inputs = FlatInputs(spec, torch.device("cpu"))
    >>> inputs.see(torch.tensor([[0.0, 100.0], [2.0, 300.0]]))
    >>> inputs(torch.tensor([[1.0, 300.0]])).tolist()
    [[0.0, 1.0]]
    >>> inputs.original(torch.tensor([[0.0, 1.0]])).tolist()
    [[1.0, 300.0]]
    """

    rows_kept = 0
    parameters = 0

    def __init__(self, spec: PoolSpec, device: torch.device) -> None:
        self.shape, self.size = spec.shape, prod(spec.shape)
        self.scale = Standardise(spec.shape).to(device).eval() if spec.scaled else None

    @property
    def bounded(self) -> bool:
        """Whether rows lie between 0 and 1, as pixels do."""
        return self.scale is None

    def see(self, x: Tensor) -> None:
        """Set the scale by the first rows."""
        if self.scale is not None and not self.scale.rows:
            self.scale.train()(as_float(x))
            self.scale.eval()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rows [rows, size]."""
        x = as_float(x)
        return (x if self.scale is None else self.scale(x)).flatten(1).float()

    def original(self, rows: Tensor) -> Tensor:
        """Return the inputs whose rows these are."""
        x = rows.view(-1, *self.shape)
        if self.scale is None:
            return x
        return (x * self.scale.variance.sqrt() + self.scale.mean).float()

    def state(self) -> dict[str, Tensor]:
        """Return copies of the statistics."""
        return {} if self.scale is None else copy_tensors(dict(self.scale.named_buffers()), on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if self.scale is not None:
            self.scale.load_state_dict(dict(tensors))
