from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from hge.gating.tree import Tree
from hge.reporting.tree_drawing import DrawnTree, tree_dot, tree_svg, tree_text


def drawn(domain: list[str]) -> DrawnTree:
    tree = Tree()
    first = tree.add(0)
    tree.add(1)
    tree.add(2, parent=first)
    tree.add(1, parent=first)
    return DrawnTree(tree, tree.reached(np.array([1, 2, 3, 3])).tolist(), domain)


def test_shares_are_those_at_or_below_a_node() -> None:
    assert drawn(["", "", ""]).reached == [100, 75, 25, 50, 0]


def test_svg_shows_every_node_every_share_and_repeated_experts() -> None:
    root = ElementTree.fromstring(tree_svg(drawn(["", "", ""])))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert sorted(t for t in texts if t and "%" not in t) == ["0", "1", "1", "2"]
    assert sorted(t for t in texts if t and "%" in t) == ["0%", "25%", "50%", "75%"]
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert sum("stroke-dasharray" in circle.attrib for circle in circles) == 2


def test_colours_are_those_of_the_domains_where_there_are_some() -> None:
    mixed = drawn(["digits", "photos", "digits"])
    assert mixed.colour(0) == mixed.colour(2) != mixed.colour(1)
    plain = drawn(["", "", ""])
    assert len({plain.colour(e) for e in range(3)}) == 3


def test_dot_and_text() -> None:
    dot = tree_dot(drawn(["", "", ""]))
    assert '1 -> 3 [label="50%"]' in dot
    assert dot.count("dashed") == 2
    assert tree_text(drawn(["", "", ""]).tree) == "├─ 0\n│  ├─ 2\n│  └─ 1\n└─ 1"


def test_trees_survive_json() -> None:
    tree = drawn([]).tree
    assert Tree.from_json(tree.as_json()) == tree
