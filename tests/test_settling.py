"""The settling tree: what it promises on any scores, and that it keeps the promise as experts change."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hge.events import Event, ExpertPromoted, ExpertUnmasked, TreeRebuilt
from hge.gate import FloatArray, Routes, Tree
from hge.pivots import build_tree, expected_questions, insert
from hge.settling import Scoreboard, SettlingOrganisation

PLACES, ROWS = 3, 4


@dataclass
class TableReplays:
    """Replay scores from a table [experts, owners, places, rows] that a test may change."""

    table: FloatArray
    trained_count: dict[int, int] = field(default_factory=dict)
    looks: int = 0

    def size(self, owner: int) -> int:
        return self.table.shape[2]

    def arrived(self, owner: int, place: int) -> int:
        return place

    def trained(self, expert: int) -> int:
        return self.trained_count.get(expert, 0)

    batch_is_mean_of_rows = False

    def batch_score(self, expert: int, owner: int, place: int) -> float:
        return float(self.table[expert, owner, place].mean())

    def row_scores(self, expert: int, owner: int, place: int) -> FloatArray:
        self.looks += 1
        return self.table[expert, owner, place]


tables = st.integers(2, 6).flatmap(
    lambda n: arrays(np.float64, (n, n, PLACES, ROWS), elements=st.floats(-50, 50), unique=True)
)


def full_board(table: FloatArray) -> Scoreboard:
    board = Scoreboard(TableReplays(table), PLACES)
    for _ in range(len(table)):
        board.grow()
    for owner in range(len(table)):
        for place in range(PLACES):
            for expert in (owner, *(e for e in range(len(table)) if e != owner)):
                board.look(expert, owner, place)
    return board


def check_nobody_is_masked(organised: Tree, table: FloatArray, board: Scoreboard) -> None:
    """No remembered batch or row reaches a wrong expert that the flat gate would have avoided."""
    n = len(table)
    for scores, settle in (
        (table.mean(axis=3), board.margins(organised).settle(ROWS)),
        (table.reshape(n, n, -1), board.margins(organised).settle(1)),
    ):
        owner = np.repeat(np.arange(n), scores.shape[2])
        columns = scores.reshape(n, -1)
        routes = organised.search(lambda ids, groups, s=columns: s[np.ix_(ids, groups)], columns.shape[1], settle)
        flat_is_right = columns.argmin(axis=0) == owner
        assert (routes.expert[flat_is_right] == owner[flat_is_right]).all()
        assert (routes.queried <= n).all()


@settings(deadline=None)
@given(tables, st.integers(0, 5))
def test_after_a_refresh_nothing_is_sent_wrong_that_the_flat_gate_sends_right(table: FloatArray, seed: int) -> None:
    board = full_board(table)
    tree = build_tree(range(len(table)), board.batch, np.random.default_rng(seed))
    assert sorted(tree.experts) == list(range(len(table)))
    check_nobody_is_masked(tree, table, board)


def separated(experts: int, rng: np.random.Generator) -> FloatArray:
    """Own rows near 0, others' near 30."""
    table = 30 + 3 * rng.normal(size=(experts, experts, PLACES, ROWS))
    table[np.arange(experts), np.arange(experts)] -= 30
    return table


def stream(organisation: SettlingOrganisation, replays: TableReplays, used: list[int], start: int = 0) -> None:
    for step, expert in enumerate(used, start):
        replays.trained_count[expert] = replays.trained(expert) + 1
        organisation.upkeep(step, expert)


def organised(experts: int, table: FloatArray) -> tuple[SettlingOrganisation, TableReplays, list[Event]]:
    """Let so many experts appear one after the other, each in use for 40 batches."""
    events: list[Event] = []
    replays = TableReplays(table)
    organisation = SettlingOrganisation(replays, events.append, 8, PLACES, np.random.default_rng(0))
    stream(organisation, replays, [0] * 40)
    for expert in range(1, experts):
        organisation.created(40 * expert, expert)
        stream(organisation, replays, [expert] * 40, start=40 * expert)
    return organisation, replays, events


def route_rows(organisation: SettlingOrganisation, rows: FloatArray) -> Routes:
    return organisation.route(lambda ids, groups: rows[np.ix_(ids, groups)], rows.shape[1], rows_per_group=1)


def test_experts_are_promoted_once_their_replay_says_so() -> None:
    organisation, _, events = organised(6, separated(6, np.random.default_rng(1)))
    assert sorted(organisation.tree.experts) == list(range(6))
    assert [e.expert for e in events if isinstance(e, ExpertPromoted)] == [1, 2, 3, 4, 5]
    assert [e for e in events if isinstance(e, TreeRebuilt)]
    assert not [e for e in events if isinstance(e, ExpertUnmasked)]
    check_nobody_is_masked(organisation.tree, organisation.replays.table, organisation.board)  # type: ignore[attr-defined]


def test_newcomer_whose_replay_would_go_elsewhere_is_not_promoted() -> None:
    table = separated(3, np.random.default_rng(1))
    table[2, 2] = 40  # worse on its own data than the others are
    organisation, _, events = organised(3, table)
    assert organisation.newcomers == [2]
    assert [e.expert for e in events if isinstance(e, ExpertPromoted)] == [1]


