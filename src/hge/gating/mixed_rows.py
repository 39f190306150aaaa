"""Whose rows are these? What the choices of an observer say about rows that are of one expert, or of several, mixed."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln, psi

from hge.gating.tree import FloatArray

UNEQUAL = 0.1
"""Probability that mixed rows are of some experts more often than of others."""
ROUNDS = 5
"""Rounds of variational Bayes; further ones change hardly anything."""


def log_probability_of_one(seen: FloatArray, counted: FloatArray) -> FloatArray:
    """Return [hypotheses]: log-probability of the choices, if all rows belong to one of the hypotheses.

    `seen` [experts]: how often each was chosen. `counted` [hypotheses, experts]: how often for rows of each hypothesis
    before, from which its shares are known only roughly (a Dirichlet-multinomial distribution).

    >>> few, many = np.array([[9.0, 1.0]]), np.array([[900.0, 100.0]])
    >>> bool(log_probability_of_one(np.array([5, 5]), few) > log_probability_of_one(np.array([5, 5]), many))
    True
    """
    rows, chosen = counted.sum(axis=1), np.flatnonzero(seen)  # the others' terms are 0
    each = gammaln(counted[:, chosen] + seen[chosen]) - gammaln(counted[:, chosen])
    found: FloatArray = gammaln(rows) - gammaln(rows + seen.sum()) + each.sum(axis=1)
    return found


def mixed(seen: FloatArray, emissions: FloatArray, possible: FloatArray) -> tuple[float, FloatArray]:
    """Return the log-probability of the choices for mixed rows, and [experts, choices]: whose row each choice is.

    Every expert has an equal share of the rows or, less probably, the shares are unknown. `emissions` [experts,
    experts]: how probably the second is chosen for a row of the first. `possible` [experts]: 0 or 1.

    >>> right, all_possible = np.array([[0.9, 0.1], [0.1, 0.9]]), np.ones(2)
    >>> mixed(np.array([50, 50]), right, all_possible)[1].round(1).tolist()
    [[0.9, 0.1], [0.1, 0.9]]
    >>> mixed(np.array([98, 2]), right, all_possible)[1].round(1).tolist()  # two errors rather than two rows
    [[1.0, 1.0], [0.0, 0.0]]
    """
    equal = possible / possible.sum()
    if seen.sum() == 1:  # one row says nothing about shares
        return float(seen @ np.log(equal @ emissions)), _owners(equal, emissions)
    shares, unknown = _unknown_shares(seen, emissions, possible)
    logs = np.array([np.log(1 - UNEQUAL) + seen @ np.log(equal @ emissions), np.log(UNEQUAL) + unknown])
    total = float(np.logaddexp.reduce(logs))
    by_hypothesis = zip(np.exp(logs - total), (equal, shares), strict=True)
    return total, sum(weight * _owners(own, emissions) for weight, own in by_hypothesis)


def _unknown_shares(seen: FloatArray, emissions: FloatArray, possible: FloatArray) -> tuple[FloatArray, float]:
    """Return the most probable shares, and a lower bound of the log-probability of the choices, all shares considered.

    Variational Bayes for a mixture of known components. The prior of the shares is worth one row in all, since most are
    probably small: a call seldom has rows of many experts.
    """
    each, shares, allowed = 1 / possible.sum(), possible / possible.sum(), possible > 0
    for _ in range(ROUNDS):
        rows = each * possible + _owners(shares, emissions) @ seen
        logs = np.where(allowed, psi(np.maximum(rows, each)) - psi(rows.sum()), -np.inf)
        shares = np.exp(logs)
    own = rows[allowed]
    learned = gammaln(own.sum()) - gammaln(own).sum() + len(own) * gammaln(each) + (own - each) @ logs[allowed]
    return shares / shares.sum(), float(seen @ np.log(shares @ emissions) - learned)


def _owners(shares: FloatArray, emissions: FloatArray) -> FloatArray:
    """Return [experts, choices]: the probability that a row for which an expert was chosen belongs to each."""
    joint = shares[:, None] * emissions
    owners: FloatArray = joint / joint.sum(axis=0)
    return owners
