"""Periodic work between two batches, in addition to learning."""

from __future__ import annotations

from typing import Protocol


class Upkeep(Protocol):
    """Work that becomes due as experts are created and trained."""

    def batches_until_due(self, experts: int, trained: int) -> int:
        """Return how many batches experts can be trained on before the work is due."""

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Do the work if it is due, given the numbers of experts and of batches they were trained on."""
