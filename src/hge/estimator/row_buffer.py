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
        self._is_part = False
        """Whether the rows are the rest of more rows, whose memory they keep."""

    @classmethod
    def none(cls, shape: Shape) -> WaitingRows:
        """Return an empty buffer for rows of this shape."""
        return cls(Batch(torch.empty(0, *shape, dtype=torch.float32), torch.empty(0, dtype=torch.int64)))

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, x: FloatRows, outputs: torch.Tensor) -> None:
        """Append rows, which must be a copy of the caller's."""
        new = Batch(torch.from_numpy(x), outputs)
        if len(self):
            new = Batch(torch.cat([self.rows.x, new.x]), torch.cat([self.rows.y, new.y]))
        self.rows, self._is_part = new, False

    def leave(self, size: int, least: int) -> Iterator[Batch]:
        """Yield batches of `size` while at least `least` rows are left; each is removed before it is yielded."""
        while len(self) >= least:
            batch, rest = (Batch(self.rows.x[part], self.rows.y[part]) for part in (slice(size), slice(size, None)))
            alone = not self._is_part and not len(rest)
            self.rows, self._is_part = rest, True
            # The learner stores some batches, and a part of the rows would keep all rows of this call in memory.
            yield batch if alone else Batch(batch.x.clone(), batch.y.clone())

    def let_go(self) -> None:
        """Free the memory of the rows already removed."""
        if self._is_part:
            self.rows, self._is_part = Batch(self.rows.x.clone(), self.rows.y.clone()), False
