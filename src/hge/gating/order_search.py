"""Section 5.2's *Upper*: Algorithm 3 in many random orders over one score matrix; the cheapest good tree wins.

Numbers only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hge.gating.promotion import promote_lca
from hge.gating.tree import FloatArray, IntArray, Routes, Tree

WITHIN = 0.5
"""A tree is good if its accuracy is within so many points of the flat one's."""


@dataclass(frozen=True)
class OwnedBatches:
    """Scores of all experts on batches whose owners are known."""

    scores: FloatArray
    """[experts, batches]"""
    owner: IntArray
    """[batches]"""
    rows: IntArray
    """[batches] their sizes"""

    def of(self, owner: int) -> FloatArray:
        """Return the columns of one owner."""
        return self.scores[:, self.owner == owner]


@dataclass(frozen=True)
class TreeFigures:
    """How a tree does on some batches: percentage sent to their owner, and experts asked; means over owners."""

    accuracy: float
    experts_queried: float


def lca_tree(order: Sequence[int], training: OwnedBatches, replay: OwnedBatches, coverage: float) -> Tree:
    """Build HGE's tree by adding the experts in this order; paths are those of all training batches of a task."""
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
    """Return accuracy and cost of routes, each owner counting alike."""
    owners = np.unique(owner)
    right = [float((routes.expert[owner == o] == o).mean()) for o in owners]
    queried = [float(routes.queried[owner == o].mean()) for o in owners]
    return TreeFigures(100 * float(np.mean(right)), float(np.mean(queried)))


def tree_figures(tree: Tree, batches: OwnedBatches) -> TreeFigures:
    """Return accuracy and cost of a tree that is searched by Algorithm 2."""
    return figures(select(tree, batches.scores), batches.owner)


def flat_tree(experts: int) -> Tree:
    """Return GE's tree."""
    tree = Tree()
    for expert in range(experts):
        tree.add(expert)
    return tree


@dataclass(frozen=True)
class Upper:
    """The cheapest of many trees whose accuracy is close to the flat one's, and what all of them were like."""

    tree: Tree
    all_figures: list[TreeFigures]
    """On the batches that are reported; the tree was selected on others."""


def search_upper(
    training: OwnedBatches,
    replay: OwnedBatches,
    test: OwnedBatches,
    coverage: float,
    orders: int,
    rng: np.random.Generator,
    on_order: Callable[[int], None] = lambda done: None,
) -> Upper:
    """Try so many random orders; select on the replay, report on the test batches."""
    experts = len(training.scores)
    least = tree_figures(flat_tree(experts), replay).accuracy - WITHIN
    best, best_cost, found = None, np.inf, []
    for done in range(1, orders + 1):
        tree = lca_tree(rng.permutation(experts).tolist(), training, replay, coverage)
        on_replay = tree_figures(tree, replay)
        found.append(tree_figures(tree, test))
        if on_replay.accuracy >= least and on_replay.experts_queried < best_cost:
            best, best_cost = tree, on_replay.experts_queried
        on_order(done)
    return Upper(best if best is not None else flat_tree(experts), found)


def statistics(all_figures: Sequence[TreeFigures]) -> dict[str, dict[str, float]]:
    """Return the rows of the paper's Table 3: spread of accuracy and cost over all trees, and how they go together."""
    accuracy = np.array([f.accuracy for f in all_figures])
    queried = np.array([f.experts_queried for f in all_figures])
    varied = accuracy.std() > 0 and queried.std() > 0  # a constant goes together with nothing
    pcc, scc = (float(f(accuracy, queried).statistic) if varied else 0.0 for f in (stats.pearsonr, stats.spearmanr))
    return {"accuracy": {"pcc": pcc, **_spread(accuracy)}, "experts_queried": {"scc": scc, **_spread(queried)}}


def _spread(values: FloatArray) -> dict[str, float]:
    """Mean, standard deviation, median, interquartile range and median absolute deviation."""
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "median": float(np.median(values)),
        "iqr": float(stats.iqr(values)),
        "mad": float(stats.median_abs_deviation(values)),
    }


def select(tree: Tree, scores: FloatArray) -> Routes:
    """Route all columns of a score matrix by Algorithm 2."""
    return tree.select(lambda ids, groups: scores[np.ix_(np.array(ids), groups)], scores.shape[1])
