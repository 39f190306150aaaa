from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest

from hge.core.types import LARGEST_INPUT
from hge.data.table_columns import LARGEST_INPUT as LARGEST_OF_TABLES
from hge.data.table_file import read_table

PLAIN = "a,b,label\n1,2.5,up\n3,4,down\n5,6,up\n"


def written(folder: Path, text: str, name: str = "stream.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_csv_with_text_labels(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, PLAIN), "label")
    assert table.X.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert table.y.tolist() == ["up", "down", "up"]
    assert (table.features, table.dropped) == (("a", "b"), 0)


@pytest.mark.parametrize("labels", [["0", "1", "0"], ["0.0", "1.0", "0"]])
def test_whole_numbers_are_integer_labels(labels: list[str], tmp_path: Path) -> None:
    rows = "".join(f"{n},{label}\n" for n, label in enumerate(labels))
    table = read_table(written(tmp_path, f"a,label\n{rows}"), "label")
    assert table.y.dtype == np.int64
    assert table.y.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stream.csv", "\ufeff" + PLAIN),
        ("stream.csv", PLAIN.replace(",", ";")),
        ("stream.tsv", PLAIN.replace(",", "\t")),
        ("stream.csv", PLAIN.replace(",", ", ").replace("\n", "\r\n")),
        ("stream.csv", PLAIN + "\n\n"),
    ],
)
def test_dialects_of_csv(name: str, text: str, tmp_path: Path) -> None:
    table = read_table(written(tmp_path, text, name), "label")
    assert table.X.tolist() == [[1, 2.5], [3, 4], [5, 6]]
    assert table.y.tolist() == ["up", "down", "up"]


def test_gzip(tmp_path: Path) -> None:
    (tmp_path / "stream.csv.gz").write_bytes(gzip.compress(PLAIN.encode()))
    assert len(read_table(tmp_path / "stream.csv.gz", "label").y) == 3


def test_text_columns_are_one_hot_wherever_the_text_is(tmp_path: Path) -> None:
    rows = "".join(f"{n % 3},{n % 2}\n" for n in range(9000))  # text comes in a later part of the file
    table = read_table(written(tmp_path, f"kind,label\n{rows}new,0\n"), "label")
    assert table.features == ("kind=0", "kind=1", "kind=2", "kind=new")
    assert table.X.sum(axis=1).tolist() == [1] * 9001
    assert table.X[-1].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("times", "order"),
    [("3 1 2 1", [1, 3, 2, 0]), ("2024-02-01 2024-01-01T05:00 2024-01-02 2024-01-01T05:00:00Z", [1, 3, 2, 0])],
)
def test_rows_are_sorted_by_time_and_ties_keep_their_order(times: str, order: list[int], tmp_path: Path) -> None:
    rows = "".join(f"{moment},{n},{n % 2}\n" for n, moment in enumerate(times.split()))
    table = read_table(written(tmp_path, f"when,a,label\n{rows}"), "label", time="when")
    assert table.features == ("a",)
    assert table.X[:, 0].tolist() == order
    assert read_table(tmp_path / "stream.csv", "label", time="when", limit=3).X[:, 0].tolist() == order[:3]


def test_columns_are_ignored(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, PLAIN), "label", ignore=["b"]).features == ("a",)


@pytest.mark.parametrize("missing", ["", "?", "NaN", "N/A", "inf"])
def test_rows_with_missing_numbers_are_dropped_on_request(missing: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"a,b,label\n1,2,x\n3,{missing},y\n5,6,y\n")
    with pytest.raises(ValueError, match=r"row 2 has (no|an infinite) value in column 'b'; .* --drop-missing"):
        read_table(path, "label")
    table = read_table(path, "label", drop_missing=True)
    assert (table.X.tolist(), table.y.tolist(), table.dropped) == ([[1, 2], [5, 6]], ["x", "y"], 1)


