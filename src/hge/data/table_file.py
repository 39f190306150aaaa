"""A stream read from a table: CSV, Parquet or npz. The order of the rows, or of a time column, is the stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hge.data.table_columns import (
    LARGEST_INPUT,
    Columns,
    Floats,
    Labels,
    as_texts,
    check_classes,
    features_of,
    labels_of,
    listed,
    present_labels,
    times_of,
)
from hge.data.table_readers import read_csv, read_parquet
from hge.data.untrusted import read_npz

FORMATS = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".npz")


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of a stream, in order."""

    X: Floats
    y: Labels
    features: tuple[str, ...]
    dropped: int = 0
    """Number of rows left out because of missing values."""


def read_table(
    path: Path,
    label: str | None = None,
    *,
    time: str | None = None,
    ignore: Sequence[str] = (),
    limit: int | None = None,
    drop_missing: bool = False,
) -> Table:
    """Read a stream from a file.

    Rows are sorted by the column `time`, if given (stable; it is not a feature), and then cut to `limit` rows. Text
    columns are coded as one-hot. A missing value is an error, unless `drop_missing` leaves out its row. An npz file has
    arrays `X` and `y`, or `label` instead of `y`.
    """
    if not path.is_file():
        raise ValueError(f"file: got {path}, expected a file that is there")
    as_text = {*ignore, *([label] if label else [])}
    if path.name.endswith(".npz"):
        if time is not None or ignore:
            raise ValueError(
                f"{'time' if time is not None else 'ignore'}: got {path}, expected a file with named columns"
            )
        raw = _read_npz(path, label or "y")
    elif path.name.endswith(".parquet"):
        raw = _from_columns(read_parquet(path, as_text), label, time, ignore)
    elif path.name.endswith(FORMATS):
        raw = _from_columns(read_csv(path, as_text), label, time, ignore)
    else:
        raise ValueError(f"file: got {path}, expected {', '.join(FORMATS)}")
    return _finish(raw, path, limit, drop_missing)


@dataclass(frozen=True, eq=False)
class _Raw:
    """Rows in file order, with missing values."""

    X: Floats
    features: tuple[str, ...]
    y: Labels
    label: str
    labelled: npt.NDArray[np.bool_]
    """Rows whose label is not missing."""
    times: Floats | None = None
    time: str = ""


def _finish(raw: _Raw, path: Path, limit: int | None, drop_missing: bool) -> Table:
    """Handle missing values, sort and cut the rows."""
    whole = np.isfinite(raw.X).all(axis=1) & raw.labelled
    if raw.times is not None:
        whole &= np.isfinite(raw.times)
    if not whole.all() and not drop_missing:
        row = int(whole.argmin())
        raise ValueError(f"{path}: {_missing(raw, row)}; leave such rows out with --drop-missing")
    rows = np.flatnonzero(whole)
    if not len(rows):
        raise ValueError(f"{path}: no row without a missing value; leave out the columns that lack them with --ignore")
    if raw.times is not None:
        rows = rows[np.argsort(raw.times[rows], kind="stable")]
    _check_sizes(raw, rows, path)
    check_classes(raw.label, raw.y[rows[:limit]])
    return Table(raw.X[rows[:limit]], raw.y[rows[:limit]], raw.features, int((~whole).sum()))


def _missing(raw: _Raw, row: int) -> str:
    """Name the column of a row that has a missing value."""
    if not raw.labelled[row]:
        return f"row {row + 1} has no label in column {raw.label!r}"
    if raw.times is not None and not np.isfinite(raw.times[row]):
        return f"row {row + 1} has no time in column {raw.time!r}"
    column = int(np.isfinite(raw.X[row]).argmin())
    found = "no value" if np.isnan(raw.X[row, column]) else "an infinite value"
    return f"row {row + 1} has {found} in column {raw.features[column]!r}"


def _check_sizes(raw: _Raw, rows: npt.NDArray[np.intp], path: Path) -> None:
    largest = np.abs(raw.X[rows]).max(axis=0)
    if largest.max() > LARGEST_INPUT:
        name = raw.features[int(largest.argmax())]
        raise ValueError(
            f"{path}: column {name!r} has a value of magnitude {largest.max():.3g}, expected at most "
            f"{LARGEST_INPUT:g}; scale it, or leave it out with --ignore"
        )


def _from_columns(columns: Columns, label: str | None, time: str | None, ignore: Sequence[str]) -> _Raw:
    names = list(columns)
    if label is None:
        raise ValueError(f"label: got nothing, expected one of the columns {listed(names)}")
    asked = [("label", label), *([("time", time)] if time is not None else []), *(("ignore", name) for name in ignore)]
    for option, name in asked:
        if name not in columns:
            raise ValueError(f"{option}: got {name!r}, expected one of the columns {listed(names)}")
    if label == time or label in ignore:
        raise ValueError(
            f"label: got {label!r}, expected another column than --{'time' if label == time else 'ignore'}"
        )
    inputs = {name: column for name, column in columns.items() if name not in {label, time, *ignore}}
    if not inputs:
        raise ValueError(f"file: no columns besides {label!r} are left, expected at least one feature")
    texts = columns[label]
    labelled = present_labels(texts)
    if not labelled.any():
        raise ValueError(f"label: column {label!r} is empty, expected the class of each row")
    y = labels_of(label, texts, labelled)
    X, features = features_of(inputs)
    times = None if time is None else times_of(time, columns[time])
    return _Raw(X, features, y, label, labelled, times, time or "")


def _read_npz(path: Path, label: str) -> _Raw:
    X, y = read_npz(path, ("X", label)).values()
    if X.ndim < 2 or X.dtype.kind not in "biuf" or not X.size:
        raise ValueError(f"{path}: X is {X.dtype} {X.shape}, expected numbers of shape (rows, features)")
    if y.shape != X.shape[:1]:
        raise ValueError(f"{path}: {label} has shape {y.shape}, expected one label for each of {len(X)} rows of X")
    texts = as_texts([str(value) for value in y.tolist()])
    X = X.reshape(len(X), -1).astype(np.float64)
    names, labelled = tuple(f"x{number}" for number in range(X.shape[1])), present_labels(texts)
    return _Raw(X, names, labels_of(label, texts, labelled), label, labelled)
