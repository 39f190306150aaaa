"""An expert, apart from its networks: its id, the statistics of its loss, and its replay buffer."""

from __future__ import annotations

from dataclasses import dataclass, field

from hge.switch import LossStats
from hge.types import Batch


@dataclass
class Replay:
    """A reservoir of the batches on which the expert was trained: each is in it with the same probability.

    >>> import torch
    >>> from hge.keys import Keys
    >>> replay, keys = Replay(capacity=2), Keys(seed=0)
    >>> for step in range(100):
    ...     replay.add(Batch(torch.full((1, 1), step), torch.zeros(1)), keys.integer("replay", step=step))
    >>> len(replay.batches), replay.seen
    (2, 100)
    """

    capacity: int
    batches: list[Batch] = field(default_factory=list)
    seen: int = 0

    def add(self, batch: Batch, random_integer: int) -> None:
        """Take in a batch, or not, as the random integer decides (Vitter's algorithm R)."""
        self.seen += 1
        if len(self.batches) < self.capacity:
            self.batches.append(batch)
        elif (place := random_integer % self.seen) < self.capacity:
            self.batches[place] = batch


@dataclass
class Expert:
    """What the learner knows of an expert; its networks live in the pool under the same id."""

    id: int
    losses: LossStats
    replay: Replay

    @property
    def batches_trained(self) -> int:
        """Number of batches on which it was trained."""
        return self.losses.count
