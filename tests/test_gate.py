from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hge.gate import ROOT, FloatArray, Tree

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
    routes = tree.select(lambda ids: scores[list(ids)])
    np.testing.assert_array_equal(routes.expert, scores.argmin(axis=0))
    np.testing.assert_array_equal(routes.queried, len(scores))


@given(st.data(), score_tables)
def test_all_groups_walk_as_each_would_alone(data: st.DataObject, scores: FloatArray) -> None:
    tree = data.draw(trees(len(scores)))
    asked: list[int] = []

    def score(ids: list[int]) -> FloatArray:
        asked.extend(ids)
        return scores[list(ids)]

    routes = tree.select(score)  # type: ignore[arg-type]
    expected = [walk(tree, column) for column in scores.T]
    found = zip(routes.expert.tolist(), routes.node.tolist(), routes.queried.tolist(), strict=True)
    assert list(found) == expected
    assert len(asked) == len(set(asked)), "each expert is asked once"
    assert (routes.queried <= len(scores)).all()


def test_scores_that_are_not_numbers_suit_nobody() -> None:
    tree = Tree()
    for expert in range(3):
        tree.add(expert)
    scores = np.array([[np.nan], [5.0], [np.inf]])
    routes = tree.select(lambda ids: scores[list(ids)])
    assert routes.expert.tolist() == [1]
    only = tree.select(lambda ids: np.full((len(ids), 1), np.nan))
    assert only.expert.tolist() == [0]


def test_path_leads_from_the_root_to_the_node() -> None:
    tree = Tree()
    first = tree.add(0)
    second = tree.add(1, parent=first)
    assert tree.path(second) == (first, second)
    assert tree.experts == [0, 1]
