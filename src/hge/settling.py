"""Beyond the paper: a tree whose experts know their own, kept true by replay. Numbers only.

The paper's tree goes wrong in two ways: an expert that has changed since it was placed masks others, and promotion
needs a rate tuned per scenario. Here the tree says whom to ask first. The search ends early only at an expert that
recognises the data, and leaves out only branches to which they surely do not belong; both are judged, with a distance
that is kept, by the experts' scores of each other's replay, which are looked up a few per batch. Promotion and the tree
itself follow from them, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hge.events import Emit, ExpertPromoted, ExpertUnmasked, TreeRebuilt
from hge.gate import FloatArray, Routes, ScoreExperts, Settle, Tree
from hge.pivots import build_tree, insert
from hge.promotion import Path, Replays

SWEEP_GROWTH = 1.25
"""An expert is looked at anew when it was trained on this many times the batches of its last sweep."""
OWN_SPREADS = 3.0
"""An expert's own batches are expected within so many standard deviations of their mean,"""
FOREIGN_SPREADS = 6.0
"""and those of others within so many of theirs; more, since ten remembered batches do not show all that will come."""
BRANCH_SPREADS = 9.0
"""A branch is given up only so many standard deviations beyond what its data show: a wrong turn cannot be mended."""
REBUILD_GROWTH = 1.25
"""The tree is built anew when it has grown to this many times the experts of the last time."""


class Scoreboard:
    """How every expert scores what every expert remembers: per batch, and the lowest row that is another's."""

    def __init__(self, replays: Replays, places: int) -> None:
        self.replays = replays
        self.places = places
        self.batch = np.full((0, 0, places), np.nan)
        """[expert, owner, place] score of a remembered batch."""
        self.low = np.full((0, 0, places), np.nan)
        """[expert, owner, place] the lowest score given to a row whose owner scores it lower still; inf: to none."""
        self.own_rows: dict[tuple[int, int], tuple[int, FloatArray]] = {}
        self.batch_rows = 1
        """Rows of a remembered batch."""

    def grow(self) -> None:
        """Make room for one more expert."""
        n = len(self.batch) + 1
        for name in ("batch", "low"):
            old, new = getattr(self, name), np.full((n, n, self.places), np.nan)
            new[: n - 1, : n - 1] = old
            setattr(self, name, new)

    def look(self, expert: int, owner: int, place: int) -> None:
        """Score one remembered batch."""
        if place >= self.replays.size(owner):
            return
        arrived = self.replays.arrived(owner, place)
        if expert == owner or self.own_rows.get((owner, place), (-1,))[0] != arrived:
            self.own_rows[owner, place] = arrived, self._score(owner, owner, place)
        if expert != owner:
            own, rows = self.own_rows[owner, place][1], self._score(expert, owner, place)
            self.low[expert, owner, place] = rows[own < rows].min(initial=np.inf)

    def _score(self, expert: int, owner: int, place: int) -> FloatArray:
        """Score a remembered batch as a whole, which goes on the board, and by rows, which are returned."""
        rows = self.replays.row_scores(expert, owner, place)
        self.batch_rows = max(self.batch_rows, len(rows))
        mean = self.replays.batch_is_mean_of_rows
        score = float(rows.mean()) if mean else self.replays.batch_score(expert, owner, place)
        self.batch[expert, owner, place] = score
        return rows

    def foreign_batches(self, expert: int, reference: int | None = None) -> FloatArray:
        """[owner, place] the expert's scores of what is others' and scored lower by them; inf elsewhere.

        With a reference, what the expert scores beyond the reference.
        """
        own = self.batch[np.arange(len(self.batch)), np.arange(len(self.batch))]
        scores = self.batch[expert] - (0.0 if reference is None else self.batch[reference])
        return np.where((own < self.batch[expert]) & ~np.isnan(scores), scores, np.inf)

    def foreign_rows(self, expert: int) -> FloatArray:
        """[owner, place] the lowest score that the expert gave to a row of another; inf where there is none."""
        return np.where(np.isnan(self.low[expert]), np.inf, self.low[expert])

    def margin(self, expert: int, reference: int | None = None) -> Margin:
        """Return how far the expert's own scores lie from those that it gives to what is others'.

        With a reference, all scores are differences from the reference's; there is no threshold for single rows then.
        """
        foreign = self.foreign_batches(expert, reference)
        own = self.batch[expert, expert] - (0.0 if reference is None else self.batch[reference, expert])
        places = [(expert, place) for place in range(self.places) if (expert, place) in self.own_rows]
        own_rows = [self.own_rows[key][1].max() for key in places]
        if not own_rows or np.isnan(own).all():
            return Margin(self.batch_rows, np.inf, 0.0, (), -np.inf)
        own_spread = float(np.nanstd(own))
        means, spreads = _means_and_spreads(foreign)
        others = tuple(zip(means.tolist(), np.maximum(spreads, own_spread).tolist(), strict=True))
        row = _between(float(max(own_rows)), float(self.foreign_rows(expert).min())) if reference is None else -np.inf
        return Margin(self.batch_rows, float(np.nanmean(own)), own_spread, others, row)

    def reach(self, tree: Tree, node: int, sibling: int) -> Reach:
        """Return how far a node's expert falls behind its sibling's on what is owned by the experts below the node."""
        expert, reference = tree.nodes[node].expert, tree.nodes[sibling].expert
        owners = sorted({tree.nodes[n].expert for n in tree.descendants(node)})
        differences = self.batch[expert, owners] - self.batch[reference, owners]
        known = [d[~np.isnan(d)] for d in differences]
        if not all(len(d) for d in known):
            return Reach(self.batch_rows, ((np.inf, 0.0),))
        return Reach(self.batch_rows, tuple((float(d.mean()), float(d.std())) for d in known))

    def margins(self, tree: Tree) -> Margins:
        """Return all margins that a search of this tree needs."""
        return Margins(
            {expert: self.margin(expert) for expert in tree.experts},
            {pair: self.margin(*pair) for pair in tree.references},
            {pair: self.reach(tree, *pair) for pair in tree.siblings},
        )


