"""A tree made for few questions: pivots at every level, everybody else under the pivot nearest to its data.

Built from one matrix: how each expert scores the batches that each of them remembers. Numbers only.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from hge.gate import ROOT, FloatArray, IntArray, Tree

SMALLEST_SPLIT = 4
"""So few siblings are asked one after the other; pivots among them would save nothing."""
MOST_PIVOTS = 12
RESTARTS = 4
SWAPS = 30


def build_tree(experts: Sequence[int], scores: FloatArray, rng: np.random.Generator) -> Tree:
    """Place the experts so that a batch finds its own after few questions.

    `scores[i, j, p]` is expert i's score of batch p in the replay of expert j, positions as in `experts`; NaN: unknown.

    >>> near = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0.0]])[:, :, None]
    >>> tree = build_tree([0, 1, 2, 3], near, np.random.default_rng(0))
    >>> sorted(sorted([n.expert, tree.nodes[n.parent].expert]) for n in tree.nodes[1:] if n.parent != ROOT)
    [[0, 1], [2, 3]]
    """
    tree = Tree()
    _place(tree, ROOT, np.arange(len(experts)), np.asarray(experts), scores, rng)
    return tree


def insert(tree: Tree, expert: int, scores_of: dict[int, float], node: int = ROOT) -> int:
    """Place one more expert: down the pivots that score its data lowest, among the last siblings there."""
    while len(tree.children[node]) > 1:
        nearest = min(tree.children[node], key=lambda child: scores_of[tree.nodes[child].expert])
        if not tree.children[nearest]:
            break
        node = nearest
    return tree.add(expert, parent=node)


@cache
def expected_questions(siblings: int) -> tuple[float, int]:
    """Return the least mean number of questions to find one of so many experts, and how many pivots that takes.

    With m pivots, one of them is found after (m + 1) / 2 questions; the others, spread evenly under the pivots, need
    m questions and then those of their own siblings.

    >>> expected_questions(3), expected_questions(20)[1]
    ((2.0, 3), 2)
    """
    best = ((siblings + 1) / 2, siblings)
    for m in range(2, min(MOST_PIVOTS, siblings - 1) + 1):
        below, rest = divmod(siblings - m, m)
        inner = ((m - rest) * below * expected_questions(below)[0]) if below else 0.0
        inner += rest * (below + 1) * expected_questions(below + 1)[0]
        cost = (m * (m + 1) / 2 + (siblings - m) * m + inner) / siblings
        if cost < best[0]:
            best = cost, m
    return best


def _place(
    tree: Tree, parent: int, members: IntArray, experts: IntArray, scores: FloatArray, rng: np.random.Generator
) -> None:
    """Place the members under `parent`: as siblings, or as pivots with the others below them."""
    pivots, below = _best_pivots(members, scores, rng) if len(members) >= SMALLEST_SPLIT else (members, None)
    for i, pivot in enumerate(pivots):
        node = tree.add(int(experts[pivot]), parent)
        if below is not None:
            _place(tree, node, members[below == i], experts, scores, rng)


def _best_pivots(members: IntArray, scores: FloatArray, rng: np.random.Generator) -> tuple[IntArray, IntArray | None]:
    """Search for pivots under which the others fall evenly: random starts, then swaps that help."""
    n = len(members)
    own = scores[np.ix_(members, members)]
    owner = np.repeat(np.arange(n), own.shape[2])
    columns = own.reshape(n, -1)
    known = ~np.isnan(columns).any(axis=0)
    owner, columns = owner[known], columns[:, known]
    best_cost, best = (n + 1) / 2, None
    likely = expected_questions(n)[1]
    for m in sorted({likely, likely + 1, likely + 2, min(MOST_PIVOTS, round(n**0.5))}):
        for _ in range(RESTARTS if 2 <= m < n else 0):
            pivots = rng.choice(n, m, replace=False)
            cost, below = _cost(pivots, columns, owner)
            for _ in range(SWAPS):
                candidate = pivots.copy()
                candidate[rng.integers(m)] = rng.integers(n)
                if len(set(candidate.tolist())) < m:
                    continue
                new_cost, new_below = _cost(candidate, columns, owner)
                if new_cost < cost:
                    pivots, cost, below = candidate, new_cost, new_below
            if cost < best_cost:
                best_cost, best = cost, (members[pivots], below)
    return best if best is not None else (members, None)


def _cost(pivots: IntArray, columns: FloatArray, owner: IntArray) -> tuple[float, IntArray]:
    """Return the mean number of questions per batch with these pivots, and the pivot under which each expert falls."""
    n, m = len(columns), len(pivots)
    nearest = columns[pivots].argmin(axis=0)
    votes = np.zeros((n, m))
    np.add.at(votes, (owner, nearest), 1)
    below = votes.argmax(axis=1)
    below[pivots] = -1
    sizes = np.bincount(below[below >= 0], minlength=m)
    questions = np.array([expected_questions(int(size))[0] if size else 0.0 for size in sizes])
    # A batch that is nearer to another pivot asks all below that one before it comes to its own.
    detour = np.where(nearest == below[owner], 0, sizes[nearest])
    cost = np.where(below[owner] < 0, (m + 1) / 2, m + detour + questions[below[owner]])
    return float(cost.mean()), below
