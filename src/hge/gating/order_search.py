"""Section 5.2's *Upper*: Algorithm 3 in many random orders on one score matrix, and the cheapest accurate tree.

Works on arrays, not tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from hge.gating.promotion import promote_lca
from hge.gating.tree import FloatArray, IntArray, Routes, Tree

WITHIN = 0.5
"""Largest loss of accuracy against the flat tree, in percentage points, at which a tree is eligible."""


@dataclass(frozen=True)
class OwnedBatches:
    """Scores of all experts on batches with known owners."""

    scores: FloatArray
    """[experts, batches]"""
    owner: IntArray
    """[batches]"""

    def of(self, owner: int) -> FloatArray:
        """Return the score columns of one owner's batches."""
        return self.scores[:, self.owner == owner]


@dataclass(frozen=True)
class TreeFigures:
    """Percentage of batches routed to their owner, and number of experts queried; means over owners."""

    accuracy: float
    experts_queried: float


def lca_tree(order: Sequence[int], training: OwnedBatches, replay: OwnedBatches, coverage: float) -> Tree:
    """Build HGE's tree by adding the experts in this order, with the paths of all training batches of each task."""
    tree = Tree()
    replays = {owner: replay.of(owner) for owner in order}
    trainings = {owner: training.of(owner) for owner in order}

    def steals(newcomer: int, owner: int) -> bool:
        return bool((select(tree, replays[owner]).expert == newcomer).any())

    tree.add(order[0])
    for expert in order[1:]:
        ends = Counter(select(tree, trainings[expert]).node.tolist())
        paths = Counter({tree.path(node): count for node, count in ends.items()})
        promote_lca(tree, expert, paths, coverage, steals)
    return tree


def figures(routes: Routes, owner: IntArray) -> TreeFigures:
    """Return the accuracy and cost of routes, with equal weight for each owner."""
    owners = np.unique(owner)
    right = [float((routes.expert[owner == o] == o).mean()) for o in owners]
    queried = [float(routes.queried[owner == o].mean()) for o in owners]
    return TreeFigures(100 * float(np.mean(right)), float(np.mean(queried)))


def tree_figures(tree: Tree, batches: OwnedBatches) -> TreeFigures:
    """Return the accuracy and cost of a tree searched by Algorithm 2."""
    return figures(select(tree, batches.scores), batches.owner)


def flat_tree(experts: int) -> Tree:
    """Return GE's flat tree."""
    tree = Tree()
    for expert in range(experts):
        tree.add(expert)
    return tree


@dataclass(frozen=True)
class Upper:
    """The cheapest of many trees with an accuracy close to the flat tree's, and the figures of all of them."""

    tree: Tree
    """Selected by the figures recorded on the test batches, as in the paper: a bound, and not a tree to choose."""
    selected: Tree
    """Selected on the training batches."""
    all_figures: list[TreeFigures]
    """On the test batches."""


class _Cheapest:
    """The cheapest tree so far whose accuracy on some batches is close to the flat tree's; the flat one at first."""

    def __init__(self, batches: OwnedBatches) -> None:
        self.batches, self.tree, self.cost = batches, flat_tree(len(batches.scores)), inf
        self.least = tree_figures(self.tree, batches).accuracy - WITHIN

    def offer(self, tree: Tree) -> TreeFigures:
        """Take a tree if it is cheaper and accurate enough; return its figures."""
        found = tree_figures(tree, self.batches)
        if found.accuracy >= self.least and found.experts_queried < self.cost:
            self.tree, self.cost = tree, found.experts_queried
        return found


def search_upper(
    training: OwnedBatches,
    replay: OwnedBatches,
    test: OwnedBatches,
    coverage: float,
    orders: int,
    rng: np.random.Generator,
    on_order: Callable[[int], None] = lambda done: None,
) -> Upper:
    """Try `orders` random orders."""
    experts, found = len(training.scores), []
    on_test, on_training = _Cheapest(test), _Cheapest(training)
    for done in range(1, orders + 1):
        tree = lca_tree(rng.permutation(experts).tolist(), training, replay, coverage)
        found.append(on_test.offer(tree))
        on_training.offer(tree)
        on_order(done)
    return Upper(on_test.tree, on_training.tree, found)


def statistics(all_figures: Sequence[TreeFigures]) -> dict[str, dict[str, float]]:
    """Return the rows of the paper's Table 3: spread of accuracy and cost over all trees, and their correlation."""
    from scipy import stats  # takes a second, and runs import this file

    accuracy = np.array([f.accuracy for f in all_figures])
    queried = np.array([f.experts_queried for f in all_figures])
    varied = accuracy.std() > 0 and queried.std() > 0  # the correlation with a constant is undefined
    pcc, scc = (float(f(accuracy, queried).statistic) if varied else 0.0 for f in (stats.pearsonr, stats.spearmanr))
    return {"accuracy": {"pcc": pcc, **_spread(accuracy)}, "experts_queried": {"scc": scc, **_spread(queried)}}


def _spread(values: FloatArray) -> dict[str, float]:
    """Return mean, standard deviation, median, interquartile range and median absolute deviation."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "median": float(np.median(values)),
        "iqr": float(np.subtract(*np.percentile(values, [75, 25]))),
        "mad": float(np.median(np.abs(values - np.median(values)))),
    }


def select(tree: Tree, scores: FloatArray) -> Routes:
    """Route all columns of a score matrix by Algorithm 2."""
    return tree.select(lambda ids, groups: scores[np.ix_(np.array(ids), groups)], scores.shape[1])
