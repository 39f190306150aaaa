"""Drawings of trees: SVG for the report, DOT for Graphviz, text for the terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from html import escape

from hge.drawing.colours import colour_of
from hge.gating.tree import ROOT, Node, Tree

COLUMN, ROW, RADIUS = 46, 66, 15


@dataclass(frozen=True)
class DrawnTree:
    """A tree, and the annotations to draw with it."""

    tree: Tree
    reached: list[float]
    """Percentage of the test groups that ended at or below each node."""
    domain: list[str]
    """Domain of each expert, which sets its colour; with a single domain, each expert has its own colour."""

    def colour(self, expert: int) -> str:
        """Return the colour of an expert's domain or, with a single domain, its own."""
        distinct = list(dict.fromkeys(self.domain))
        return colour_of(distinct.index(self.domain[expert]) if len(distinct) > 1 else expert)

    @property
    def repeated(self) -> set[int]:
        """Experts that occur at more than one node."""
        return {e for e, places in Counter(n.expert for n in self.tree.nodes[1:]).items() if places > 1}


def tree_text(tree: Tree, node: int = ROOT, indent: str = "") -> str:
    """Draw a tree with lines of text.

    >>> tree = Tree()
    >>> below = tree.add(2, parent=tree.add(0)); other = tree.add(1)
    >>> print(tree_text(tree))
    ├─ 0
    │  └─ 2
    └─ 1
    """
    lines = []
    for child in tree.children[node]:
        last = child == tree.children[node][-1]
        lines.append(f"{indent}{'└─' if last else '├─'} {tree.nodes[child].expert}")
        if tree.children[child]:
            lines.append(tree_text(tree, child, indent + ("   " if last else "│  ")))
    return "\n".join(lines)


def tree_dot(drawn: DrawnTree) -> str:
    """Return the tree in Graphviz's DOT language."""
    lines = ["digraph experts {", "  node [shape=circle, style=filled, fontname=sans];", '  0 [label="", width=0.1];']
    for number, node in list(enumerate(drawn.tree.nodes))[1:]:
        style = ', style="filled,dashed"' if node.expert in drawn.repeated else ""
        lines.append(f'  {number} [label="{node.expert}", fillcolor="{drawn.colour(node.expert)}"{style}];')
        lines.append(f'  {node.parent} -> {number} [label="{drawn.reached[number]:.0f}%"];')
    return "\n".join([*lines, "}"]) + "\n"


def tree_svg(drawn: DrawnTree, title: str = "") -> str:
    """Return the tree as SVG: experts as circles, repeated ones dashed, on each edge the share of the test groups."""
    column: dict[int, float] = {}
    depth: dict[int, int] = {}
    columns = _lay_out(drawn.tree, ROOT, 0, 0, column, depth)
    width, height = (columns + 0.4) * COLUMN, (max(depth.values()) + 1) * ROW + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape(title or "tree of experts")}" font-family="sans-serif" font-size="12">'
    ]
    place = {n: ((column[n] + 0.7) * COLUMN, depth[n] * ROW + 22) for n in column}
    nodes = list(enumerate(drawn.tree.nodes))[1:]
    parts += [_edge(place[node.parent], place[n], drawn.reached[n]) for n, node in nodes]
    parts += [_circle(place[n], node, drawn) for n, node in nodes]
    x, y = place[ROOT]
    parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="4" fill="#6c757d"/></svg>')
    return "\n".join(parts)


def _lay_out(tree: Tree, node: int, level: int, first: int, column: dict[int, float], depth: dict[int, int]) -> int:
    """Assign a column to each leaf, and the middle of its children to each inner node; return the next free column."""
    depth[node] = level
    if not tree.children[node]:
        column[node] = first
        return first + 1
    for child in tree.children[node]:
        first = _lay_out(tree, child, level + 1, first, column, depth)
    own = [column[child] for child in tree.children[node]]
    column[node] = (own[0] + own[-1]) / 2
    return first


def _edge(start: tuple[float, float], end: tuple[float, float], share: float) -> str:
    (x1, y1), (x2, y2) = start, end
    line = (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="#adb5bd" stroke-width="{1 + share / 20:.1f}"/>'
    )
    x, y = x1 + 0.62 * (x2 - x1), y1 + 0.62 * (y2 - y1)
    return line + f'<text x="{x + 3:.1f}" y="{y:.1f}" font-size="10" fill="#495057">{share:.0f}%</text>'


def _circle(place: tuple[float, float], node: Node, drawn: DrawnTree) -> str:
    x, y = place
    dashed = ' stroke-dasharray="3 2"' if node.expert in drawn.repeated else ""
    fill = drawn.colour(node.expert)
    circle = f'<circle cx="{x:.1f}" cy="{y}" r="{RADIUS}" fill="{fill}" stroke="#212529" stroke-width="1.4"{dashed}/>'
    ink = "black" if _is_light(fill) else "white"
    text = f'<text x="{x:.1f}" y="{y + 4}" text-anchor="middle" fill="{ink}" font-weight="bold">{node.expert}</text>'
    return circle + text


def _is_light(colour: str) -> bool:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue > 150
