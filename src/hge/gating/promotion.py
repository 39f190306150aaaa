"""Promotion of newcomers: when, and to which position in the tree. The paper's two policies, without tensors.

GE is HGE with a flat policy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from hge.core.config import LearnerConfig
from hge.core.events import Emit, ExpertPromoted
from hge.gating.shortlist import Shortlist
from hge.gating.tree import ROOT, Routes, ScoreExperts, Tree

Path = tuple[int, ...]


class Replays(Protocol):
    """The organisation's view of the experts: their scores of each other's replay."""

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""

    def batch_score(self, expert: int, owner: int, place: int) -> float:
        """Return the expert's score of a batch in the owner's replay, as one group."""


@dataclass
class Probation:
    """A newcomer's record: how often its score was lower than that of the gate's choice, over the last batches.

    >>> probation = Probation(window=4)
    >>> for lower in (False, True, True, True):
    ...     probation.record(lower, path=(1,))
    >>> probation.rate, probation.passed(0.5)
    (0.75, True)
    >>> Probation(window=4).passed(0.0)  # the window must be full
    False
    """

    window: int
    lower: deque[bool] = field(default_factory=deque)
    paths: Counter[Path] = field(default_factory=Counter)
    """Number of its batches by path through the tree."""

    def record(self, lower: bool, path: Path) -> None:
        """Record the outcome and the path of a batch that it accepted."""
        self.lower.append(lower)
        self.paths[path] += 1
        if len(self.lower) > self.window:
            self.lower.popleft()

    @property
    def rate(self) -> float:
        """Share of the window in which the newcomer's score was lower."""
        return sum(self.lower) / len(self.lower) if self.lower else 0.0

    @property
    def accepted(self) -> int:
        """Number of batches that it accepted."""
        return self.paths.total()

    def passed(self, promotion_rate: float) -> bool:
        """Return whether the window is full and the rate exceeds ε_promotion."""
        return len(self.lower) == self.window and self.rate > promotion_rate


