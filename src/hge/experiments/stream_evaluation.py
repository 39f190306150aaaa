"""Prequential evaluation of methods on a labelled stream, with retention on held-out rows (docs/howto/evaluate.md)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from hge.core.randomness import Keys
from hge.estimator.advice import HgeWarning

Rows = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[Any]
Indices = npt.NDArray[np.intp]
RowSet = tuple[Rows, Labels]
Progress = Callable[[str, int, int, float], None]
"""Called after each batch with: name of the method, rows done, rows in all, accuracy so far in percent."""

HELD_OUT_EVERY = 10


class StreamMethod(Protocol):
    """A classifier that learns a stream batch by batch. `predict` is called only after the first `learn`."""

    def learn(self, X: Rows, y: Labels) -> None:
        """Learn the next rows of the stream."""

    def predict(self, X: Rows) -> Labels:
        """Return a label for each row."""


@runtime_checkable
class Finishing(Protocol):
    """A method with something to do after the last row, and figures of its own for the result."""

    def finish(self) -> dict[str, Any]:
        """End the stream; return figures as JSON values."""


@dataclass(frozen=True, eq=False)
class MethodResult:
    """Figures of one method."""

    name: str
    correct: npt.NDArray[np.bool_]
    """Whether each counted row was predicted correctly, before it was learned."""
    by_concept: tuple[float, ...]
    """Accuracy at the end on the held-out rows of each concept, in percent."""
    seconds: float
    """Time of predicting and learning the stream."""
    cpu_seconds: float
    """Processor time of the same, over all threads."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What the method's `finish` returned."""

    @property
    def accuracy(self) -> float:
        """Prequential accuracy, in percent."""
        return 100 * float(self.correct.mean())

    @property
    def retention(self) -> float | None:
        """Mean of `by_concept`; None if no rows are held out."""
        return float(np.mean(self.by_concept)) if self.by_concept else None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures of several methods on one stream."""

    counted: Indices
    """Row of the stream behind each entry of `MethodResult.correct`."""
    methods: tuple[MethodResult, ...]


@dataclass(frozen=True, eq=False)
class StreamPlan:
    """The rows to learn, in order, and the held-out rows of each concept."""

    X: Rows
    y: Labels
    learned: Indices
    """Rows of the stream that are predicted and learned."""
    held_out: tuple[RowSet, ...]
    batch: int

    @property
    def counted(self) -> Indices:
        """Rows that count for prequential accuracy: all learned ones but the first batch."""
        return self.learned[self.batch :]

    def run(self, name: str, method: StreamMethod, progress: Progress | None = None) -> MethodResult:
        """Predict and learn batch after batch, once; then predict the held-out rows, each concept in one call."""
        correct: list[npt.NDArray[np.bool_]] = []
        right, total, started, cpu_started = 0, len(self.learned), perf_counter(), process_time()
        for start in range(0, total, self.batch):
            rows = self.learned[start : start + self.batch]
            with _quietly():
                if start:
                    correct.append(method.predict(self.X[rows]) == self.y[rows])
                    right += int(correct[-1].sum())
                method.learn(self.X[rows], self.y[rows])
            if progress is not None:
                done = start + len(rows)
                progress(name, done, total, 100 * right / max(done - self.batch, 1))
        with _quietly():
            figures = method.finish() if isinstance(method, Finishing) else {}
            seconds, cpu_seconds = perf_counter() - started, process_time() - cpu_started
            by_concept = tuple(100 * float(np.mean(method.predict(X) == y)) for X, y in self.held_out)
        return MethodResult(name, np.concatenate(correct), by_concept, seconds, cpu_seconds, figures)


def evaluate_stream(
    X: Rows,
    y: Labels,
    methods: Mapping[str, StreamMethod],
    *,
    batch: int = 32,
    segments: int = 10,
    concepts: Sequence[int] | Indices | None = None,
    held_out: int | Sequence[RowSet] = HELD_OUT_EVERY,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate methods on a stream: test, then train, in batches in order; the first batch is not counted.

    Parameters
    ----------
    X, y : rows and labels, in the order of the stream.
    methods : objects with `learn(X, y)` and `predict(X)`, by name; see `stream_opponents.build_methods`.
    batch : rows per call.
    segments : number of equal consecutive parts that serve as concepts, if `concepts` is not given.
    concepts : id of the concept of each row; a concept may return.
    held_out : one of every n rows of each concept is held out for retention (0: none), or one (X, y) per concept, in
        which case all rows are learned.
    progress : called after each batch.

    Examples
    --------
    >>> from hge.experiments.stream_opponents import MajorityClass
    >>> y = np.repeat([0, 0, 1, 1], 100)
    >>> found = evaluate_stream(y[:, None], y, {"majority": MajorityClass()}, segments=4)
    >>> found.methods[0].by_concept
    (100.0, 100.0, 0.0, 0.0)
    """
    plan = plan_stream(X, y, batch=batch, segments=segments, concepts=concepts, held_out=held_out)
    results = [plan.run(name, method, progress) for name, method in methods.items()]
    return Evaluation(plan.counted, tuple(results))


