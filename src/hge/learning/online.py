"""What every method is to a runner: something that learns a stream of batches, is tested, and can be stopped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from hge.core.config import RunConfig
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.pool import ExpertPool
from hge.gating.tree import FloatArray, Routes, Tree
from hge.learning.state import Snapshot

Routing = Literal["sample", "batch", "window"]


@dataclass(frozen=True)
class Step:
    """The outcome of one batch: the trace that reports are drawn from."""

    step: int
    expert: int
    """The expert that was trained on it or, if it was set aside, the one that refused it."""
    loss: float
    bound: float
    set_aside: bool
    queried: int
    trained: tuple[tuple[int, int], ...]
    """(step of a batch, expert) for all training of this step, older batches included."""


class OnlineLearner(Protocol):
    """A method: Gated Experts or a baseline. It sees batches only; task numbers stay with the runner."""

    @property
    def pool(self) -> ExpertPool:
        """The networks of the experts."""

    @property
    def steps(self) -> int:
        """Number of batches learned so far."""

    @property
    def experts(self) -> Sized:
        """All experts."""

    @property
    def newcomers(self) -> Sized:
        """Experts on probation, which no result counts as promoted."""

    @property
    def tree(self) -> Tree:
        """How the promoted experts are organised; a method without a hierarchy has a flat one."""

    @property
    def evaluations(self) -> Counter[str]:
        """Number of scores computed so far, by purpose."""

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order.

        A few batches may be taken from the iterable before the first of their steps is yielded; the state is that of
        the last step only once the iterable has ended.
        """

    def end_stream(self) -> None:
        """Finish what was put off: nothing more is known to come."""

    def answers(self) -> Answers:
        """Return what answers test rows."""

    def take(self) -> Snapshot:
        """Copy the state; not in the middle of `learn_all`."""

    def restore(self, snapshot: Snapshot) -> None:
        """Load a state into a learner that has learned nothing yet; raise a ValueError if it does not fit."""


class GivenTasks(OnlineLearner, Protocol):
    """A method that is given tasks, in training (`Setting.current_task`) and in testing."""

    def answers_for(self, task: int) -> Answers:
        """Return what answers test rows of a task."""


class Answers(Protocol):
    """A trained system that can be tested."""

    @property
    def learner(self) -> OnlineLearner:
        """The learner that was trained."""

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose an expert per row, or one for all rows."""

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return the class probabilities [rows, outputs] of the chosen experts."""

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Count the gate's multiply-adds per row, when so many experts are asked about groups of so many rows."""


@dataclass(frozen=True)
class Setting:
    """What a method is built from."""

    config: RunConfig
    keys: Keys
    emit: Emit
    outputs: int
    """Classes of the whole stream."""
    build_pool: Callable[[int], ExpertPool]
    """Number of outputs -> an empty pool of such networks."""
    current_task: Callable[[], int]
    """The task of the batch that was drawn last, for methods that are given task boundaries; others get an error."""

    def pool(self) -> ExpertPool:
        """Return an empty pool for experts that know all classes."""
        return self.build_pool(self.outputs)