@dataclass
class Organisation:
    """Promotion by the window, flat (GE) or by Algorithm 3 (HGE); routing by Algorithm 2."""

    replays: Replays
    emit: Emit
    window: int
    promotion_rate: float
    path_coverage: float | None
    """None: flat."""
    by_replay: bool = False
    """Promote as soon as that improves the routing of the replay, even if the window is not full."""
    shortlist: Shortlist | None = None
    """Selects the experts to query; None: all."""
    tree: Tree = field(default_factory=Tree)
    probations: dict[int, Probation] = field(default_factory=dict)
    """Newcomers, in the order of their creation."""

    def __post_init__(self) -> None:
        self.tree.add(0)

    @classmethod
    def of(cls, config: LearnerConfig, replays: Replays, emit: Emit, shortlist: Shortlist | None) -> Organisation:
        """Return the organisation specified by the settings, with one expert."""
        flat = config.organisation != "lca"
        return cls(
            replays,
            emit,
            config.promotion_window,
            config.promotion_rate,
            path_coverage=None if flat else config.path_coverage,
            by_replay=flat and config.promote_by_replay,
            shortlist=shortlist,
        )

    @property
    def newcomers(self) -> list[int]:
        """The experts on probation."""
        return list(self.probations)

    def route(self, score: ScoreExperts, sketch: ScoreExperts, groups: int, *, rows_per_group: int) -> Routes:
        """HGE_forward for all groups; with a shortlist, the best of the experts with the best sketches."""
        if self.shortlist is None:
            return self.tree.select(score, groups)
        experts, everywhere = np.array(self.tree.experts), np.arange(groups)
        chosen = self.shortlist.choose(sketch(experts, everywhere), rows_per_group)
        scores = np.full((1 + int(experts.max()), groups), np.inf)
        for expert, asked in zip(experts, chosen, strict=True):
            if asked.any():
                scores[expert, asked] = score([int(expert)], everywhere[asked])[0]
        best = scores.argmin(axis=0)
        place = {node.expert: number for number, node in enumerate(self.tree.nodes)}
        return Routes(best, np.array([place[int(expert)] for expert in best]), scores)

    def created(self, expert: int) -> None:
        """Begin a probation."""
        self.probations[expert] = Probation(self.window)

    def accepted(self, step: int, newcomer: int, lower: bool, path: Path) -> bool:
        """Record the outcome and the path; promote the newcomer if it has passed."""
        probation = self.probations[newcomer]
        probation.record(lower, path)
        if not (probation.passed(self.promotion_rate) or (self.by_replay and self._pays(newcomer))):
            return False
        del self.probations[newcomer]
        if self.path_coverage is None:
            node = self.tree.add(newcomer, parent=ROOT)
        else:
            node = promote_lca(self.tree, newcomer, probation.paths, self.path_coverage, self._steals)
        self.emit(ExpertPromoted(step, newcomer, probation.rate, self.tree.nodes[node].parent))
        return True

    def merged(self, expert: int, into: int) -> None:
        """Put an expert in the place of another: it is on probation only if both are."""
        if expert not in self.probations:
            self.probations.pop(into, None)
        self.probations.pop(expert, None)
        self.tree.replace(expert, into)

    def state(self) -> dict[str, Any]:
        """Return the tree and the probations as JSON values."""
        probations = {
            str(expert): {"lower": list(p.lower), "paths": [[list(path), count] for path, count in p.paths.items()]}
            for expert, p in self.probations.items()
        }
        return {"tree": self.tree.as_json(), "probations": probations}

    def load_state(self, facts: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.tree = Tree.from_json(facts["tree"])
        for expert, fact in facts["probations"].items():
            paths = Counter({tuple(path): count for path, count in fact["paths"]})
            self.probations[int(expert)] = Probation(self.window, deque(fact["lower"]), paths)

    def _pays(self, newcomer: int) -> bool:
        """Return whether a newcomer would get most of its own replay, and more of it than of the others' replay.

        Tested after 1, 2, 4, 8, … accepted batches.
        """
        if self.probations[newcomer].accepted.bit_count() > 1:  # at the 1st, 2nd, 4th, 8th … batch
            return False
        gained = sum(
            self.replays.batch_score(newcomer, newcomer, place)
            < min(self.replays.batch_score(expert, newcomer, place) for expert in self.tree.experts)
            for place in range(self.replays.size(newcomer))
        )
        if gained <= self.replays.size(newcomer) / 2:
            return False
        lost = sum(
            self.replays.batch_score(newcomer, owner, place) < self.replays.batch_score(owner, owner, place)
            for owner in self.tree.experts
            for place in range(self.replays.size(owner))
        )
        return gained > lost

    def _steals(self, newcomer: int, owner: int) -> bool:
        """Return whether any batch of the owner's replay would be routed to the newcomer."""
        routes = self.tree.select(
            lambda ids, places: np.array(
                [[self.replays.batch_score(expert, owner, int(place)) for place in places] for expert in ids]
            ),
            self.replays.size(owner),
        )
        return bool((routes.expert == newcomer).any())


def promote_lca(
    tree: Tree,
    expert: int,
    paths: Counter[Path],
    coverage: float,
    steals: Callable[[int, int], bool],
) -> int:
    """Expert promotion in HGE (Algorithm 3): insert below the last node that the paths of its batches share.

    >>> tree = Tree()
    >>> first, second = tree.add(0), tree.add(1)
    >>> node = promote_lca(tree, 2, Counter({(first,): 99, (second,): 1}), 0.98, lambda new, old: old == 0)
    >>> tree.nodes[node].parent == first  # one path in a hundred is an outlier
    True
    """
    if len(tree.experts) == 1:
        return tree.add(expert, parent=ROOT)

    # Insert expert into tree
    parent = lowest_common_ancestor(frequent_paths(paths, coverage))
    node = tree.add(expert, parent)

    # Add backward connections
    maskable = {tree.nodes[n].expert for n in tree.descendants(parent) if n != node}
    for masked in sorted(maskable):
        if steals(expert, masked):
            tree.add(masked, parent=node)
    return node


def frequent_paths(paths: Counter[Path], coverage: float) -> list[Path]:
    """Return the most frequent paths that together cover more than `coverage` of the batches.

    >>> frequent_paths(Counter({(1, 2): 70, (1, 3): 29, (4,): 1}), 0.98)
    [(1, 2), (1, 3)]
    """
    kept: list[Path] = []
    total, cumulated = paths.total(), 0
    for path, count in sorted(paths.items(), key=lambda item: (-item[1], item[0])):
        kept.append(path)
        cumulated += count
        if cumulated > coverage * total:
            break
    return kept


def lowest_common_ancestor(paths: list[Path]) -> int:
    """Return the last node that all paths share, or the root.

    >>> lowest_common_ancestor([(1, 2), (1, 3)]), lowest_common_ancestor([(1,), (4,)])
    (1, 0)
    """
    shared = ROOT
    for nodes in zip(*paths, strict=False):
        if len(set(nodes)) > 1:
            break
        shared = nodes[0]
    return shared
