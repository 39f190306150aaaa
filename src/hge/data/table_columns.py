"""Columns of a table as inputs, labels and times: one-hot coding, missing values, dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[Any]
Column = npt.NDArray[Any]
"""Numbers (float64, NaN where a value is missing) or texts (object)."""
Texts = Column
Columns = Mapping[str, Column]

MOST_CATEGORIES = 20
"""A text column with more distinct values is not coded as one-hot."""
MOST_CLASSES = 1000
LONGEST_LABEL = 200
"""Characters of a label."""
LARGEST_INPUT = 1e15
"""Largest magnitude that `GatedExperts` accepts."""
MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})
"""Texts, in lower case, that stand for a missing number."""
MISSING_LABELS = frozenset({"", "?", "nan"})


def as_numbers(texts: Sequence[str]) -> Floats | None:
    """Return the texts as numbers, NaN for missing ones; None if one of them is not a number.

    >>> as_numbers(["1.5", "", "?"]), as_numbers(["1.5", "red"])
    (array([1.5, nan, nan]), None)
    """
    try:
        return np.array([float("nan" if text.strip().lower() in MISSING else text) for text in texts])
    except ValueError:
        return None


def as_texts(values: Sequence[str]) -> Texts:
    """Return an array of Python strings."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def features_of(columns: Columns) -> tuple[Floats, tuple[str, ...]]:
    """Return the inputs [rows, features] and their names; text columns are coded as one-hot."""
    names: list[str] = []
    parts: list[Floats] = []
    for name, column in columns.items():
        if column.dtype != object:
            names.append(name)
            parts.append(column.astype(np.float64)[:, None])
            continue
        values = _categories(name, column)
        names += [f"{name}={value}" for value in values]
        parts.append(np.array([column == value for value in values], dtype=np.float64).T)
    return np.concatenate(parts, axis=1), tuple(names)


def labels_of(name: str, texts: Texts, present: npt.NDArray[np.bool_]) -> Labels:
    """Return the labels: whole numbers as int64, else texts. Rows that are not `present` have an arbitrary label."""
    distinct = {text: _whole(text) for text in dict.fromkeys(texts[present].tolist())}
    numbers = as_numbers(list(distinct))
    if numbers is None or np.isnan(numbers).any():
        labels = _short_texts(name, texts, list(distinct))
    elif None not in distinct.values():
        labels = np.array([distinct.get(text, 0) for text in texts], dtype=np.int64)
    else:
        odd = next(text for text, number in distinct.items() if number is None)
        raise ValueError(
            f"label: column {name!r} holds numbers such as {odd[:20]}, expected classes (whole numbers or text)"
        )
    check_classes(name, labels[present])
    return labels


def _whole(text: str) -> int | None:
    """Return a whole number of 64 bits, exactly, or None; read as a float, it would lose digits beyond 2⁵³."""
    try:
        number = int(text)
    except ValueError:
        value = as_numbers([text])
        if value is None or not abs(value[0]) < 2**53 or value[0] != round(value[0]):
            return None
        number = int(value[0])
    return number if -(2**63) <= number < 2**63 else None


def _short_texts(name: str, texts: Texts, distinct: Sequence[str]) -> Labels:
    longest = max(map(len, distinct))
    if longest > LONGEST_LABEL:  # numpy stores every label with the length of the longest
        raise ValueError(
            f"label: column {name!r} has a text of {longest:,} characters, expected at most {LONGEST_LABEL}"
        )
    return np.array([text[:longest] for text in texts])


def check_classes(name: str, labels: Labels) -> None:
    """Raise an error unless there are 2 to `MOST_CLASSES` classes."""
    classes = len(np.unique(labels))
    if not 2 <= classes <= MOST_CLASSES:
        raise ValueError(f"label: {name!r} has {classes:,} distinct values, expected 2 to {MOST_CLASSES:,} classes")


def times_of(name: str, column: Column) -> Floats:
    """Return the times as numbers that sort as they do; NaN for missing ones.

    >>> times_of("day", as_texts(["1998-05-02", "1998-05-01T12:00:00Z"])).tolist()
    [894067200.0, 894024000.0]
    """
    if column.dtype != object:
        return column.astype(np.float64)
    return np.array([_seconds(name, text) for text in column])


def present_labels(texts: Texts) -> npt.NDArray[np.bool_]:
    """Return which labels are not missing."""
    return np.array([text.strip().lower() not in MISSING_LABELS for text in texts], dtype=bool)


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return the names separated by commas, abbreviated if there are many."""
    shown = ", ".join(names[:most])
    return f"{shown}, … ({len(names)} in all)" if len(names) > most else shown


def _categories(name: str, column: Texts) -> list[str]:
    values = sorted(set(column.tolist()))
    if len(values) > MOST_CATEGORIES:
        raise ValueError(
            f"column {name!r}: not numeric ({_example(column)!r}), and {len(values):,} distinct values, expected at "
            f"most {MOST_CATEGORIES} for one-hot coding; leave it out with --ignore {name!r} or convert it to numbers"
        )
    return values


def _example(column: Texts) -> str:
    """Return the first value that is not a number, shortened."""
    text: str = next(text for text in column if as_numbers([text]) is None)
    return text if len(text) <= 30 else f"{text[:29]}…"


def _seconds(name: str, text: str) -> float:
    if text.strip().lower() in MISSING:
        return float("nan")
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"time: column {name!r} holds {text!r}, expected numbers or ISO 8601 dates") from None
    return moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
