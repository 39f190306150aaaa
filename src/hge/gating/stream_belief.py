"""Which expert predicts the next rows of a stream: the expert in use, unless the inputs say otherwise. No tensors here.

The gate's choice for a row is an observation. How much it says is learned from the labelled past: if the gate chose
expert B as often while A was in use as while B was, its choice of B says nothing, and the expert in use predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hge.gating.tree import FloatArray, IntArray

STAYS = 0.99
"""Probability that the next rows belong to the expert in use, if they continue the stream."""
CONTINUES = 0.7
"""Probability that the rows of a call continue the stream; otherwise each may belong to any expert."""
REMEMBERED = 300.0
"""Rows from which the gate's choices are estimated; older ones count less and less."""
PRIOR = 2.0
"""Rows that the prior is worth: half of them chosen rightly, half at random."""


class StreamBelief:
    """The expert in use, and how often the gate chose each expert while each was in use.

    The rows set aside, which no expert accepted, are a last hypothesis beside the experts.

    >>> belief = StreamBelief()
    >>> for _ in range(20):  # the gate tells expert 1 from expert 0
    ...     belief.learned(0, np.zeros(32, int), experts=2)
    ...     belief.learned(1, np.ones(32, int), experts=2)
    >>> belief.posterior(np.array([0, 0]), experts=2).argmax(axis=0), belief.in_use
    (array([0, 0]), 1)
    >>> for _ in range(20):  # now it always chooses expert 0
    ...     belief.learned(1, np.zeros(32, int), experts=2)
    >>> belief.posterior(np.array([0, 0]), experts=2).argmax(axis=0)
    array([1, 1])
    """

    def __init__(self) -> None:
        self.in_use = 0
        """The expert that was trained on the last batch; -1 if the batch was set aside."""
        self.counts: FloatArray = np.zeros((0, 0))
        """[experts, experts] of the rows learned by the first, how many the gate would have sent to the second."""
        self.aside: FloatArray = np.zeros(0)
        """[experts] The same for the rows set aside."""

    def learned(self, expert: int, choices: IntArray, experts: int) -> None:
        """Note the gate's choices for the rows of a batch on which an expert was trained."""
        self._grow(experts)
        self.counts[expert] = _included(self.counts[expert], choices)
        self.in_use, self.aside = expert, np.zeros(experts)

    def set_aside(self, choices: IntArray, experts: int) -> None:
        """Note the gate's choices for the rows of a batch that no expert accepted."""
        self._grow(experts)
        self.aside = _included(self.aside, choices)
        self.in_use = -1

    def recount(self, expert: int, choices: IntArray, experts: int) -> None:
        """Replace an expert's counts by the gate's choices for rows that it remembers."""
        self._grow(experts)
        self.counts[expert] = _included(np.zeros(experts), choices)

    def posterior(self, choices: IntArray, experts: int) -> FloatArray:
        """Return [experts + 1, rows]: the probability that each row belongs to each expert, or to the rows set aside.

        Either all rows of the call belong to one expert, most likely the one in use, or each row to any expert. The
        rows themselves decide between the two: mixed rows are very unlikely in the first case.
        """
        self._grow(experts)
        if experts == 1 and self.in_use == 0:
            return np.repeat([[1.0], [0.0]], len(choices), axis=1)
        likelihood = np.log(self._emissions()[:, choices])  # [hypotheses, rows]
        in_use = np.eye(experts + 1)[self.in_use]
        any_expert = np.append(np.full(experts, 1 / experts), 0.0)
        with np.errstate(divide="ignore"):  # without rows set aside, theirs is impossible
            together = np.log(STAYS * in_use + (1 - STAYS) * any_expert)[:, None] + likelihood.sum(
                axis=1, keepdims=True
            )
            alone = np.log(any_expert)[:, None] + likelihood
        as_one, rows = np.logaddexp.reduce(together, axis=None), np.logaddexp.reduce(alone, axis=0)
        as_many = rows.sum()
        continues = 1 / (1 + np.exp(np.clip(as_many - as_one + np.log(1 / CONTINUES - 1), -500, 500)))
        one: FloatArray = np.exp(together - as_one)
        many: FloatArray = np.exp(alone - rows)
        posterior: FloatArray = continues * one + (1 - continues) * many
        return posterior

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {"in_use": self.in_use, "counts": self.counts.tolist(), "aside": self.aside.tolist()}

    def load_state(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        experts = len(facts["aside"])
        self.in_use, self.aside = int(facts["in_use"]), np.array(facts["aside"], float)
        self.counts = np.array(facts["counts"], float).reshape(experts, experts)

    def _grow(self, experts: int) -> None:
        missing = experts - len(self.counts)
        if missing > 0:
            self.counts = np.pad(self.counts, ((0, missing), (0, missing)))
            self.aside = np.pad(self.aside, (0, missing))

    def _emissions(self) -> FloatArray:
        """Return [hypotheses, experts]: the probability that the gate chooses the second for a row of the first."""
        experts = len(self.counts)
        right = np.vstack([np.eye(experts), np.full(experts, 1 / experts)])
        counts = np.vstack([self.counts, self.aside]) + PRIOR / 2 * (right + 1 / experts)
        emissions: FloatArray = counts / counts.sum(axis=1, keepdims=True)
        return emissions


def _included(counts: FloatArray, choices: IntArray) -> FloatArray:
    """Return the counts with more rows, limited to `REMEMBERED` in all."""
    counts = counts + np.bincount(choices, minlength=len(counts))
    limited: FloatArray = counts * min(1.0, REMEMBERED / max(float(counts.sum()), 1.0))
    return limited
