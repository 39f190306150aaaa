"""The gate: a tree of expert ids, and the way of a batch or a sample through it. Sees numbers, not tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ScoreExperts = Callable[[Sequence[int]], FloatArray]
"""Expert ids -> scores [ids, groups], lower is more suitable. A batch is one group; single samples are many."""

ROOT = 0


@dataclass(frozen=True)
class Routes:
    """Where each group ended, and what it took to get there."""

    expert: IntArray
    """[groups] the chosen expert."""
    node: IntArray
    """[groups] the node it was found at; `Tree.path` leads there."""
    scores: FloatArray
    """[experts, groups] the scores that were computed, inf where an expert was not asked."""

    @property
    def queried(self) -> IntArray:
        """[groups] number of distinct experts whose score was computed."""
        counts: IntArray = np.isfinite(self.scores).sum(axis=0)
        return counts


@dataclass(frozen=True)
class Node:
    """A place in the tree. An expert may stand in several places."""

    expert: int
    parent: int


@dataclass
class Tree:
    """The promoted experts. GE's is flat: every expert stands right under the root.

    >>> tree = Tree()
    >>> first, second = tree.add(0), tree.add(1)
    >>> below_first = tree.add(2, parent=first)
    >>> scores = np.array([[1.0, 5.0], [4.0, 2.0], [0.5, 0.0]])  # [experts, groups]
    >>> routes = tree.select(lambda ids: scores[list(ids)])
    >>> routes.expert, routes.queried  # the second group never meets expert 2, which stands below expert 0
    (array([2, 1]), array([3, 2]))
    """

    nodes: list[Node] = field(default_factory=lambda: [Node(expert=-1, parent=-1)])
    children: list[list[int]] = field(default_factory=lambda: [[]])

    @property
    def experts(self) -> list[int]:
        """The distinct experts that stand in it, in order of promotion."""
        return list(dict.fromkeys(node.expert for node in self.nodes[1:]))

    def add(self, expert: int, parent: int = ROOT) -> int:
        """Place `expert` under a node and return its new node."""
        node = len(self.nodes)
        self.nodes.append(Node(expert, parent))
        self.children.append([])
        self.children[parent].append(node)
        return node

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from just below the root to `node`."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return tuple(reversed(path))

    def select(self, score: ScoreExperts) -> Routes:
        """HGE_forward (Algorithm 2): from the root, follow the best child while it improves.

        All groups walk at once; the loop is over the nodes they stand at. Each expert is asked once.
        """
        table = _ScoreTable(score)
        groups = np.arange(table.rows([self.nodes[c].expert for c in self.children[ROOT]]).shape[1])
        best = np.full(len(groups), np.inf)
        node = np.full(len(groups), ROOT)
        asked = np.zeros((1 + max(self.experts), len(groups)), dtype=bool)
        frontier = [(ROOT, groups)]
        while frontier:
            n, members = frontier.pop()
            children = np.array(self.children[n], dtype=np.int64)
            if not len(children) or not len(members):
                continue
            ids = [self.nodes[c].expert for c in children]
            scores = table.rows(ids)[:, members]
            asked[np.ix_(ids, members)] = True
            choice = scores.argmin(axis=0)
            lowest = scores[choice, np.arange(len(members))]
            # A first child is taken whatever its score: e_best does not exist yet.
            improves = (lowest < best[members]) | (n == ROOT)
            members, choice = members[improves], choice[improves]
            best[members] = lowest[improves]
            node[members] = children[choice]  # the paper never advances n here; see docs/paper.md, reading 3
            frontier += [(int(c), members[choice == i]) for i, c in enumerate(children)]
        expert = np.array([n.expert for n in self.nodes], dtype=np.int64)[node]
        return Routes(expert, node, table.where(asked))


class _ScoreTable:
    """Asks each expert once, however many places it stands in."""

    def __init__(self, score: ScoreExperts) -> None:
        self._score = score
        self._rows: dict[int, FloatArray] = {}

    def rows(self, ids: Sequence[int]) -> FloatArray:
        """Return the scores [ids, groups]."""
        unknown = [i for i in dict.fromkeys(ids) if i not in self._rows]
        if unknown:
            # A score that is not a number suits nobody.
            self._rows |= dict(zip(unknown, np.nan_to_num(self._score(unknown), nan=_WORST), strict=True))
        return np.stack([self._rows[i] for i in ids])

    def where(self, asked: npt.NDArray[np.bool_]) -> FloatArray:
        """Return [experts, groups]: the scores that a group asked for, inf elsewhere."""
        full = np.full(asked.shape, np.inf)
        for i, row in self._rows.items():
            full[i] = np.where(asked[i], row, np.inf)
        return full


_WORST = float(np.finfo(np.float64).max)
