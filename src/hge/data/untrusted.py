"""Reading of files that may be hostile: regular files only, and archives that do not unpack out of proportion.

Every function raises a ValueError that names the file.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import stat
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

LARGEST_FILE = 2**30
"""Bytes of the largest file that is read as a whole; the official data sets have at most 310 MB in one."""
LARGEST_RATIO = 200
"""Compressed data that grow by more are refused; images, tables and text grow by less than 100, bombs by up to 1000."""
UNPACKED_FREELY = 2**26
"""Bytes up to which data may grow by any ratio: a small file of zeros is no bomb."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. A FIFO, on which reading would block, a socket or a device is an error."""
    try:
        file = open(path, "rb", opener=_without_blocking)  # noqa: SIM115, the caller closes it
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{path}: not a regular file, expected one (no pipe, socket or device)")
    return file


def _without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows has neither the flag nor such files


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file of at most `LARGEST_FILE` bytes."""
    with open_regular(path) as file:
        size = file_size(file)
        if size > LARGEST_FILE:
            raise ValueError(f"{path}: got {size:,} bytes, expected at most {LARGEST_FILE:,}")
        try:
            return file.read()
        except OSError as error:
            raise ValueError(f"{path}: cannot be read ({error.strerror})") from error


def open_gzip(path: Path) -> BinaryIO:
    """Open a gzip file; reading raises an error where the content gets out of proportion."""
    file = open_regular(path)
    return io.BufferedReader(_Bounded(file, _most_unpacked(file_size(file)), path))


def unpack_gzip(raw: bytes, path: Path) -> bytes:
    """Return the content of gzipped bytes, which were read from `path`."""
    return io.BufferedReader(_Bounded(io.BytesIO(raw), _most_unpacked(len(raw)), path)).read()


def _most_unpacked(size: int) -> int:
    return max(UNPACKED_FREELY, LARGEST_RATIO * size)


def file_size(file: BinaryIO) -> int:
    """Return the size of an open file."""
    return os.fstat(file.fileno()).st_size


class _Bounded(io.RawIOBase):
    """The content of a gzip file, up to a number of bytes."""

    def __init__(self, packed: BinaryIO, most: int, path: Path) -> None:
        self._packed, self._stream = packed, gzip.GzipFile(fileobj=packed)
        self._most, self._left, self._path = most, most, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._stream.readinto(buffer)
        self._left -= count
        if self._left < 0:
            raise ValueError(
                f"{self._path}: unpacks to more than {self._most:,} bytes, expected at most {LARGEST_RATIO} times its "
                "size; unpack it yourself if you trust it"
            )
        return count

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()


@contextmanager
def open_zip(path: Path) -> Iterator[ZipReader]:
    """Open a zip file whose contents, by its own directory, are in proportion to its size."""
    with open_regular(path) as file:
        with _naming(path, "zip file"):
            archive = zipfile.ZipFile(file)
        with archive:
            check_unpacked(sum(member.file_size for member in archive.infolist()), file_size(file), path)
            _check_methods(archive, path)
            yield ZipReader(archive, path)


def check_unpacked(unpacked: int, packed: int, path: Path) -> None:
    """Raise an error if the content of a file, of so many bytes, is out of proportion to its size."""
    if unpacked > _most_unpacked(packed):
        raise ValueError(
            f"{path}: its {packed:,} bytes unpack to {unpacked:,}, expected at most {LARGEST_RATIO} times as many; "
            "store it without compression if you trust it"
        )


def _check_methods(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse methods whose decompressors take as much memory as the file asks for."""
    for member in archive.infolist():
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{path}: {member.filename!r} is compressed by another method than deflate")


@dataclass(frozen=True)
class ZipReader:
    """A zip file whose directory was checked."""

    archive: zipfile.ZipFile
    path: Path

    def names(self) -> list[str]:
        """Return the names of all members."""
        return self.archive.namelist()

    def read(self, name: str) -> bytes:
        """Return a member: never more bytes than the directory says."""
        with _naming(self.path, "zip file"), self.archive.open(name) as member:
            return member.read(max(self.archive.getinfo(name).file_size, 1))


@contextmanager
def _naming(path: Path, kind: str) -> Iterator[None]:
    """Turn any error into one that names the file: a broken archive may raise almost any exception."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{path}: not a complete {kind} ({error})") from error


def read_npz(path: Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of an npz file; their headers are checked against their sizes before they are read."""
    arrays = {}
    with open_zip(path) as archive:
        missing = [name for name in names if f"{name}.npy" not in archive.names()]
        if missing:
            raise ValueError(f"{path}: lacks {', '.join(missing)}, expected an npz with arrays {' and '.join(names)}")
        for name in names:
            raw = archive.read(f"{name}.npy")
            with _naming(path, f"array {name}"):
                arrays[name] = _npy(raw)
    return arrays


def read_npy(path: Path) -> npt.NDArray[Any]:
    """Return the array of an npy file; its header is checked against its size."""
    raw = read_regular(path)
    with _naming(path, "npy file"):
        return _npy(raw)


def _npy(raw: bytes) -> npt.NDArray[Any]:
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read_header(stream)
    claimed, there = math.prod(shape) * dtype.itemsize, len(raw) - stream.tell()
    if dtype.hasobject or min(shape, default=0) < 0 or claimed != there:
        raise ValueError(f"{dtype} {shape} takes {claimed:,} bytes, got {there:,}; expected as many, and no objects")
    stream.seek(0)
    array: npt.NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    return array
