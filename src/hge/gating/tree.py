"""The gate: a tree of expert ids, and the routing of batches or samples through it. No tensors here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

ScoreExperts = Callable[[Sequence[int] | IntArray, IntArray], FloatArray]
"""(expert ids, groups) -> finite scores [ids, groups], lower is better. A batch is one group, single samples many."""


ROOT = 0


@dataclass(frozen=True)
class Routes:
    """The expert chosen for each group, and the scores computed to find it."""

    expert: IntArray
    """[groups] the chosen expert."""
    node: IntArray
    """[groups] the node of the chosen expert; `Tree.path` returns the path to it."""
    scores: FloatArray
    """[experts, groups] the computed scores; inf where an expert was not queried."""

    @classmethod
    def flat(cls, expert: IntArray, scores: FloatArray) -> Routes:
        """Return routes in a flat tree, where expert e is node e + 1."""
        return cls(expert, expert + 1, scores)

    @property
    def queried(self) -> IntArray:
        """[groups] number of distinct experts whose score was computed."""
        counts: IntArray = np.isfinite(self.scores).sum(axis=0)
        return counts


@dataclass(frozen=True)
class Node:
    """A node of the tree. An expert may have several nodes."""

    expert: int
    parent: int


@dataclass
class Tree:
    """The promoted experts. GE's tree is flat: every expert is a child of the root.

    >>> tree = Tree()
    >>> first, second = tree.add(0), tree.add(1)
    >>> below_first = tree.add(2, parent=first)
    >>> scores = np.array([[1.0, 5.0], [4.0, 2.0], [0.5, 0.0]])  # [experts, groups]
    >>> routes = tree.select(lambda ids, groups: scores[np.ix_(ids, groups)], groups=2)
    >>> routes.expert, routes.queried  # the second group never meets expert 2, which stands below expert 0
    (array([2, 1]), array([3, 2]))
    """

    nodes: list[Node] = field(default_factory=lambda: [Node(expert=-1, parent=-1)])
    children: list[list[int]] = field(default_factory=lambda: [[]])
    _arrays: dict[int, IntArray] = field(default_factory=dict, repr=False, compare=False)
    _owners: IntArray = field(default_factory=lambda: np.array([-1]), repr=False, compare=False)

    @property
    def owners(self) -> IntArray:
        """[nodes] Expert of each node; -1 at the root. Cached, since building it can take longer than a search."""
        if len(self._owners) != len(self.nodes):
            self._owners = np.array([node.expert for node in self.nodes], dtype=np.int64)
        return self._owners

    def _children_of(self, node: int) -> IntArray:
        """Return a node's children as an array, cached for the same reason."""
        if len(self._arrays.get(node, ())) != len(self.children[node]):
            self._arrays[node] = np.array(self.children[node], dtype=np.int64)
        return self._arrays[node]

    @property
    def experts(self) -> list[int]:
        """The distinct experts in the tree, in order of their first node."""
        return list(dict.fromkeys(node.expert for node in self.nodes[1:]))

    def add(self, expert: int, parent: int = ROOT) -> int:
        """Add `expert` as the last child of `parent`, and return its new node."""
        node = len(self.nodes)
        self.nodes.append(Node(expert, parent))
        self.children.append([])
        self.children[parent].append(node)
        return node

    def replace(self, expert: int, by: int) -> None:
        """Put an expert in the place of another, at all of its nodes."""
        self.nodes = [Node(by, node.parent) if node.expert == expert else node for node in self.nodes]
        self._owners = np.array([node.expert for node in self.nodes], dtype=np.int64)

    def path(self, node: int) -> tuple[int, ...]:
        """Return the nodes from just below the root to `node`."""
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node].parent
        return tuple(reversed(path))

    def as_json(self) -> list[list[int]]:
        """Return [expert, parent] of every node, the root first."""
        return [[node.expert, node.parent] for node in self.nodes]

    @classmethod
    def from_json(cls, nodes: list[list[int]]) -> Tree:
        """Read a tree written by `as_json`."""
        tree = cls()
        for expert, parent in nodes[1:]:
            tree.add(expert, parent)
        return tree

    def reached(self, ends: IntArray) -> FloatArray:
        """Return, for each node, the percentage of groups routed to it or to a node below it."""
        counts = np.bincount(ends[ends > ROOT], minlength=len(self.nodes)).astype(np.float64)
        for node in range(len(self.nodes) - 1, ROOT, -1):  # children come after their parents
            counts[self.nodes[node].parent] += counts[node]
        return 100 * counts / max(len(ends), 1)

    def descendants(self, node: int) -> list[int]:
        """Return all nodes below `node`."""
        found = list(self.children[node])
        for child in found:
            found += self.children[child]
        return found

    def select(self, score: ScoreExperts, groups: int) -> Routes:
        """HGE_forward (Algorithm 2): from the root, follow the best child while it improves.

        All groups descend at once; the loop is over the nodes they have reached. Each expert is queried once.
        """
        answers = _Answers(score, 1 + int(self.owners.max()), groups)
        best, node = np.full(groups, np.inf), np.full(groups, ROOT)
        frontier = [(ROOT, np.arange(groups))]
        while frontier:
            n, members = frontier.pop()
            if not self.children[n] or not len(members):
                continue
            children = self._children_of(n)
            scores = answers.ask(self.owners[children], members)
            choice = scores.argmin(axis=0)
            lowest = scores[choice, np.arange(len(members))]
            improves = lowest < best[members]
            members, choice = members[improves], choice[improves]
            best[members] = lowest[improves]
            node[members] = children[choice]  # the paper never advances n here; see docs/paper.md, reading 3
            frontier += [(int(children[i]), members[choice == i]) for i in np.unique(choice)]
        return Routes(self.owners[node], node, answers.scores)

    def way_to(self, node: int) -> tuple[list[tuple[int, int]], int]:
        """Return sufficient conditions for `select` to end at `node`, and the number of experts it then queries.

        The conditions are a list of (expert, other): the expert's score must be below that of the other.

        >>> tree = Tree()
        >>> first, second = tree.add(0), tree.add(1)
        >>> tree.way_to(tree.add(2, parent=first))  # below the root 0 is best, and below 0 there is 2, which is better
        ([(0, 1), (2, 0)], 3)
        """
        below: list[tuple[int, int]] = []
        asked: set[int] = set()
        for here, there in pairwise((ROOT, *self.path(node), node)):  # the last step stays at the node
            chosen = self.nodes[there].expert
            rivals = [self.nodes[child].expert for child in self.children[here]]
            asked.update(rivals)
            if here not in (ROOT, there):
                rivals.append(self.nodes[here].expert)
            below += [(chosen, rival) for rival in dict.fromkeys(rivals) if rival != chosen]
        return below, len(asked)


class _Answers:
    """Cache of the scores computed so far: an expert scores a group once, however many nodes it has."""

    def __init__(self, score: ScoreExperts, experts: int, groups: int) -> None:
        self._score = score
        self.scores = np.full((experts, groups), np.inf)

    def ask_one(self, expert: int, groups: IntArray) -> FloatArray:
        """Return one expert's scores [groups]."""
        unknown = groups[np.isinf(self.scores[expert, groups])]
        if len(unknown):
            self.scores[expert, unknown] = self._score([expert], unknown)[0]
        answered: FloatArray = self.scores[expert, groups]
        return answered

    def ask(self, ids: IntArray, groups: IntArray) -> FloatArray:
        """Return the scores [ids, groups]."""
        cells = np.ix_(ids, groups)
        if np.isinf(self.scores[cells]).all():
            answered = self.scores[cells] = self._score(ids, groups)
            return answered
        return np.stack([self.ask_one(i, groups) for i in ids.tolist()])
