"""The interface of methods to the runner: learn a stream of batches, be tested, save and restore the state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from hge.core.config import RunConfig
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.pool import Costs, ExpertPool
from hge.experts.pool_spec import PoolSpec
from hge.gating.tree import FloatArray, Routes, Tree
from hge.learning.state import Snapshot

Routing = Literal["stream", "sample", "batch", "window"]


@dataclass(frozen=True)
class Step:
    """The outcome of one batch; reports are built from these."""

    step: int
    expert: int
    """The expert trained on the batch or, if it was set aside, the one that rejected it."""
    loss: float
    bound: float
    set_aside: bool
    queried: int
    trained: tuple[tuple[int, int], ...]
    """(step of the batch, expert) for each training update in this step, older batches included."""


class OnlineLearner(Protocol):
    """A method: Gated Experts or a baseline. It receives batches only; task ids stay with the runner."""

    @property
    def steps(self) -> int:
        """Number of batches learned so far."""

    @property
    def experts(self) -> Sized:
        """All experts."""

    @property
    def newcomers(self) -> Sized:
        """Experts on probation; results do not count them as promoted."""

    @property
    def tree(self) -> Tree:
        """The tree of the promoted experts; flat for methods without a hierarchy."""

    @property
    def rows_kept(self) -> int:
        """Number of rows of the stream in memory."""

    @property
    def parameters(self) -> int:
        """Number of values that predictions are computed from: weights and statistics, without stored rows."""

    @property
    def evaluations(self) -> Counter[str]:
        """Number of scores computed so far, by purpose."""

    def costs(self) -> Costs:
        """Count multiply-adds."""

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order.

        Several batches may be drawn from the iterable before the first of their steps is yielded; the state matches the
        last yielded step only once the iterable is exhausted.
        """

    def end_stream(self) -> None:
        """Finish deferred work: no more batches will follow."""

    def answers(self) -> Answers:
        """Return an object that predicts test rows."""

    def snapshot(self) -> Snapshot:
        """Copy the state; must not be called while `learn_all` is running."""

    def restore(self, snapshot: Snapshot) -> None:
        """Load a state into an untrained learner; raise a ValueError if it does not fit."""


class GivenBoundaries(OnlineLearner, Protocol):
    """A method that is given task boundaries in training: not which task begins, only that another one does."""

    def boundary(self) -> None:
        """Learn that the next batch is of another task than the last one."""


class GivenTasks(OnlineLearner, Protocol):
    """A method that is given task ids, in training (`Setting.current_task`) and in testing."""

    def answers_for(self, task: int) -> Answers:
        """Return an object that predicts test rows of a task."""


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
        """Return the gate's multiply-adds per row, if it queries `asked` experts for groups of `rows` rows."""


@dataclass(frozen=True)
class Setting:
    """Everything a method is built from."""

    config: RunConfig
    keys: Keys
    emit: Emit
    spec: PoolSpec
    """The network and the optimiser that all methods have in common."""
    build_pool: Callable[[int], ExpertPool]
    """Number of outputs -> an empty pool of networks with that many outputs."""
    current_task: Callable[[], int]
    """Returns the task of the batch drawn last, for methods that are given tasks; raises an error for others."""

    @property
    def device(self) -> torch.device:
        """Device of the networks."""
        return torch.device(self.config.device)

    @property
    def memory(self) -> int:
        """Number of rows that a method may keep: as set, or as many as the replay of GE, one expert per task."""
        config = self.config
        return config.baseline.memory or config.learner.replay_capacity * config.batch_size * config.tasks

    def pool(self) -> ExpertPool:
        """Return an empty pool of experts with an output for every class."""
        return self.build_pool(self.spec.outputs)
