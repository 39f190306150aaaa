"""The gate alone: time to select the expert of a batch, from all scores and from a shortlist."""

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

ROUTED_BATCHES = 16
"""Batches that are routed in turn, each of a different task; fewer if there are fewer tasks."""


@dataclass(frozen=True)
class GateRow:
    """Time of the gate per batch, for a given number of experts."""

    subject: Subject
    experts: int
    gate: str
    """flat or shortlist."""
    milliseconds: Spread
    queried: float
    """Experts whose score was computed, on average."""
    right_percent: float
    """Percentage of the batches that were routed to their own expert."""


class Gate:
    """A learner's gate, and the batches that it routes in a cycle."""

    def __init__(self, learner: Learner, batches: Sequence[Tensor]) -> None:
        self.answerer = Answerer(learner)
        self.batches = batches
        self._next = cycle(batches)

    def __call__(self) -> None:
        """Route the next batch."""
        self.answerer.route(next(self._next), "batch")

    def statistics(self, owners: Sequence[int]) -> tuple[float, float]:
        """Return the mean number of experts queried, and the percentage of batches routed to their owners."""
        routes = [self.answerer.route(x, "batch") for x in self.batches]
        right = [int(r.expert[0]) == owner for r, owner in zip(routes, owners, strict=True)]
        return float(np.mean([r.queried[0] for r in routes])), 100 * float(np.mean(right))


def measure_gates(population: Population, plan: Plan) -> Iterator[GateRow]:
    """Yield the time of the gate; if the scores are networks, also with a shortlist.

    No gate evaluates the experts' networks, so a population of small networks can be measured in place of large ones.
    """
    subject, device = population.subject, population.subject.device
    owners = np.unique(np.linspace(0, population.size - 1, ROUTED_BATCHES).astype(int)).tolist()
    batches = [next(population.task(owner, batches=1).batches(0, 1)).x for owner in owners]
    gates = {"flat": Gate(population.learner, batches)}
    if population.learner.pool.scores_are_costly and population.size > 1:
        gates["shortlist"] = Gate(population.with_shortlist(), batches)
    for name, seconds in time_calls(gates, plan, device).items():
        queried, right = gates[name].statistics(owners)
        yield GateRow(subject, population.size, name, Spread.of(1e3 * s for s in seconds), queried, right)