def test_newcomer_that_would_take_more_than_it_gains_is_not_promoted() -> None:
    table = separated(4, np.random.default_rng(1))
    table[3, :3] = -20  # suits everybody's data better than their owners do
    organisation, _, _ = organised(4, table)
    assert organisation.newcomers == [3]


def test_expert_that_has_changed_is_found_out_and_told() -> None:
    """Expert 0 goes on learning and comes to claim what expert 1 remembers; the old threshold would have let it."""
    table = separated(3, np.random.default_rng(1))
    organisation, replays, events = organised(3, table)
    claimed = table[:, 1].reshape(3, -1).copy()
    claimed[0] = table[0, 0].max() + 1  # below the old threshold, above the owner's own score
    assert (claimed[1] < claimed[0]).all()
    assert (route_rows(organisation, claimed).expert == 0).any(), "masked, were it not for the refresh"
    events.clear()  # what follows is the change's doing
    table[0, 1] = table[0, 0].max() + 1
    stream(organisation, replays, [0] * 60, start=200)
    unmasked = [e for e in events if isinstance(e, ExpertUnmasked)]
    assert {(e.expert, e.masked, e.threshold) for e in unmasked} == {(0, 1, "batch"), (0, 1, "row")}
    assert all(e.after < e.before for e in unmasked)
    assert (route_rows(organisation, claimed).expert == 1).all()
    check_nobody_is_masked(organisation.tree, table, organisation.board)


def test_upkeep_is_bounded_per_batch_and_rests_when_nothing_changes() -> None:
    table = separated(5, np.random.default_rng(1))
    organisation, replays, _ = organised(5, table)
    most = 0
    for step in range(400):
        before = replays.looks
        stream(organisation, replays, [4], start=1000 + step)
        most = max(most, replays.looks - before)
    assert most <= 2 * 8, "a look scores a remembered batch by its owner, too, where that is not known"
    settled = replays.looks
    for step in range(20):
        organisation.upkeep(5000 + step, 4)
    assert replays.looks == settled


def test_quiet_leaves_room_for_an_outlier_at_the_end_of_a_run() -> None:
    """A run of batches must not pass the moment at which, one by one, the next sweep would have begun."""
    organisation, replays, _ = organised(5, separated(5, np.random.default_rng(1)))
    while not (quiet := organisation.quiet(4)):
        stream(organisation, replays, [4], start=1000)
    replays.trained_count[4] += quiet + 1
    organisation.upkeep(2000, 4)
    assert not organisation.waiting
    assert organisation.swept is None
    replays.trained_count[4] += 1
    organisation.upkeep(2001, 4)
    assert organisation.swept == 4


def test_smaller_groups_need_lower_scores() -> None:
    """A mean over few rows scatters more; thresholds go from that of a batch to that of a row with 1/√n."""
    rng = np.random.default_rng(2)
    table = 30 + 6 * rng.normal(size=(3, 3, PLACES, ROWS))
    table[np.arange(3), np.arange(3)] -= 30
    margin = full_board(table).margin(0)
    thresholds = [margin.settle(rows) for rows in (2, 3, ROWS, 10 * ROWS)]
    assert thresholds == sorted(thresholds)
    assert thresholds[2] == thresholds[3]
    assert margin.settle(1) == margin.row < 30


def test_thresholds_are_made_once_for_groups_of_one_size() -> None:
    """Making them takes K² steps: with a thousand experts a hundred times as long as the search that needs them."""
    rng = np.random.default_rng(2)
    tree = build_tree(range(3), (board := full_board(rng.normal(size=(3, 3, PLACES, ROWS)))).batch, rng)
    margins, fresh = board.margins(tree), board.margins(tree)
    first = margins.settle(ROWS)
    assert margins.settle(ROWS) is first
    assert margins.settle(1) == fresh.settle(1) != first
    assert margins.settle(ROWS) == first


def test_few_questions_are_asked_on_separated_data() -> None:
    rng = np.random.default_rng(1)
    organisation, _, _ = organised(12, separated(12, rng))
    rows = separated(12, rng).reshape(12, -1)
    routes = route_rows(organisation, rows)
    np.testing.assert_array_equal(routes.expert, np.repeat(np.arange(12), PLACES * ROWS))
    assert routes.queried.mean() < 8


def test_expected_questions_are_those_of_the_best_split() -> None:
    assert expected_questions(1) == (1.0, 1)
    assert expected_questions(2) == (1.5, 2)
    assert expected_questions(3) == (2.0, 3)
    assert expected_questions(4)[0] == min(2.5, (1 + 2 + 3 + 3) / 4)
    assert expected_questions(1000)[0] < 20


def test_insertion_goes_down_the_nearest_pivots() -> None:
    tree = Tree()
    first, second = tree.add(0), tree.add(1)
    tree.add(2, parent=first)
    tree.add(3, parent=second)
    node = insert(tree, 4, {0: 9.0, 1: 2.0, 2: 1.0, 3: 5.0})
    assert tree.nodes[node].parent == second
