"""A run's stream on its way to the learner: tasks kept apart, bad batches kept away, the source's errors held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from hge.core.config import OnBadBatch
from hge.core.events import BatchSkipped
from hge.core.types import Batch
from hge.estimator.validation import batch_fault
from hge.experts.networks import Shape


@dataclass(frozen=True)
class Origin:
    """What the learner is not told of a batch."""

    task: int
    rows: int
    skipped: tuple[BatchSkipped, ...]
    """The bad batches that came right before it."""


class Feed:
    """Iterates over a stream's good batches; the origin of each is in `origins` once the batch was taken.

    Whatever the source raises ends the stream like its last batch would, so that the learner comes to rest in a state
    that can be saved; the error waits in `error`. A bad batch under "raise" is such an error.
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
        """Places in the stream of the batches that were skipped; those to come are added."""
        self.position = learned + len(self.skipped)
        """Batches that were taken from the stream, good and bad."""
        self.ended = False
        self.error: BaseException | None = None
        self.interrupt: KeyboardInterrupt | None = None
        """A Ctrl-C that waits for the next batch, where the learner can rest."""
        self._stream, self._shape, self._classes, self._policy = stream, shape, classes, on_bad_batch
        self._pending: list[BatchSkipped] = []

    @property
    def current_task(self) -> int:
        """The task of the batch that was taken last."""
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
        except BaseException as error:  # a Ctrl-C, too, while the source lets us wait
            self.ended, self.error = True, error
            raise StopIteration from None
        self.origins.append(Origin(task, len(batch), tuple(self.take_pending())))
        return batch

    def take_pending(self) -> list[BatchSkipped]:
        """Return the skipped batches that no good one has followed yet; each is told once."""
        pending, self._pending = self._pending, []
        return pending

    def _next_good(self) -> tuple[int, Batch]:
        while True:
            if self.interrupt is not None:
                raise self.interrupt
            task, batch = next(self._stream)
            # Looking at values on a GPU makes the host wait for it, so that is done only where it was asked for.
            values = batch.x.device.type == "cpu" or self._policy == "skip"
            fault = batch_fault(batch, self._shape, self._classes, values=values)
            if fault is not None and self._policy == "raise":
                raise ValueError(f"batch {self.position}: {fault}")
            self.position += 1
            if fault is None:
                return task, batch
            self._pending.append(BatchSkipped(self.position - 1 - len(self.skipped), fault))
            self.skipped.append(self.position - 1)
