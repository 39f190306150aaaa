"""Which expert predicts the next rows of a stream: the expert in use, unless the inputs say otherwise. No tensors here.

Observers, such as the gate, choose an expert for each row. How much a choice says is estimated from the labelled past:
if an observer chose expert B as often while A was in use as while B was, its choice of B says nothing, and the expert
in use predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hge.gating.mixed_rows import log_probability_of_one, mixed
from hge.gating.tree import FloatArray, IntArray

STAYS = 0.99
"""Probability that the next rows belong to the expert in use, if they continue the stream."""
CONTINUES = 0.7
"""Probability that the rows of a call continue the stream; otherwise each may belong to any expert."""
SETTLED = 0.9
"""Share of the mixed calls that come after an expert was found for the rows set aside."""
REMEMBERED, AFTER_A_NEW_EXPERT = 300.0, 32.0
"""Rows that count in all; older ones count less and less, and little once there is another expert to choose."""
BEFORE = 0.125
"""Share, in what is chosen for an expert just created, of what was chosen before it was there to be chosen."""
FADES = 0.7
"""How much of what was chosen when an expert was created still counts after each further batch."""
PRIOR = 2.0
"""Rows that the prior is worth: half of them chosen rightly, half at random."""


class StreamBelief:
    """The expert in use, and how often each observer chose each expert while each was in use.

    The rows set aside, which no expert accepted, are a last hypothesis beside the experts.

    >>> belief = StreamBelief(observers=1)
    >>> for _ in range(20):  # the observer tells expert 1 from expert 0
    ...     belief.learned(0, np.zeros((1, 32), int), experts=2)
    ...     belief.learned(1, np.ones((1, 32), int), experts=2)
    >>> belief.posterior(np.array([[0, 0]]), experts=2).argmax(axis=0), belief.in_use
    (array([0, 0]), 1)
    >>> for _ in range(20):  # now it always chooses expert 0
    ...     belief.learned(1, np.zeros((1, 32), int), experts=2)
    >>> belief.posterior(np.array([[0, 0]]), experts=2).argmax(axis=0)
    array([1, 1])
    """

    def __init__(self, observers: int) -> None:
        self.in_use = 0
        """The expert that was trained on the last batch that was not set aside."""
        self.switched = 0.0
        """Probability that the task has changed since: batches were set aside, which may be outliers."""
        self.counts: FloatArray = np.zeros((observers, 0, 0))
        """[observers, experts, experts] Of the rows learned by the first expert, how many went to the second."""
        self.aside: FloatArray = np.zeros((observers, 0))
        """[observers, experts] The same for the rows set aside."""
        self.first: FloatArray = np.zeros((observers, 0))
        """[observers, experts] The same for the batch that created the expert in use, and for the rows that this expert
        remembers, as far as they still count."""
        self.met: list[int] = []
        """By expert: how many experts could be chosen for its rows when it was in use last; 0: none yet."""
        self.merged_experts: list[int] = []
        """Experts in whose place there is another."""

    def learned(self, expert: int, choices: IntArray, experts: int) -> None:
        """Note the choices [observers, rows] for a batch, made before an expert was trained on it.

        Those for the batch with which an expert was created, which could not be chosen, soon count for nothing.
        """
        created = expert >= len(self.met)
        self._grow(experts)
        if expert != self.in_use:
            if not self.counts[:, self.in_use].any():  # its task was that short; nothing else is known of it
                self.counts[:, self.in_use] = self.first
            self.first = np.zeros_like(self.first)
        if created:
            self.first = _included(np.zeros_like(self.first), choices)
        else:
            self.counts[:, expert] = _included(self.counts[:, expert], choices)
            self.first *= FADES
        self.met[expert] = experts
        self.in_use, self.switched, self.aside = expert, 0.0, np.zeros_like(self.aside)

    def chosen_since(self, choices: IntArray) -> None:
        """Note what the observers choose for rows of the expert just created, now that they can choose it, too.

        What they chose before counts a little: they could only choose others. If it counted more, mixed rows of all
        tasks would look like rows of the new one.
        """
        shares, rows = _included(np.zeros_like(self.first), choices), self.first.sum(axis=1, keepdims=True)
        self.first = BEFORE * self.first + (1 - BEFORE) * shares * rows / choices.shape[1]

    def set_aside(self, choices: IntArray, experts: int, chance: float) -> None:
        """Note the choices [observers, rows] for a batch that no expert accepted.

        `chance`: probability of this batch, and of those set aside just before it, if the task has not changed.
        """
        self._grow(experts)
        self.aside = _included(self.aside, choices)
        self.switched = max(self.switched, (1 - STAYS) / (1 - STAYS + STAYS * chance))

    def met_later(self, expert: int, choices: IntArray) -> None:
        """Note what the observers choose for rows that an expert remembers, now that there are further experts.

        Only the share of these is used: between the experts that it has met, the rows of the stream have decided, which
        no observer knew. Without this, an expert of the past would seem to be chosen as surely as when it was alone.
        """
        met = self.met[expert]
        shares = np.array([np.bincount(own, minlength=self.counts.shape[1]) for own in choices])[:, met:]
        shares = shares / (choices.shape[1] + 1)  # never all: the proportions of the others would be lost
        before = self.counts[:, expert, :met]
        rows = np.maximum(self.counts[:, expert].sum(axis=1, keepdims=True), 1.0)
        known = before / np.maximum(before.sum(axis=1, keepdims=True), 1e-9)
        kept = 1 - shares.sum(axis=1, keepdims=True)
        self.counts[:, expert] = rows * np.concatenate([kept * known, shares], axis=1)

    def merged(self, expert: int, into: int) -> None:
        """Put an expert in the place of another, as the one in use and as the observers' choice."""
        self.counts[:, into] += self.counts[:, expert]
        self.counts[:, expert] = 0.0
        for counts in (self.counts, self.aside, self.first):
            counts[..., into] += counts[..., expert]
            counts[..., expert] = 0.0
        self.counts = _limited(self.counts, REMEMBERED)
        self.in_use = into if self.in_use == expert else self.in_use
        self.merged_experts.append(expert)

    def posterior(self, choices: IntArray, experts: int, unlike: FloatArray | None = None) -> FloatArray:
        """Return [experts + 1, rows]: the probability that each row belongs to each expert, or to the rows set aside.

        `choices` [observers, rows]: what the observers say of them. `unlike` [rows]: what else makes it more probable
        that they are rows like those set aside, as a logarithm: the observers choose experts only.

        Either all rows of the call belong to one expert, most likely the one in use, or each row to any expert. The
        rows themselves decide between the two: mixed rows are very unlikely in the first case.
        """
        self._grow(experts)
        if experts == 1 and not self.switched:
            return np.array([[1.0], [0.0]]) * np.ones(choices.shape[1])
        # Not both: observers see the same inputs, so that their agreement is no independent evidence.
        observer = self.most_reliable
        # The shares they are compared with come from no more rows: beyond these, errors of the shares would decide.
        seen = _limited(np.bincount(choices[observer], minlength=experts), REMEMBERED)
        counted = self._counted(observer)
        in_use = (1 - self.switched) * np.eye(experts + 1)[self.in_use]
        in_use[-1] = self.switched
        possible = np.ones(experts)
        possible[self.merged_experts] = 0.0
        any_expert = np.append(possible / possible.sum(), 0.0)
        with np.errstate(divide="ignore"):  # without rows set aside, theirs is impossible
            prior = np.log(STAYS * in_use + (1 - STAYS) * any_expert)
        if unlike is not None:
            prior[-1] += unlike.sum() * min(1.0, REMEMBERED / len(unlike))
        emissions = counted / counted.sum(axis=1, keepdims=True)
        likelihood = np.log(emissions) @ seen
        one = prior + likelihood
        # An expert whose past is known only roughly explains unusual choices better than by its most probable shares.
        # But which expert it is follows from these: one that has chosen few rows so far would explain any choices.
        as_one = np.logaddexp.reduce(prior + np.maximum(likelihood, log_probability_of_one(seen, counted)))
        as_many, owners = mixed(seen, emissions[:-1], possible)
        # To the observers the rows of a new task look like rows of all others, mixed.
        probably_mixed = (1 - CONTINUES) * (1 - SETTLED * self.switched)
        odds = as_many - as_one + np.log(probably_mixed / (1 - probably_mixed))
        continues = 1 / (1 + np.exp(np.clip(odds, -500, 500)))
        many = np.vstack([owners, np.zeros(experts)])[:, choices[observer]]
        one = np.exp(one - np.logaddexp.reduce(one))
        posterior: FloatArray = continues * one[:, None] + (1 - continues) * many
        return posterior

    @property
    def most_reliable(self) -> int:
        """The observer that has chosen the expert in use most often, as a mean over the experts."""
        shares = self.counts / np.maximum(self.counts.sum(axis=2, keepdims=True), 1.0)
        return int(np.trace(shares, axis1=1, axis2=2).argmax())

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "in_use": self.in_use,
            "switched": self.switched,
            "counts": self.counts.tolist(),
            "aside": self.aside.tolist(),
            "first": self.first.tolist(),
            "met": self.met,
            "merged": self.merged_experts,
        }

    def load_state(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.in_use, self.switched = int(facts["in_use"]), float(facts["switched"])
        self.aside = np.array(facts["aside"], float).reshape(self.aside.shape[0], -1)
        self.first = np.array(facts["first"], float).reshape(self.aside.shape)
        self.merged_experts, experts = list(facts["merged"]), self.aside.shape[1]
        self.met = np.reshape(facts["met"], experts).astype(int).tolist()
        self.counts = np.array(facts["counts"], float).reshape(len(self.aside), experts, experts)

    def _grow(self, experts: int) -> None:
        missing = experts - len(self.met)
        if missing > 0:
            counts = _limited(self.counts, AFTER_A_NEW_EXPERT)
            self.counts = np.pad(counts, ((0, 0), (0, missing), (0, missing)))
            self.aside, self.first = (np.pad(rows, ((0, 0), (0, missing))) for rows in (self.aside, self.first))
            self.met += [0] * missing

    def _counted(self, observer: int) -> FloatArray:
        """Return [hypotheses, experts]: rows of the first for which the second was chosen, and the prior."""
        experts = self.counts.shape[1]
        right = np.vstack([np.eye(experts), np.full(experts, 1 / experts)])
        counts: FloatArray = np.vstack([self.counts[observer], self.aside[observer]])
        counts += PRIOR / 2 * (right + 1 / experts)
        counts[self.in_use] += self.first[observer]
        return counts


def _included(counts: FloatArray, choices: IntArray) -> FloatArray:
    """Return the counts [observers, experts] with more rows."""
    new = np.array([np.bincount(own, minlength=counts.shape[1]) for own in choices])
    return _limited(counts + new, REMEMBERED)


def _limited(counts: FloatArray | IntArray, rows: float) -> FloatArray:
    """Return counts of at most so many rows in all, in the same proportions."""
    limited: FloatArray = counts * np.minimum(1.0, rows / np.maximum(counts.sum(axis=-1, keepdims=True), 1.0))
    return limited
