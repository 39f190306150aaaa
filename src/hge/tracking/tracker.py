"""What an experiment tracker must do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Tracker(Protocol):
    """Records numbers and remarks by batch; the batches of successive calls do not decrease."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers of a batch."""

    def mark(self, step: int, text: str) -> None:
        """Record a decision, in words."""
