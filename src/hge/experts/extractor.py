"""A frozen extractor of features, shared by all experts: they, the scores and the replay see features, not rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hge.core.types import LARGEST_INPUT, as_float
from hge.experts.backbones import BACKBONES
from hge.experts.optim import resolve_device

Result = TypeVar("Result")
CHUNK = 32
"""Rows of one pass of the extractor, which bounds its memory."""
Pause = Callable[[], object]
"""Called between two passes."""


def no_pause() -> None:
    """Do nothing between two passes."""


class Extractor:
    """Computes features of rows, without gradients: by a network of a name, an `nn.Module`, or any callable.

    A module is copied and set to evaluation mode, so that later changes of it change no features.

    >>> extractor = Extractor(nn.Flatten())
    >>> extractor(torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8))
    tensor([[0.0000, 0.2000, 0.4000, 1.0000]])
    """

    def __init__(self, features: str | nn.Module | Callable[[Tensor], Any], device: str = "cpu") -> None:
        self.device = torch.device(resolve_device(device))
        self.compute = self._pick(features)

    def __call__(self, x: Tensor, pause: Pause = no_pause) -> Tensor:
        """Return the features [rows, features] as float32, on the host; `pause` is called between two passes.

        uint8 rows are scaled to 0 to 1, others are used as they are.
        """
        parts = []
        with torch.inference_mode(False), torch.no_grad():
            for rows in torch.split(x, CHUNK):
                parts.append(self._features(as_float(rows)))
                pause()
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError("features: got different numbers of features for some rows, expected the same for all")
        return torch.cat(parts)

    @cached_property
    def digest(self) -> str | None:
        """A checksum of the weights; None for a callable that is not a module, whose state is not known."""
        if not isinstance(self.compute, nn.Module):
            return None
        found = hashlib.sha256()
        for name, tensor in (*self.compute.named_parameters(), *self.compute.named_buffers()):
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            found.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()

    def _pick(self, features: Any) -> Callable[[Tensor], Any]:
        if isinstance(features, str) and features in BACKBONES:
            return _frozen(BACKBONES[features](), self.device)
        if isinstance(features, nn.Module):
            return _of_user(lambda: _frozen(deepcopy(features), self.device))
        if callable(features) and not isinstance(features, type):
            own: Callable[[Tensor], Any] = features
            return own
        what = f"the class {features.__name__}" if isinstance(features, type) else repr(features)
        raise ValueError(f"features: got {what}, expected {', '.join(BACKBONES)}, an nn.Module, a function or None")

    def _features(self, rows: Tensor) -> Tensor:
        found = _of_user(lambda: torch.as_tensor(self.compute(rows.to(self.device))).detach().to("cpu", torch.float32))
        if found.ndim != 2 or len(found) != len(rows) or not found.shape[1]:
            raise ValueError(
                f"features: got an array of shape {tuple(found.shape)} for {len(rows)} rows, expected "
                f"({len(rows)}, features)"
            )
        if not (found.abs() <= LARGEST_INPUT).all():  # also refuses NaN
            raise ValueError(f"features: got NaN or more than {LARGEST_INPUT:g}, expected finite numbers")
        return found


def _frozen(module: nn.Module, device: torch.device) -> nn.Module:
    return module.to(device).eval().requires_grad_(False)


def _of_user(call: Callable[[], Result]) -> Result:
    """Return the result of a call of the user's code, whose errors get the argument's name."""
    try:
        return call()
    except Exception as error:
        raise ValueError(f"features: {type(error).__name__}: {error}") from error
