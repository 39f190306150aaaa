"""The gate alone: what it takes to find the expert of a batch, by all scores and by a shortlist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from torch import Tensor

from hge.bench.measure import Plan, Spread, time_calls
from hge.bench.population import Population, Subject
from hge.learning.learner import Learner
from hge.learning.routing import Answerer

ASKED = 16
"""Batches, each of another task as far as there are as many, that are asked for in turn."""


@dataclass(frozen=True)
class GateRow:
    """What the gate takes for a batch, with so many experts to choose from."""

    subject: Subject
    experts: int
    gate: str
    """flat or shortlist."""
    milliseconds: Spread
    queried: float
    """Experts whose score was computed, on average."""
    right_percent: float
    """Share of the batches that came to their own expert."""


class Gate:
    """A learner's gate, and the batches that it is asked about, again and again."""

    def __init__(self, learner: Learner, batches: Sequence[Tensor]) -> None:
        self.answerer = Answerer(learner)
        self.batches = batches
        self._next = cycle(batches)

    def __call__(self) -> None:
        """Ask about the next batch."""
        self.answerer.route(next(self._next), "batch")

    def verdict(self, owners: Sequence[int]) -> tuple[float, float]:
        """Return the mean number of experts asked, and the percentage of batches that came to their owners."""
        routes = [self.answerer.route(x, "batch") for x in self.batches]
        right = [int(r.expert[0]) == owner for r, owner in zip(routes, owners, strict=True)]
        return float(np.mean([r.queried[0] for r in routes])), 100 * float(np.mean(right))


def measure_gates(population: Population, plan: Plan) -> Iterator[GateRow]:
    """Yield what the gate takes; where a score is a network's, also with a shortlist.

    No gate asks the experts' networks, so that a population of small ones may stand for one of large ones.
    """
    subject, device = population.subject, population.subject.device
    owners = np.unique(np.linspace(0, population.size - 1, ASKED).astype(int)).tolist()
    batches = [next(population.task(owner, batches=1).batches(0, 1)).x for owner in owners]
    gates = {"flat": Gate(population.learner, batches)}
    if population.learner.pool.scores_are_costly and population.size > 1:
        gates["shortlist"] = Gate(population.with_shortlist(), batches)
    for name, seconds in time_calls(gates, plan, device).items():
        queried, right = gates[name].verdict(owners)
        yield GateRow(subject, population.size, name, Spread.of(1e3 * s for s in seconds), queried, right)