@dataclass(frozen=True)
class Margin:
    """Where an expert's own data end and others' begin, on the scale of its score."""

    batch_rows: int
    """Rows of a remembered batch."""
    own_mean: float
    own_spread: float
    """Mean and standard deviation of its score over the batches that it remembers."""
    others: tuple[tuple[float, float], ...]
    """The same for the batches of each other expert, as far as those score them lower."""
    row: float
    """The score at or below which a single row is surely its own."""

    def settle(self, rows: int) -> float:
        """Return the score at or below which a group of so many rows is surely the expert's own.

        A mean over n rows scatters as 1/√n: smaller groups than the remembered ones must keep a larger distance.

        >>> margin = Margin(batch_rows=100, own_mean=0.0, own_spread=1.0, others=((40.0, 2.0),), row=-3.0)
        >>> margin.settle(100), margin.settle(25), margin.settle(1)  # between 3 and 28, between 6 and 16, as given
        (15.5, 11.0, -3.0)
        """
        if rows == 1:
            return self.row
        wider = max(1.0, (self.batch_rows / rows) ** 0.5)
        lowest = min((mean - FOREIGN_SPREADS * wider * spread for mean, spread in self.others), default=np.inf)
        return _between(self.own_mean + OWN_SPREADS * wider * self.own_spread, lowest)


@dataclass(frozen=True)
class Reach:
    """How far behind a sibling the scores of a branch may be on data that belong into the branch."""

    batch_rows: int
    owners: tuple[tuple[float, float], ...]
    """Mean and standard deviation of the difference on the batches of each expert below."""

    def beyond(self, rows: int) -> float:
        """Return the difference above which a group of so many rows belongs to nobody below; of single rows, none."""
        if rows == 1:
            return np.inf
        wider = max(1.0, (self.batch_rows / rows) ** 0.5)
        return float(max(mean + BRANCH_SPREADS * wider * spread for mean, spread in self.owners))


