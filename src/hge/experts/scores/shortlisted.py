"""A costly score plus a sketch that selects the experts for which the former is computed (`gating/shortlist.py`)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hge.experts.scores.base import Cost, Score
from hge.experts.scores.sketch import SketchScore


class ShortlistedScore(Score):
    """Trains both a costly score and a sketch; the costly one provides the scores."""

    def __init__(self, costly: Score, sketch: SketchScore) -> None:
        super().__init__()
        self.costly = costly
        self.sketch = sketch
        self.optimiser = costly.optimiser

    @property
    def asynchronous(self) -> bool:
        """Whether both are."""
        return self.costly.asynchronous and self.sketch.asynchronous

    @property
    def capturable(self) -> bool:
        """Whether both are."""
        return self.costly.capturable and self.sketch.capturable

    @property
    def network(self) -> nn.Module | None:
        """The costly score's network."""
        return self.costly.network

    def draw_noise(self, rows: int, generator: torch.Generator) -> Tensor | None:
        """Return the costly score's random numbers."""
        return self.costly.draw_noise(rows, generator)

    def finish_deferred(self) -> None:
        """Fix the sketches' space."""
        self.sketch.finish_deferred()

    def compute_update(self, inputs: Tensor, y: Tensor, noise: Tensor | None) -> None:
        """Compute both updates."""
        self.costly.compute_update(inputs, y, noise)
        self.sketch.compute_update(self.sketch.preprocess(inputs), y, None)

    def apply_update(self, skip: Tensor) -> None:
        """Apply both updates."""
        self.costly.apply_update(skip)
        self.sketch.apply_update(skip)

    def refresh_due(self, rows: int, at_refresh: int) -> bool:
        """Return whether the sketch is due."""
        return self.sketch.refresh_due(rows, at_refresh)

    def refresh(self, rows: int) -> None:
        """Refresh the sketch."""
        self.sketch.refresh(rows)

    def cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the multiply-adds of the costly score."""
        return self.costly.cost(_of("costly", tensors))

    def sketch_cost(self, tensors: Mapping[str, Tensor]) -> Cost:
        """Count the multiply-adds of the sketch."""
        return self.sketch.cost(_of("sketch", tensors))

    def gate_tensors(self) -> dict[str, Tensor]:
        """Return the gate tensors of both."""
        parts = {"costly": self.costly, "sketch": self.sketch}
        return {f"{name}.{own}": t for name, part in parts.items() for own, t in part.gate_tensors().items()}

    def stacked(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, batch_statistics: bool) -> Tensor:
        """Return the costly scores."""
        return self.costly.stacked(_of("costly", tensors), inputs, batch_statistics=batch_statistics)

    def together(self, tensors: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """Return the costly scores of a batch."""
        return self.costly.together(_of("costly", tensors), inputs)

    def sketches(self, tensors: Mapping[str, Tensor], inputs: Tensor, *, together: bool) -> Tensor:
        """Return the sketches."""
        return self.sketch.sketches(_of("sketch", tensors), self.sketch.preprocess(inputs), together=together)


def _of(part: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    start = f"{part}."
    return {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
