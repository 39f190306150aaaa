"""Buffer between an estimator and its learner: full batches are learned, the rest waits for the next call."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from hge.core.types import Batch
from hge.estimator.validation import FloatRows
from hge.experts.networks import Shape


class WaitingRows:
    """A FIFO buffer of rows.

    >>> import numpy as np
    >>> waiting = WaitingRows.none(shape=(2,))
    >>> waiting.add(np.zeros((5, 2), dtype=np.float32), torch.arange(5))
    >>> [batch.y.tolist() for batch in waiting.leave(size=2, least=2)], len(waiting)
    ([[0, 1], [2, 3]], 1)
    """

    def __init__(self, rows: Batch) -> None:
        self.rows = rows

    @classmethod
    def none(cls, shape: Shape) -> WaitingRows:
        """Return an empty buffer for rows of this shape."""
        return cls(Batch(torch.empty(0, *shape, dtype=torch.float32), torch.empty(0, dtype=torch.int64)))

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, x: FloatRows, outputs: torch.Tensor) -> None:
        """Append rows."""
        self.rows = Batch(torch.cat([self.rows.x, torch.from_numpy(x)]), torch.cat([self.rows.y, outputs]))

    def leave(self, size: int, least: int) -> Iterator[Batch]:
        """Yield batches of `size` while at least `least` rows are left; each is removed before it is yielded."""
        while len(self) >= least:
            x, y = self.rows.x, self.rows.y
            self.rows = Batch(x[size:], y[size:])
            # A copy: the learner stores some batches, and a view would keep all rows of this call in memory.
            yield Batch(x[:size].clone(), y[:size].clone())

    def let_go(self) -> None:
        """Free the memory of the rows already removed."""
        self.rows = Batch(self.rows.x.clone(), self.rows.y.clone())
