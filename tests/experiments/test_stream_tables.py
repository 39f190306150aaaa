from __future__ import annotations

import json
from pathlib import Path

import pytest

from hge.experiments.stream_tables import (
    KIND,
    comparison_table,
    cost_table,
    methods_table,
    outcome_table,
    read_stream_results,
)

Figures = dict[str, tuple[float, float]]
TABLES = (comparison_table, outcome_table, methods_table, cost_table)


def write(folder: Path, stream: str, seed: int, methods: Figures, commit: str = "0123abcd") -> None:
    """Write a result; accuracy and retention of each method."""
    figures = {
        name: {"accuracy": accuracy, "retention": retention, "cpu_seconds_per_1000_rows": 0.5, "rows_kept": 1200}
        for name, (accuracy, retention) in methods.items()
    }
    if "GatedExperts" in figures:
        figures["GatedExperts"] |= {"experts": 3, "switches": [{}, {}, {}, {}]}
    protocol = {"seed": seed, "commit": commit}
    size = {"rows": 20000, "features": 3, "classes": 2, "concepts": 3, "visits": 5}
    result = {"kind": KIND, "stream": stream, **size, "methods": figures, "protocol": protocol}
    (folder / f"{stream}-seed{seed}.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One stream that is won, one that is lost, one that is undecided: the order of the methods depends on the seed."""
    for seed, shift in enumerate((0, 1)):
        write(tmp_path, "won", seed, {"GatedExperts": (90 + shift, 80), "a": (70 + shift, 60), "b": (60, 70)})
        write(tmp_path, "lost", seed, {"GatedExperts": (70 + shift, 80), "a": (73 + shift, 81), "b": (60, 50)})
    write(tmp_path, "undecided", 0, {"GatedExperts": (70, 80), "a": (75, 80), "c": (1, 2)})
    write(tmp_path, "undecided", 1, {"GatedExperts": (74, 80), "a": (71, 80.4)})
    (tmp_path / "random.json").write_text("{}")
    return tmp_path


def rows(table: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert len({len(row) for row in cells}) == 1
    return {row[0]: row[1:] for row in cells[2:]}


def test_streams_come_in_the_given_order(folder: Path) -> None:
    found = read_stream_results(folder, ["won", "unknown", "undecided"])
    assert [stream.name for stream in found] == ["won", "undecided", "lost"]


def test_the_best_other_method_is_named_and_the_best_accuracy_bold(folder: Path) -> None:
    found = rows(comparison_table(read_stream_results(folder, [])))
    assert found["won"] == [
        *("2", "**90.50 ± 0.71**", "80.00 ± 0.00"),
        *("a", "70.50 ± 0.71", "60.00 ± 0.00", "70.00 ± 0.00 (b)"),
    ]
    assert found["lost"][1:5] == ["70.50 ± 0.71", "80.00 ± 0.00", "a", "**73.50 ± 0.71**"]


def test_the_outcomes_say_where_another_method_is_better(folder: Path) -> None:
    found = rows(outcome_table(read_stream_results(folder, ["won", "lost", "undecided"])))
    assert found["accuracy"] == ["1: won", "1: undecided", "1: lost (a, by 3.0)"]
    assert found["retention"] == ["1: won", "1: undecided", "1: lost (a, by 1.0)"]


def test_all_methods_and_costs(folder: Path) -> None:
    streams = read_stream_results(folder, [])
    assert rows(methods_table(streams))["lost"] == ["70.5 / 80.0", "**73.5** / 81.0", "60.0 / 50.0"]
    assert rows(methods_table(streams))["undecided"] == ["72.0 / 80.0", "**73.0** / 80.2", "–"]
    assert rows(cost_table(streams))["won"] == [
        *("20,000 × 3, 2", "3, 5", "3.0", "4.0", "1,200"),
        *("0.50", "0.50 (a)"),
    ]


def test_without_results_every_table_says_so(tmp_path: Path) -> None:
    for streams in (read_stream_results(tmp_path, []), read_stream_results(tmp_path / "missing", [])):
        assert all("has no results yet" in table(streams) for table in TABLES)


def test_streams_without_a_comparison_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "alone", 0, {"GatedExperts": (90, 80)})
    write(tmp_path, "others", 0, {"a": (90, 80), "b": (1, 2)})
    assert read_stream_results(tmp_path, []) == []


@pytest.mark.parametrize("commit", ["0123abcd+", "unknown"])
def test_results_of_an_uncommitted_tree_are_refused(tmp_path: Path, commit: str) -> None:
    write(tmp_path, "won", 0, {"GatedExperts": (90, 80), "a": (70, 60)}, commit)
    with pytest.raises(ValueError, match="expected that of a committed tree"):
        read_stream_results(tmp_path, [])
