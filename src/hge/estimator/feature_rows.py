"""Rows as experts see them: those of a call, or the features that a frozen extractor makes of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from hge.estimator.validation import FloatRows
from hge.experts.extractor import Extractor, Pause, no_pause
from hge.experts.networks import Shape


class FeatureMap:
    """What experts see of rows: the rows themselves, or features of them."""

    def __init__(self, features: Any, device: str) -> None:
        self.extractor = None if features is None else Extractor(features, device)

    @property
    def digest(self) -> str | None:
        """A checksum of the extractor's weights; None without an extractor, or if it is a plain function."""
        return None if self.extractor is None else self.extractor.digest

    def __call__(self, X: Any, x: FloatRows, pause: Pause = no_pause) -> SeenRows:
        """Return what experts see of X, of which x is a validated copy; `pause` is called now and then."""
        if self.extractor is None:
            return SeenRows(x, x.shape[1:], self)
        of_bytes = str(getattr(X, "dtype", "")) in ("uint8", "torch.uint8")
        rows = torch.from_numpy(x.astype(np.uint8) if of_bytes else x)
        return SeenRows(self.extractor(rows, pause).numpy(), x.shape[1:], self)


class SeenRows(NamedTuple):
    """What experts see of the rows of a call, and what it was made of."""

    x: FloatRows
    input_shape: Shape
    """Shape of one row of the call."""
    feature_map: FeatureMap