def test_rows_without_a_label(tmp_path: Path) -> None:
    path = written(tmp_path, "a,label\n1,0\n2,\n3,1\n")
    with pytest.raises(ValueError, match="row 2 has no label in column 'label'"):
        read_table(path, "label")
    assert read_table(path, "label", drop_missing=True).y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "the file is empty"),
        ("a,label\n", {}, "no rows below the header"),
        ("a,a\n1,2\n", {}, "two columns are named 'a'"),
        ("a,label\n1,0\n1,2,3\n", {}, "row 2 has 3 fields, expected 2"),
        (PLAIN, {"label": None}, "label: got nothing, expected one of the columns a, b, label"),
        (PLAIN, {"label": "c"}, "label: got 'c', expected one of the columns a, b, label"),
        (PLAIN, {"time": "c"}, "time: got 'c', expected one of"),
        (PLAIN, {"ignore": ["c"]}, "ignore: got 'c', expected one of"),
        (PLAIN, {"ignore": ["label"]}, "label: got 'label', expected another column than --ignore"),
        (PLAIN, {"ignore": ["a", "b"]}, "no columns besides 'label' are left"),
        (PLAIN, {"time": "label"}, "label: got 'label', expected another column than --time"),
        (PLAIN, {"limit": 1}, "label: 'label' has 1 distinct values, expected 2 to 1,000 classes"),
        ("a,label\n1,0.5\n2,1.5\n", {}, "label: column 'label' holds numbers such as 0.5, expected classes"),
        ("a,label\n1,\n2,\n", {}, "label: column 'label' is empty"),
        ("a,label\n,1\n,2\n", {"drop_missing": True}, "no row without a missing value"),
        ("t,a,label\nsoon,1,0\nlate,2,1\n", {"time": "t"}, "time: column 't' holds 'soon', expected numbers or ISO"),
        ("a,label\n1e16,0\n2,1\n", {}, "column 'a' has a value of magnitude 1e"),
        (
            "a,label\n" + "".join(f"n{n},{n % 2}\n" for n in range(21)),
            {},
            "column 'a': not numeric ('n0'), and 21 distinct",
        ),
    ],
)
def test_bad_tables_are_refused(text: str, options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        read_table(written(tmp_path, text), **{"label": "label", **options})  # type: ignore[arg-type]
    assert message in str(error.value)


def test_files_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "noise.csv").write_bytes(b"a,b\n\xff\xfe\x00")
    (tmp_path / "noise.csv.gz").write_bytes(b"plain")
    (tmp_path / "noise.npz").write_bytes(b"plain")
    for name in ("noise.csv", "noise.csv.gz", "noise.npz"):
        with pytest.raises(ValueError, match=name):
            read_table(tmp_path / name, "b")
    with pytest.raises(ValueError, match="expected a file that is there"):
        read_table(tmp_path / "nothing.csv", "b")
    with pytest.raises(ValueError, match=r"expected \.csv"):
        read_table(written(tmp_path, PLAIN, "stream.txt"), "label")


def test_npz(tmp_path: Path) -> None:
    X, y = np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.array([0, 1, 1, 0], dtype=np.int16)
    np.savez(tmp_path / "stream.npz", X=X, y=y, other=np.array(["p", "q", "p", "q"]))
    table = read_table(tmp_path / "stream.npz", limit=3)
    assert table.X.tolist() == X.reshape(4, 6)[:3].tolist()
    assert table.y.tolist() == [0, 1, 1]
    assert read_table(tmp_path / "stream.npz", "other").y.tolist() == ["p", "q", "p", "q"]
    with pytest.raises(ValueError, match="with arrays X and z"):
        read_table(tmp_path / "stream.npz", "z")
    with pytest.raises(ValueError, match="time: got"):
        read_table(tmp_path / "stream.npz", time="t")
    np.savez(tmp_path / "stream.npz", X=X, y=y[:3])
    with pytest.raises(ValueError, match="expected one label for each of 4 rows"):
        read_table(tmp_path / "stream.npz")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"a": [1, 2, None], "kind": ["p", "q", "p"], "label": [True, False, True]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "stream.parquet")
    table = read_table(tmp_path / "stream.parquet", "label", drop_missing=True)
    assert table.features == ("a", "kind=p", "kind=q")
    assert table.X.tolist() == [[1, 1, 0], [2, 0, 1]]
    assert table.y.tolist() == ["True", "False"]


def test_parquet_without_pyarrow_names_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        read_table(written(tmp_path, "", "stream.parquet"), "label")


def test_tables_accept_what_the_estimator_accepts() -> None:
    assert LARGEST_OF_TABLES == LARGEST_INPUT
