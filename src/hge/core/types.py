"""Batches of the stream, and what a batch must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

LARGEST_INPUT = 1e15
"""Sums of squares of larger inputs may overflow float32."""


@dataclass(frozen=True)
class Batch:
    """A "sample (x_i, y_i)" of the paper: a few rows that arrived together (docs/paper.md, reading 1).

    >>> batch = Batch(torch.zeros(32, 64), torch.zeros(32, dtype=torch.long))
    >>> len(batch)
    32
    """

    x: Tensor
    """Inputs, rows first: float32, or uint8 that represents 0 to 1 in 255 steps."""
    y: Tensor
    """Class of each row as an output index of the experts' heads, int64."""

    def __len__(self) -> int:
        return self.y.shape[0]  # faster than the tensor's own len

    def to(self, device: torch.device) -> Batch:
        """Return the same batch on `device`."""
        if self.x.device == device == self.y.device:
            return self
        return Batch(self.x.to(device), self.y.to(device))


def as_float(x: Tensor) -> Tensor:
    """Return inputs in the form that the networks expect: uint8 scaled to 0 to 1, floats unchanged.

    >>> as_float(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def batch_fault(batch: Batch, shape: tuple[int, ...], outputs: int, *, values: bool = True) -> str | None:
    """Return what is wrong with a batch of a stream, or None; `values` enables checks of the labels and inputs.

    >>> batch_fault(Batch(torch.zeros(2, 3), torch.tensor([0, 7])), (3,), outputs=5)
    'y: got the labels 0 to 7, expected 0 to 4'
    """
    try:
        return _batch_fault(batch.x, batch.y, shape, outputs, values=values)
    except Exception as error:  # a strange tensor may raise almost any exception, or have no shape
        return f"X, y: {type(error).__name__}: {error}"


def _batch_fault(x: Tensor, y: Tensor, shape: tuple[int, ...], outputs: int, *, values: bool) -> str | None:
    for name, tensor in (("X", x), ("y", y)):
        check_dense(name, tensor)
    if x.shape[1:] != shape:
        return f"X: got rows of shape {tuple(x.shape[1:])}, expected {shape}"
    if x.dtype not in (torch.float32, torch.uint8) or y.dtype != torch.int64:
        return f"X, y: got {x.dtype} and {y.dtype}, expected float32 or uint8, and int64"
    if y.shape != x.shape[:1] or not len(y):
        return f"X, y: got {len(x)} rows and labels of shape {tuple(y.shape)}, expected one label per row, and a row"
    if not values:
        return None
    least, most = (int(label) for label in y.aminmax())
    if least < 0 or most >= outputs:
        return f"y: got the labels {least} to {most}, expected 0 to {outputs - 1}"
    extremes = [float(value) for value in x.aminmax()]
    if not all(abs(value) <= LARGEST_INPUT for value in extremes):  # also rejects NaN
        return f"X: got values from {extremes[0]:g} to {extremes[1]:g}, expected at most {LARGEST_INPUT:g}, and no NaN"
    return None


def check_dense(name: str, value: Tensor) -> None:
    """Raise an error if the values of a tensor cannot be read."""
    if value.layout != torch.strided or value.is_nested or value.is_meta:
        kind = "meta" if value.is_meta else "nested" if value.is_nested else "sparse"
        raise ValueError(f"{name}: got a {kind} tensor, expected a dense one")
