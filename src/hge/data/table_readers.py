"""Readers of tables with named columns: CSV and Parquet."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hge.data.table_columns import Column, as_numbers, as_texts

DELIMITERS = ",;\t|"
ROWS_AT_ONCE = 4096


def read_csv(path: Path, as_text: Collection[str]) -> dict[str, Column]:
    """Read a CSV file with a header. Columns that turn out to hold text are read again from the beginning, as text."""
    texts = set(as_text)
    try:
        while True:
            columns, found = _read_csv_once(path, texts)
            if not found:
                return columns
            texts |= found
    except (csv.Error, UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: not a CSV file in UTF-8 ({error})") from None


def _read_csv_once(path: Path, texts: set[str]) -> tuple[dict[str, Column], set[str]]:
    """Return the columns, and the names of those that must be read as text (then the columns are incomplete)."""
    with _open(path) as file:
        first = file.readline()
        delimiter = max(DELIMITERS, key=first.count)
        header = [name.strip() for name in next(csv.reader([first], delimiter=delimiter, skipinitialspace=True), [])]
        _check_header(header, path)
        parts: dict[str, list[Column]] = {name: [] for name in header}
        rows = _full_rows(csv.reader(file, delimiter=delimiter, skipinitialspace=True), len(header), path)
        while chunk := list(islice(rows, ROWS_AT_ONCE)):
            found = set()
            for name, values in zip(header, zip(*chunk, strict=True), strict=True):
                column = as_texts(values) if name in texts else as_numbers(values)
                if column is None:
                    found.add(name)
                else:
                    parts[name].append(column)
            if found:
                return {}, found
    if not parts[header[0]]:
        raise ValueError(f"{path}: no rows below the header")
    return {name: np.concatenate(chunks) for name, chunks in parts.items()}, set()


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _check_header(header: Sequence[str], path: Path) -> None:
    if not header:
        raise ValueError(f"{path}: the file is empty, expected a header line with the names of the columns")
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise ValueError(f"{path}: two columns are named {twice[0]!r}, expected different names")


def _full_rows(reader: Iterator[list[str]], width: int, path: Path) -> Iterator[list[str]]:
    number = 0
    for row in reader:
        if not row:
            continue  # an empty line
        number += 1
        if len(row) != width:
            raise ValueError(f"{path}: row {number} has {len(row)} fields, expected {width} as in the header")
        yield row


def read_parquet(path: Path, as_text: Collection[str]) -> dict[str, Column]:
    """Read a Parquet file; requires pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{path}: reading Parquet needs pyarrow; install it with: pip install pyarrow") from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: not a Parquet file ({error})") from None
    _check_header(table.column_names, path)
    if not table.num_rows:
        raise ValueError(f"{path}: no rows in the file")
    return {name: _arrow_column(table[name], name in as_text) for name in table.column_names}


def _arrow_column(column: Any, as_text: bool) -> Column:
    from pyarrow import types

    if not as_text and any(kind(column.type) for kind in (types.is_integer, types.is_floating, types.is_decimal)):
        return np.array(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
    values = ["" if value is None else str(value) for value in column.to_pylist()]
    numbers = None if as_text else as_numbers(values)
    return as_texts(values) if numbers is None else numbers
