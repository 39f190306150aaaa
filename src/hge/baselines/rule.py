"""A method without experts as a learner: a rule says how a batch is learned, and the rest is the same for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hge.baselines.network import Network
from hge.core.events import UpdateSkipped
from hge.core.types import Batch
from hge.experts.pool import Costs
from hge.experts.scores import Cost
from hge.gating.tree import FloatArray, Routes, Tree
from hge.learning.online import Answers, Routing, Setting, Step
from hge.learning.routing import ROWS_AT_ONCE
from hge.learning.state import Snapshot, named, part


class Part(Protocol):
    """Something with a state: a network, a memory, statistics."""

    @property
    def rows_kept(self) -> int:
        """Number of rows of the stream in it."""

    @property
    def parameters(self) -> int:
        """Number of values that predictions are computed from."""

    def state(self) -> dict[str, Tensor]:
        """Return copies of all its tensors on the CPU, by name."""

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""


class Rule(Protocol):
    """What sets a method apart."""

    @property
    def parts(self) -> Mapping[str, Part]:
        """All its state, by name."""

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of an answer for one row."""

    def learn(self, batch: Batch, step: int) -> float:
        """Learn a batch; return its loss, or NaN if it could not be learned and nothing was changed."""

    def logits(self, x: Tensor) -> Tensor:
        """Return a value [rows, outputs] for every class, whose softmax are the probabilities."""


class NetworkRule:
    """What rules that train one network have in common: its predictions, and parts that are saved with it."""

    def __init__(self, setting: Setting, **parts: Part) -> None:
        self.network = Network(setting)
        self.parts: dict[str, Part] = {"network": self.network, **parts}

    @property
    def multiply_adds(self) -> float:
        """One pass of the network."""
        return self.network.multiply_adds

    def logits(self, x: Tensor) -> Tensor:
        """Return the network's logits."""
        return self.network.logits(x)


class RuleLearner:
    """Learns a stream by a rule. Task boundaries are not given."""

    experts: Sequence[int] = (0,)
    newcomers = ()

    def __init__(self, rule: Rule, setting: Setting, at_end: Callable[[], None] = lambda: None) -> None:
        self.rule, self.emit, self.device = rule, setting.emit, setting.device
        self.at_end = at_end
        """What was deferred to the end of the stream."""
        self.steps = 0
        self.tree = Tree()
        self.tree.add(0)
        self.evaluations = Counter[str]()

    @property
    def rows_kept(self) -> int:
        """Number of rows of the stream in memory."""
        return sum(part.rows_kept for part in self.rule.parts.values())

    @property
    def parameters(self) -> int:
        """Number of values that predictions are computed from."""
        return sum(part.parameters for part in self.rule.parts.values())

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order."""
        for batch in batches:
            loss = self.rule.learn(batch.to(self.device), self.steps)
            if not isfinite(loss):
                self.emit(UpdateSkipped(self.steps, 0, self.steps))
            trained = ((self.steps, 0),) if isfinite(loss) else ()
            self.steps += 1
            yield Step(self.steps - 1, 0, loss, inf, False, 0, trained)

    def end_stream(self) -> None:
        """Do what was deferred."""
        self.at_end()

    def costs(self) -> Costs:
        """Count multiply-adds."""
        return Costs(self.rule.multiply_adds, Cost(0.0, 0.0), Cost(0.0, 0.0))

    def answers(self) -> Answers:
        """Return an object that predicts test rows."""
        return RuleAnswers(self)

    def snapshot(self) -> Snapshot:
        """Copy the state."""
        tensors: dict[str, Tensor] = {}
        for name, own in self.rule.parts.items():
            tensors |= named(name, own.state())
        return Snapshot({"steps": self.steps, "experts": [{"batches": self.steps}]}, {}, [tensors])

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        self.steps = snapshot.facts["steps"]
        for name, own in self.rule.parts.items():
            own.load_state(part(name, snapshot.experts[0]))


class ToldLearner(RuleLearner):
    """Learns a stream by a rule that is given task boundaries."""

    def __init__(self, rule: Rule, setting: Setting, at_boundary: Callable[[], None]) -> None:
        super().__init__(rule, setting)
        self.at_boundary = at_boundary

    def boundary(self) -> None:
        """Let the rule finish a task."""
        self.at_boundary()


@dataclass(frozen=True)
class RuleAnswers:
    """Predicts by the rule; there is nothing to choose."""

    learner: RuleLearner

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Route all rows to the only expert."""
        groups = 1 if routing == "batch" else len(x)
        expert = np.zeros(groups, dtype=np.int64)
        return Routes.flat(expert, np.zeros((1, groups)))

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the softmax of the rule's logits."""
        parts = [self.learner.rule.logits(rows.to(self.learner.device)) for rows in torch.split(x, ROWS_AT_ONCE)]
        return np.asarray(torch.cat(parts)[:, :outputs].double().softmax(dim=1).cpu())

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return 0: there is no gate."""
        return 0.0
