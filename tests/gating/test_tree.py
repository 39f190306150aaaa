from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hge.gating.tree import ROOT, FloatArray, IntArray, Tree

score_tables = st.integers(1, 8).flatmap(
    lambda experts: st.integers(1, 6).flatmap(
        lambda groups: arrays(np.float64, (experts, groups), elements=st.floats(-100, 100))
    )
)


@st.composite
def trees(draw: st.DrawFn, experts: int) -> Tree:
    """A random tree in which each expert stands once, and some a second time."""
    tree = Tree()
    for expert in range(experts):
        tree.add(expert, parent=draw(st.integers(0, len(tree.nodes) - 1)))
    for _ in range(draw(st.integers(0, 3))):
        tree.add(draw(st.integers(0, experts - 1)), parent=draw(st.integers(0, len(tree.nodes) - 1)))
    return tree


class Asked:
    """A score matrix that remembers who was asked about what."""

    def __init__(self, scores: FloatArray) -> None:
        self.scores = scores
        self.times = np.zeros(scores.shape, dtype=int)

    def __call__(self, ids: list[int], groups: IntArray) -> FloatArray:
        self.times[np.ix_(ids, groups)] += 1
        return self.scores[np.ix_(ids, groups)]

    @property
    def at_most_once(self) -> bool:
        return bool((self.times <= 1).all())


def walk(tree: Tree, score: FloatArray) -> tuple[int, int, int]:
    """Algorithm 2 for one group, to the letter but for advancing n: (expert, node, experts queried)."""
    node, best, queried = ROOT, None, set()
    while tree.children[node]:
        queried |= {tree.nodes[c].expert for c in tree.children[node]}
        child = min(tree.children[node], key=lambda c: score[tree.nodes[c].expert])
        if best is not None and not score[tree.nodes[child].expert] < best:
            break
        node, best = child, score[tree.nodes[child].expert]
    return tree.nodes[node].expert, node, len(queried)


@given(score_tables)
def test_flat_tree_selects_the_lowest_score(scores: FloatArray) -> None:
    tree = Tree()
    for expert in range(len(scores)):
        tree.add(expert)
    routes = tree.select(lambda ids, groups: scores[np.ix_(ids, groups)], scores.shape[1])
    np.testing.assert_array_equal(routes.expert, scores.argmin(axis=0))
    np.testing.assert_array_equal(routes.queried, len(scores))


@given(st.data(), score_tables)
def test_all_groups_walk_as_each_would_alone(data: st.DataObject, scores: FloatArray) -> None:
    tree = data.draw(trees(len(scores)))
    asked = Asked(scores)
    routes = tree.select(asked, scores.shape[1])
    expected = [walk(tree, column) for column in scores.T]
    found = zip(routes.expert.tolist(), routes.node.tolist(), routes.queried.tolist(), strict=True)
    assert list(found) == expected
    assert asked.at_most_once
    assert (routes.queried <= len(scores)).all()


def test_path_leads_from_the_root_to_the_node() -> None:
    tree = Tree()
    first = tree.add(0)
    second = tree.add(1, parent=first)
    assert tree.path(second) == (first, second)
    assert tree.experts == [0, 1]


@given(st.data())
def test_the_way_to_a_node_says_when_the_gate_ends_there(data: st.DataObject) -> None:
    scores = data.draw(score_tables)
    tree = data.draw(trees(len(scores)))
    routes = tree.select(Asked(scores), scores.shape[1])
    for group, (node, expert) in enumerate(zip(routes.node, routes.expert, strict=True)):
        below, asked = tree.way_to(int(node))
        assert asked == routes.queried[group]
        fits = all(scores[a, group] < scores[b, group] for a, b in below)
        assert fits or len(np.unique(scores[:, group])) < len(scores), "only a tie may be left to the gate"
        for other in set(routes.node):  # where the gate can end at all
            fits = all(scores[a, group] < scores[b, group] for a, b in tree.way_to(int(other))[0])
            assert not fits or tree.nodes[other].expert == expert


def test_a_node_is_reached_by_all_that_end_at_it_or_below() -> None:
    tree = Tree()
    first, second = tree.add(0), tree.add(1)
    third = tree.add(2, parent=first)
    fourth = tree.add(3, parent=third)
    ends = np.array([fourth, fourth, third, first, second, second, second, second])
    np.testing.assert_allclose(tree.reached(ends), [100, 50, 50, 37.5, 25])
    np.testing.assert_allclose(tree.reached(np.array([fourth, -1])), [50, 50, 0, 50, 50], err_msg="-1: not in the tree")
    np.testing.assert_array_equal(tree.reached(np.array([], dtype=np.int64)), 0)


def test_a_tree_is_read_as_it_was_written() -> None:
    tree = Tree()
    tree.add(3, parent=tree.add(5))
    assert Tree.from_json(tree.as_json()) == tree
    assert tree.as_json() == [[-1, -1], [5, 0], [3, 1]]


def test_an_expert_is_replaced_at_all_of_its_nodes() -> None:
    tree = Tree()
    first = tree.add(0)
    tree.add(1)
    tree.add(1, parent=first)
    assert tree.owners.tolist() == [-1, 0, 1, 1]
    tree.replace(1, by=4)
    assert tree.experts == [0, 4]
    assert tree.owners.tolist() == [-1, 0, 4, 4]
