"""Feeds a run's stream to the learner: separates task ids, filters bad batches, defers errors of the source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hge.core.config import OnBadBatch
from hge.core.events import BatchSkipped
from hge.core.types import Batch, batch_fault
from hge.experts.networks import Shape


@dataclass(frozen=True)
class Origin:
    """Information about a batch that is withheld from the learner."""

    task: int
    rows: int
    skipped: tuple[BatchSkipped, ...]
    """The bad batches immediately before it."""


class Feed:
    """Iterates over a stream's good batches; the origin of each drawn batch is appended to `origins`.

    An error of the source ends the stream normally, so that the learner reaches a state that can be saved; the error is
    kept in `error`. A bad batch under "raise" is such an error.
    """

    def __init__(
        self,
        stream: Iterator[tuple[int, Batch]],
        shape: Shape,
        classes: int,
        on_bad_batch: OnBadBatch,
        learned: int,
        skipped: list[int],
    ) -> None:
        self.origins: deque[Origin] = deque()
        self.skipped = skipped
        """Positions in the stream of the skipped batches; extended as more are skipped."""
        self.position = learned + len(self.skipped)
        """Number of batches drawn from the stream, good and bad."""
        self.ended = False
        self.error: BaseException | None = None
        self.interrupt: KeyboardInterrupt | None = None
        """A Ctrl-C deferred to the next batch, where the learner's state can be saved."""
        self._stream, self._shape, self._classes, self._policy = stream, shape, classes, on_bad_batch
        self._pending: list[BatchSkipped] = []

    @property
    def current_task(self) -> int:
        """The task of the batch drawn last."""
        return self.origins[-1].task

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self.ended:
            raise StopIteration
        try:
            task, batch = self._next_good()
        except StopIteration:
            self.ended = True
            raise
        except BaseException as error:  # also a Ctrl-C while waiting for the source
            self.ended, self.error = True, error
            raise StopIteration from None
        self.origins.append(Origin(task, len(batch), tuple(self.take_pending())))
        return batch

    def take_pending(self) -> list[BatchSkipped]:
        """Return and clear the skipped batches not yet followed by a good one."""
        pending, self._pending = self._pending, []
        return pending

    def _next_good(self) -> tuple[int, Batch]:
        while True:
            if self.interrupt is not None:
                raise self.interrupt
            task, batch = next(self._stream)
            # Checking values on a GPU synchronises with the host, so it is done only on request.
            values = batch.x.device.type == "cpu" or self._policy == "skip"
            fault = batch_fault(batch, self._shape, self._classes, values=values)
            if fault is not None and self._policy == "raise":
                raise ValueError(f"batch {self.position}: {fault}")
            self.position += 1
            if fault is None:
                return task, batch
            self._pending.append(BatchSkipped(self.position - 1 - len(self.skipped), fault))
            self.skipped.append(self.position - 1)
