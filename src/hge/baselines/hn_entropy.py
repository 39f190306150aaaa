"""The same hypernetwork (`hn`), told boundaries only; at test time the task whose network is surest of a row answers.

Source: HNET+ENT of von Oswald et al. 2020: the weights of every task are generated, and the row goes to those with the
lowest entropy of their predictions. A batch goes to those with the lowest mean entropy of its rows.

Departures: those of `hn`. A task that recurs is a new one: a boundary does not say which task begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hge.baselines.hn import GivenTaskAnswers, HypernetworkLearner
from hge.gating.tree import FloatArray, Routes
from hge.learning.online import Answers, Routing, Setting
from hge.learning.state import Snapshot


def build(setting: Setting) -> HypernetworkWithEntropy:
    """Return an untrained learner."""
    return HypernetworkWithEntropy(setting)


class HypernetworkWithEntropy(HypernetworkLearner):
    """A hypernetwork whose tasks are numbered by the boundaries."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, current_task=lambda: self.boundaries)
        self.boundaries = 0

    def boundary(self) -> None:
        """Let the next batch begin a task."""
        self.boundaries += 1

    def answers(self) -> Answers:
        """Return an object that predicts test rows; no task is given."""
        return EntropyAnswers(self, expert=0)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        super().restore(snapshot)
        self.boundaries = max(self.expert_of, default=0)


@dataclass(frozen=True)
class EntropyAnswers(GivenTaskAnswers):
    """Routes each row, or a batch, to the weights whose predictions have the lowest entropy."""

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose a task per row, independently of the other rows, or one for all rows."""
        scores = np.stack([self._entropy(expert, x) for expert in self.learner.experts])
        if routing == "batch":
            scores = scores.mean(axis=1, keepdims=True)
        expert = scores.argmin(axis=0)
        return Routes.flat(expert, scores)

    def _entropy(self, expert: int, x: Tensor) -> FloatArray:
        log_p = self.learner.rule.logits_of(expert, x).double().log_softmax(dim=1)
        return np.asarray(-(log_p.exp() * log_p).sum(dim=1).cpu())

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return the cost of a pass with the weights of every task."""
        return asked * self.learner.rule.multiply_adds
