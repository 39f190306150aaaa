"""The transcription of the paper's tables, pinned where it would hurt most."""

from __future__ import annotations

import pytest

from hge.data.catalogue import SCENARIOS
from hge.experiments.paper_tables import NOTES, ROUTE_SINGLE_SAMPLES, Cell, paper_table


@pytest.mark.parametrize(
    ("table", "cell"),
    [
        (1, Cell("smnist", "TAME", "false", 0.04, None)),
        (1, Cell("mnist-kmnist", "GE", "missed", 0.04, None)),
        (1, Cell("imgnet-20", "GE w/o review", "false", None, None)),
        (1, Cell("cif100-10", "GE", "missed", 0.0, None)),
        (2, Cell("pmnist", "HGE", "experts_queried", 11.25, 1.02)),
        (2, Cell("cif-imgnet", "Upper", "gate_accuracy", 68.38, 1.44)),
        (2, Cell("cif10", "GE", "experts_queried", 5.0, None)),
        (3, Cell("cif100-10", "Upper", "accuracy.pcc", 0.55, 0.19)),
        (3, Cell("imgnet-10", "Upper", "accuracy.mean", 60.97, 13.28)),
        (3, Cell("cif-imgnet", "Upper", "experts_queried.mad", 0.38, 0.35)),
        (3, Cell("smnist", "Upper", "experts_queried.scc", 0.36, 0.21)),
        (4, Cell("pmnist", "Separate", "accuracy", 97.9, 0.0)),
        (4, Cell("cif100-20", "HGE", "gate_accuracy", 83.54, 10.41)),
        (4, Cell("imgnet-20", "HGE", "experts_queried", 18.91, 0.54)),
        (4, Cell("cif10", "TAME", "accuracy", 91.32, None)),
        (4, Cell("cif100-10", "DER", "accuracy", 74.64, None)),
        (4, Cell("cif100-20", "BGD", "accuracy", 3.77, None)),
        (5, Cell("mnist-kmnist", "GE", "accuracy", 99.38, 0.16)),
        (5, Cell("cif-imgnet", "HGE", "experts_queried", 19.22, 0.65)),
    ],
)
def test_as_printed(table: int, cell: Cell) -> None:
    assert cell in paper_table(table)


@pytest.mark.parametrize(
    ("table", "cells"),
    [(1, (2 + 3 + 2 + 4) * 6), (2, 11 * 6), (3, 11 * 12), (4, 7 * 7 + 3 + 3 + 5 + 4 + 3 + 3 + 5 + 2), (5, 4 * 7)],
)
def test_every_cell_is_there_once(table: int, cells: int) -> None:
    found = paper_table(table)
    assert len(found) == len({(c.scenario, c.method, c.figure) for c in found}) == cells
    assert {c.scenario for c in found} <= SCENARIOS.keys()


def test_what_a_reader_must_know_of_table_4() -> None:
    methods = {cell.method for cell in paper_table(4)}
    assert methods >= ROUTE_SINGLE_SAMPLES == {"TAME", "CN-DPM"}
    assert "Dark Experience Replay" in NOTES["DER"]


def test_there_is_no_table_6() -> None:
    with pytest.raises(ValueError, match="table: got 6, expected 1 to 5"):
        paper_table(6)
