"""Section 5.2's experiment: whom it trains, and in which order HGE gets them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from hge.core.settings import override
from hge.experiments import tree_comparison as organised
from hge.experiments.recipes import build_config
from hge.experiments.tree_comparison import organise
from hge.gating.tree import Tree

SHORT = replace(build_config("split-digits", "organise"), epochs=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "order"),
    [
        ("tasks=5", [0, 1, 2, 3, 4]),
        ("mix=permuted-digits", [0, 5, 1, 6, 2, 7, 3, 8, 4, 9, 10, 11, 12, 13, 14]),
        ("visits=3 1 3 0 2 4", [3, 1, 0, 2, 4]),
    ],
)
def test_hge_gets_its_experts_as_the_tasks_come(
    setting: str, order: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    usual = organised.lca_tree

    def lca_tree(experts: Sequence[int], *others: Any) -> Tree:
        seen.append(list(experts))
        return usual(experts, *others)

    monkeypatch.setattr(organised, "lca_tree", lca_tree)
    organise(override(SHORT, setting), tmp_path, orders=2)
    assert seen == [order]


def test_every_task_must_be_visited(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="visits: got '0 2', expected every task"):
        organise(override(SHORT, "visits=0 2"), tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_progress_counts_every_batch_that_is_trained_on_or_scored(tmp_path: Path) -> None:
    told: list[tuple[int, int, str]] = []
    result = organise(replace(SHORT, epochs=2), tmp_path, lambda *what: told.append(what), orders=2)
    assert json.loads((tmp_path / "result.json").read_text())["organisation"] == result["organisation"]
    batches = [(done, total) for done, total, phase in told if phase != "orders"]
    assert batches == [(done, len(batches)) for done in range(1, len(batches) + 1)]
    assert [phase for phase, _ in groupby(phase for _, _, phase in told)] == ["training", "scoring", "orders"]


@pytest.mark.slow
def test_a_costly_score_is_also_asked_of_a_shortlist(tmp_path: Path) -> None:
    result = organise(override(SHORT, "score.name=autoencoder"), tmp_path, orders=2)
    all_asked, few = (result["organisation"][name] for name in ("ge", "shortlist"))
    assert few["experts_queried"] < all_asked["experts_queried"] == 5
    assert 0 < few["accuracy"] <= 100