@dataclass(frozen=True)
class Margins:
    """All that a search of one tree must know of the experts' scores."""

    alone: dict[int, Margin] = field(default_factory=dict)
    against: dict[tuple[int, int], Margin] = field(default_factory=dict)
    reaches: dict[tuple[int, int], Reach] = field(default_factory=dict)
    _settled: dict[int, Settle] = field(default_factory=dict, repr=False, compare=False)
    """Rows -> thresholds, of the last size only: with many experts, making them takes longer than a search."""

    def settle(self, rows: int) -> Settle:
        """Return the thresholds for groups of so many rows."""
        if rows not in self._settled:
            self._settled.clear()
            self._settled[rows] = Settle(
                {expert: margin.settle(rows) for expert, margin in self.alone.items()},
                {pair: margin.settle(rows) for pair, margin in self.against.items()},
                {pair: reach.beyond(rows) for pair, reach in self.reaches.items()},
            )
        return self._settled[rows]


@dataclass
class SettlingOrganisation:
    """Keeps a scoreboard of the replay at a bounded cost per batch; thresholds, promotion and tree follow from it."""

    replays: Replays
    emit: Emit
    looks_per_batch: int
    places: int
    rng: np.random.Generator
    tree: Tree = field(default_factory=Tree)

    def __post_init__(self) -> None:
        self.board = Scoreboard(self.replays, self.places)
        self.board.grow()
        self.tree.add(0)
        self.newcomers: list[int] = []
        self.margins = Margins()
        self.waiting: deque[int] = deque()
        self.sweep: deque[tuple[int, int, int]] = deque()
        self.swept: int | None = None
        self.trained_at_sweep: dict[int, int] = {}
        self.experts_at_build = 1
        self.last_used = 0

    def route(self, score: ScoreExperts, groups: int, *, rows_per_group: int) -> Routes:
        """Settling search, with the thresholds for groups of this size."""
        return self.tree.search(score, groups, self.margins.settle(rows_per_group))

    def created(self, step: int, expert: int) -> None:
        """Look at the newcomer as soon as possible."""
        self.board.grow()
        self.newcomers.append(expert)

    def accepted(self, step: int, newcomer: int, lower: bool, path: Path) -> bool:
        """Never promote on this: what the newcomer remembers will decide, in `upkeep`."""
        return False

    def upkeep(self, step: int, used: int) -> list[int]:
        """Go on with the sweep of the scoreboard by a few looks; at its end thresholds are set and experts promoted."""
        if used != self.last_used:
            self._look_again(self.last_used, growth=1.0)
            self.last_used = used
        self._look_again(used, growth=SWEEP_GROWTH)
        for _ in range(self.looks_per_batch):
            if not self.sweep:
                return self._end_sweep(step)
            self.board.look(*self.sweep.popleft())
        return []

    def quiet(self, used: int) -> int:
        """Count the batches before the expert will have learned enough for a sweep; none while one is going on."""
        if self.sweep or self.waiting or self.swept is not None or used != self.last_used:
            return 0
        until = int(SWEEP_GROWTH * self.trained_at_sweep.get(used, 0)) - self.replays.trained(used)
        return max(0, until - 1)  # with the last batch of a run an outlier may be trained on, too

    def _look_again(self, expert: int, growth: float) -> None:
        """Put an expert in line for a sweep, if it has learned enough since the last one."""
        if expert not in self.waiting and self.replays.trained(expert) > growth * self.trained_at_sweep.get(expert, 0):
            self.waiting.append(expert)

    def _end_sweep(self, step: int) -> list[int]:
        """Draw the conclusions of a finished sweep, and begin the next one."""
        promoted: list[int] = []
        if self.swept is not None:
            if self.swept in self.newcomers and self._pays(self.swept):
                self._promote(step, self.swept)
                promoted.append(self.swept)
            self._set_thresholds(step)
        self.swept = self.waiting.popleft() if self.waiting else None
        if self.swept is not None:
            self.trained_at_sweep[self.swept] = self.replays.trained(self.swept)
            self.sweep = deque(self._looks(self.swept))
        return promoted

    def _looks(self, expert: int) -> Iterator[tuple[int, int, int]]:
        """Yield all looks that a change of this expert calls for: (expert, owner, place)."""
        others = [e for e in range(len(self.board.batch)) if e != expert]
        yield from ((expert, expert, place) for place in range(self.places))
        for place in range(self.places):
            for other in others:
                yield other, expert, place
                yield expert, other, place

    def _set_thresholds(self, step: int) -> None:
        """Set every expert's thresholds; where an old one had come to mask another expert, say so."""
        before, self.margins = self.margins, self.board.margins(self.tree)
        board, rows = self.board, self.board.batch_rows
        for expert, margin in before.alone.items():
            after = self.margins.alone[expert]
            batches = board.foreign_batches(expert)
            self._tell_masked(step, expert, "batch", batches, margin.settle(rows), after.settle(rows))
            self._tell_masked(step, expert, "row", board.foreign_rows(expert), margin.settle(1), after.settle(1))
        # A tree that was built anew compares other pairs; what only the old one compared can mask nobody now.
        for pair in before.against.keys() & self.margins.against.keys():
            old, new = (margins.against[pair].settle(rows) for margins in (before, self.margins))
            self._tell_masked(step, pair[0], "difference", board.foreign_batches(*pair), old, new)

    def _tell_masked(self, step: int, expert: int, kind: str, foreign: FloatArray, old: float, new: float) -> None:
        """Say whose remembered batches the old threshold would have claimed for the expert."""
        # An infinite threshold is that of an expert which had not met another yet: nothing went wrong.
        for masked in np.flatnonzero((foreign <= old).any(axis=1)) if old < np.inf else ():
            count = int((foreign[masked] <= old).sum())
            self.emit(ExpertUnmasked(step, expert, int(masked), kind, count, old, new))

    def _pays(self, newcomer: int) -> bool:
        """Would most of its replay be sent to it, and less of the others' than it gains?"""
        experts, scores = self.tree.experts, self.board.batch
        gained = scores[newcomer, newcomer] < np.fmin.reduce(scores[experts, newcomer], axis=0)
        own = scores[experts, experts]
        right_now = own <= np.fmin.reduce(scores[np.ix_(experts, experts)], axis=0)
        lost = right_now & (scores[newcomer, experts] < own)
        return bool(gained.sum() > max(self.replays.size(newcomer) / 2, lost.sum()))

    def _promote(self, step: int, expert: int) -> None:
        self.newcomers.remove(expert)
        own = self.board.batch[:, expert]
        lower = own[expert] < np.fmin.reduce(own[self.tree.experts], axis=0)  # False where nothing is remembered
        rate = float(lower.sum()) / self.replays.size(expert)
        node = insert(self.tree, expert, {e: float(np.nanmean(own[e])) for e in self.tree.experts})
        self.emit(ExpertPromoted(step, expert, rate, self.tree.nodes[node].parent))
        experts = sorted(self.tree.experts)
        if len(experts) >= REBUILD_GROWTH * self.experts_at_build:
            before = self._questions()
            self.tree = build_tree(experts, self.board.batch[np.ix_(experts, experts)], self.rng)
            self.experts_at_build = len(experts)
            self.emit(TreeRebuilt(step, expert, len(experts), before, self._questions()))

    def _questions(self) -> float:
        """Return the mean number of experts asked per remembered batch."""
        experts = sorted(self.tree.experts)
        scores = self.board.batch[:, experts].reshape(len(self.board.batch), -1)
        scores = scores[:, ~np.isnan(scores[experts]).any(axis=0)]
        settle = self.board.margins(self.tree).settle(self.board.batch_rows)
        routes = self.tree.search(lambda ids, groups: scores[np.ix_(np.array(ids), groups)], scores.shape[1], settle)
        return float(routes.queried.mean())


def _means_and_spreads(scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and standard deviation of the finite numbers in each row that has any.

    >>> _means_and_spreads(np.array([[1.0, 3.0, np.inf], [np.inf, np.inf, np.inf]]))
    (array([2.]), array([1.]))
    """
    finite = np.isfinite(scores)
    scores, finite = scores[finite.any(axis=1)], finite[finite.any(axis=1)]
    count = finite.sum(axis=1)
    means = np.where(finite, scores, 0.0).sum(axis=1) / count
    squares = np.where(finite, (np.where(finite, scores, 0.0) - means[:, None]) ** 2, 0.0).sum(axis=1)
    return means, np.sqrt(squares / count)


def _between(own: float, foreign: float) -> float:
    """Return a threshold below the lowest foreign score: half way to the highest own one, if that is lower still.

    >>> _between(2.0, 4.0), _between(2.0, 1.5) < 1.5
    (3.0, True)
    """
    return (own + foreign) / 2 if own < foreign else float(np.nextafter(foreign, -np.inf))