def plan_stream(
    X: Rows,
    y: Labels,
    *,
    batch: int = 32,
    segments: int = 10,
    concepts: Sequence[int] | Indices | None = None,
    held_out: int | Sequence[RowSet] = HELD_OUT_EVERY,
) -> StreamPlan:
    """Divide the rows into those to learn and those held out; see `evaluate_stream`."""
    if len(X) != len(y):
        raise ValueError(f"y: got {len(y)} labels for {len(X)} rows of X, expected one label per row")
    if batch < 1:
        raise ValueError(f"batch: got {batch}, expected at least 1")
    learned, sets = np.arange(len(X)), held_out
    if isinstance(sets, int):
        places = _held_out_rows(_concepts(len(X), segments, concepts), sets)
        learned = np.setdiff1d(learned, np.concatenate(places)) if places else learned
        sets = [(X[rows], y[rows]) for rows in places]
    if len(learned) < 2 * batch:
        raise ValueError(
            f"batch: got {batch}, expected at most {len(learned) // 2}: {len(learned)} rows are learned, and the first "
            "batch is not counted"
        )
    return StreamPlan(X, y, learned, tuple(sets), batch)


def segment_starts(rows: int, segments: int) -> Indices:
    """Return the first row of each of equal consecutive parts.

    >>> segment_starts(100, 4)
    array([ 0, 25, 50, 75])
    """
    return np.arange(segments) * rows // segments


def sliding_accuracy(
    correct: npt.NDArray[np.bool_], window: int, points: int = 200
) -> tuple[Indices, npt.NDArray[np.float64]]:
    """Return at most `points` places in `correct`, and the accuracy in percent over the `window` entries up to each.

    >>> places, accuracy = sliding_accuracy(np.array([1, 1, 0, 0], dtype=bool), window=2)
    >>> places.tolist(), accuracy.tolist()
    ([1, 2, 3], [100.0, 50.0, 0.0])
    """
    window = min(window, len(correct))
    places = np.unique(np.linspace(window - 1, len(correct) - 1, points).round().astype(np.intp))
    sums = np.concatenate([[0], np.cumsum(correct)])
    return places, 100 * (sums[places + 1] - sums[places + 1 - window]) / window


def _concepts(rows: int, segments: int, concepts: Sequence[int] | Indices | None) -> Indices:
    """Return the id of each row's concept."""
    if concepts is not None:
        ids: Indices = np.asarray(concepts)
        if ids.shape != (rows,):
            raise ValueError(f"concepts: got shape {ids.shape}, expected one id for each of {rows} rows")
        return ids
    if rows < HELD_OUT_EVERY:
        raise ValueError(f"rows: got {rows}, expected at least {HELD_OUT_EVERY}, of which one is held out")
    if not 1 <= segments <= rows // HELD_OUT_EVERY:
        raise ValueError(f"segments: got {segments}, expected 1 to {rows // HELD_OUT_EVERY} for {rows} rows")
    return np.searchsorted(segment_starts(rows, segments), np.arange(rows), side="right") - 1


def _held_out_rows(concepts: Indices, every: int) -> list[Indices]:
    """Return one of every n rows of each concept, the concepts in the order of their ids."""
    if every == 0:
        return []
    if every < 2:
        raise ValueError(f"held_out: got {every}, expected 0, or at least 2")
    places = [_one_of_each(np.flatnonzero(concepts == concept), every) for concept in np.unique(concepts)]
    if not all(len(rows) for rows in places):
        raise ValueError(f"held_out: got {every}, expected at least as many rows of every concept")
    return places


def _one_of_each(rows: Indices, every: int) -> Indices:
    """Return one of every n rows; not always the n-th, because a stream may be periodic, as hours of a day are."""
    starts = np.arange(0, len(rows) - every + 1, every)
    chosen: Indices = rows[starts + Keys(seed=0).rng("split", every).integers(every, size=len(starts))]
    return chosen


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress warnings of scikit-learn about small batches, and those of `GatedExperts`: the figures tell."""
    with warnings.catch_warnings(), np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        warnings.filterwarnings("ignore", message="The number of unique classes", category=UserWarning)
        warnings.simplefilter("ignore", HgeWarning)
        yield
