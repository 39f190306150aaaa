"""Rows without labels, to be predicted: arrays, tables, or a folder of images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hge.data.image_decoding import decode_image
from hge.data.image_folder import SUFFIXES
from hge.data.table_readers import read_csv, read_parquet
from hge.data.untrusted import open_regular, read_npy, read_npz

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
INPUT_FORMATS = (*TABLES, ".parquet", ".npz", ".npy")
Rows = npt.NDArray[np.float32] | npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows of numbers, and the name of each: that of an image's file, or its number in the table."""

    rows: Rows
    names: list[str]


def read_inputs(path: Path, shape: tuple[int, ...], ignore: Sequence[str] = ()) -> Inputs:
    """Read rows of a shape from a file or a folder of images; columns in `ignore` are left out of a table."""
    if path.is_dir():
        return read_images(path, shape)
    if not path.is_file():
        raise ValueError(f"data: got {path}, expected a file or folder that is there")
    if path.name.endswith((".npy", ".npz")):
        if ignore:
            raise ValueError(f"ignore: got {path}, expected a file with named columns")
        values = read_npy(path) if path.name.endswith(".npy") else read_npz(path, ("X",))["X"]
    elif path.name.endswith(".parquet"):
        values = _table(read_parquet(path, ()), path, ignore)
    elif path.name.endswith(TABLES):
        values = _table(read_csv(path, ()), path, ignore)
    else:
        raise ValueError(f"data: got {path}, expected {', '.join(INPUT_FORMATS)}, or a folder of images")
    return Inputs(_checked(values, shape, path), [str(number) for number in range(len(values))])


def read_images(folder: Path, shape: tuple[int, ...]) -> Inputs:
    """Read all images below a folder as RGB, channels first, of uint8, resized to a shape (3, n, n) or (3 n²,)."""
    side = isqrt(int(np.prod(shape)) // 3)
    if shape not in ((3, side, side), (3 * side * side,)):
        raise ValueError(
            f"data: got a folder of images for a model of rows {shape}, expected rows (3, n, n) or (3 n²,)"
        )
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"data: got {folder} without images, expected some in {', '.join(sorted(SUFFIXES))}")
    pixels = []
    for file in files:
        with open_regular(file) as stream:
            pixels.append(decode_image(stream, file, side))
    rows = np.stack(pixels).reshape(-1, *shape)
    return Inputs(rows, [str(file.relative_to(folder)) for file in files])


def _table(columns: dict[str, Any], path: Path, ignore: Sequence[str]) -> npt.NDArray[Any]:
    for name in ignore:
        if name not in columns:
            raise ValueError(f"ignore: got {name!r}, expected one of the columns {', '.join(columns)}")
    kept = {name: column for name, column in columns.items() if name not in ignore}
    for name, column in kept.items():
        if column.dtype == object:  # which categories the model was trained with is not known here
            raise ValueError(f"{path}: column {name!r} has texts, expected numbers; leave it out with --ignore")
    if not kept:
        raise ValueError(f"{path}: no columns are left, expected at least one")
    return np.stack(list(kept.values()), axis=1)


def _checked(values: npt.NDArray[Any], shape: tuple[int, ...], path: Path) -> Rows:
    if values.dtype.kind not in "biuf" or values.ndim < 2 or not len(values):
        raise ValueError(f"{path}: got {values.dtype} {values.shape}, expected numbers of shape (rows, …)")
    if values.shape[1:] != shape:
        raise ValueError(f"{path}: got rows of shape {values.shape[1:]}, expected {shape}, that of the model's rows")
    if values.dtype == np.uint8:
        return values
    with np.errstate(over="ignore"):
        rows = values.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(rows.reshape(len(rows), -1)).all(axis=1))
    if len(bad):
        raise ValueError(f"{path}: row {bad[0] + 1} has a missing or infinite value, expected finite numbers")
    return rows
