"""What is done beside learning, now and then, between two batches."""

from __future__ import annotations

from typing import Protocol


class Upkeep(Protocol):
    """Work that becomes due as experts are created and trained."""

    def quiet(self, experts: int, trained: int) -> int:
        """Return on how many batches experts can be trained before it is due."""

    def after_batch(self, step: int, experts: int, trained: int) -> None:
        """Do it if it is due, with so many experts that were trained on so many batches."""
