"""Shortlists: everybody's sketch says who is asked."""

from __future__ import annotations

import numpy as np

from hge.core.events import Event, ShortlistSet
from hge.gating.shortlist import ENOUGH, KEPT, MOST_BATCHES, Shortlist, shortest
from hge.gating.tree import FloatArray


class Replays:
    """Sketches out of a table [experts, owner, place]."""

    def __init__(self, table: FloatArray, rows: int = 4) -> None:
        self.table, self.rows, self.asked = table, rows, 0

    def size(self, owner: int) -> int:
        return self.table.shape[2]

    def sketches(self, experts: int, owner: int, place: int) -> tuple[FloatArray, FloatArray]:
        self.asked += 1
        whole = self.table[:experts, owner, place]
        return whole, np.repeat(whole[:, None], self.rows, axis=1)


def own_first(experts: int, places: int = 10) -> FloatArray:
    """Every expert knows its own best."""
    return np.where(np.eye(experts, dtype=bool), 0.0, 1.0)[:, :, None].repeat(places, axis=2)


def test_lengths_are_the_shortest_that_keep_what_is_remembered() -> None:
    events: list[Event] = []
    table = own_first(8)
    table[3, 5, :2] = -1.0  # expert 3 has a better sketch of two batches of expert 5
    shortlist = Shortlist(Replays(table), events.append)
    shortlist.fit(step=7, experts=8, trained=100)
    assert (shortlist.batch, shortlist.row, shortlist.batch_rows) == (2, 2, 4)
    assert events == [ShortlistSet(7, 8, 2, 2)]


def test_one_batch_of_an_expert_may_be_anothers() -> None:
    table = own_first(8)
    table[:, 5, 0] = np.arange(8) - 9.0  # all others know it better than its owner
    table[5, 5, 0] = 0.0
    shortlist = Shortlist(Replays(table), lambda event: None)
    shortlist.fit(0, 8, 100)
    assert shortlist.batch == 1
    few = Shortlist(Replays(table[:, :, : ENOUGH - 1]), lambda event: None)
    few.fit(0, 8, 100)
    assert few.batch == 8, "of so few none is left out"


def test_a_share_may_be_lost() -> None:
    ranks = np.zeros(2000, np.int64)
    ranks[: int((1 - KEPT) * 2000)] = 9
    assert shortest(ranks) == 1
    ranks[: int((1 - KEPT) * 2000) + 1] = 9
    assert shortest(ranks) == 10


def test_many_experts_are_not_all_looked_up() -> None:
    replays = Replays(own_first(300))
    Shortlist(replays, lambda event: None).fit(0, 300, 0)
    assert replays.asked <= MOST_BATCHES


def test_when_the_lengths_are_due() -> None:
    shortlist = Shortlist(Replays(own_first(3)), lambda event: None)
    assert not shortlist.due(experts=1, trained=50), "nothing to choose from"
    assert shortlist.due(experts=2, trained=50)
    shortlist.fit(0, 2, 100)
    assert not shortlist.due(2, 124)
    assert shortlist.due(2, 125)
    assert shortlist.due(3, 101)
    quiet = shortlist.batches_until_due(2, 100)
    assert 0 < quiet < 25
    assert not shortlist.due(2, 100 + quiet + 1)


def test_few_rows_are_not_taken_for_a_batch() -> None:
    shortlist = Shortlist(Replays(own_first(8)), lambda event: None, batch=1, row=3, batch_rows=32)
    assert [shortlist.length(rows, experts=8) for rows in (1, 16, 17, 32, 128)] == [3, 3, 1, 1, 1]
    assert shortlist.length(1, experts=5) == 5, "more than half: all"
