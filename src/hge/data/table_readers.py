"""Readers of tables with named columns: CSV and Parquet."""

from __future__ import annotations

import csv
import io
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from hge.data.table_columns import Column, as_numbers, as_texts
from hge.data.untrusted import check_unpacked, file_size, open_gzip, open_regular

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
    except (csv.Error, UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
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
    file = open_gzip(path) if path.suffix == ".gz" else open_regular(path)
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline="")


def _check_header(header: Sequence[str], path: Path) -> None:
    if not header:
        raise ValueError(f"{path}: the file is empty, expected a header line with the names of the columns")
    name, times = Counter(header).most_common(1)[0]
    if times > 1:
        raise ValueError(f"{path}: two columns are named {name!r}, expected different names")


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
    with open_regular(path) as file:
        try:
            metadata = parquet.read_metadata(file)
            _check_proportion(metadata, file_size(file), path)
            # A repeated text is stored once, and must stay so: a few kilobytes may stand for gigabytes of text.
            table = parquet.ParquetFile(file, read_dictionary=_texts_in(metadata.schema)).read()
        except (OSError, pyarrow.ArrowException) as error:
            raise ValueError(f"{path}: not a Parquet file ({error})") from None
    _check_header(table.column_names, path)
    if not table.num_rows:
        raise ValueError(f"{path}: no rows in the file")
    try:
        return {name: _arrow_column(table[name], name in as_text) for name in table.column_names}
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: a column is neither numbers nor texts ({error})") from None


def _check_proportion(metadata: Any, packed: int, path: Path) -> None:
    """Check the size of the table before it is read: repeated values take next to no bytes in the file."""
    groups = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    check_unpacked(max(groups, 8 * metadata.num_rows * metadata.num_columns), packed, path)


def _texts_in(schema: Any) -> list[str]:
    columns = (schema.column(number) for number in range(len(schema)))
    return [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]


def _arrow_column(column: Any, as_text: bool) -> Column:
    from pyarrow import types

    if not as_text and any(kind(column.type) for kind in (types.is_integer, types.is_floating, types.is_decimal)):
        return np.array(column.cast("float64").to_numpy(zero_copy_only=False), dtype=np.float64)
    texts = np.concatenate([_arrow_texts(chunk) for chunk in column.dictionary_encode().chunks])
    numbers = None if as_text else as_numbers(texts.tolist())
    return texts if numbers is None else numbers


def _arrow_texts(encoded: Any) -> Column:
    """Return the texts of a dictionary array: one Python string for each distinct value."""
    texts = as_texts([*("" if value is None else str(value) for value in encoded.dictionary.to_pylist()), ""])
    found: Column = texts[encoded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)]
    return found
