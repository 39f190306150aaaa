"""A journal: JSON records that are on disk before they are acknowledged, and are read back after a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from hge.core.files import write_atomically

Record = Mapping[str, Any]


class Journal:
    """An append-only file, one record per line, each with a checksum.

    A process may be killed while it appends: then the last line is incomplete, was never acknowledged, and is cut off
    when the file is opened again. A line before the last one that does not match its checksum is an error.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records, length = _read(path)
        """What was in the file when it was opened."""
        self._file = path.open("ab", buffering=0)
        self._file.truncate(length)
        self._broken = False

    @property
    def size(self) -> int:
        """Length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, record: Record) -> None:
        """Write a record and flush it to disk; if that fails, the journal is as before."""
        if self._broken:
            raise OSError(f"{self.path}: a write failed earlier; restart the service when the disk is in order")
        length, line = self.size, _line(record)
        self._broken = True  # until it is known what is on disk
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(length)
            os.fsync(self._file.fileno())
            self._broken = False
            raise
        self._broken = False

    def replace(self, records: Iterable[Record]) -> None:
        """Replace all records, as a whole or not at all."""
        write_atomically(self.path, b"".join(map(_line, records)))
        self._file.close()
        self._file = self.path.open("ab", buffering=0)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _line(record: Record) -> bytes:
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32(text), text)


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the records and the length of the intact part."""
    lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
    records, length = [], 0
    for number, line in enumerate(lines[:-1]):  # what follows the last line break was cut off
        checksum, _, text = line.partition(b" ")
        if checksum != b"%08x" % crc32(text):
            if number < len(lines) - 2:
                raise ValueError(f"{path}: line {number + 1} is damaged, expected its checksum to match")
            break
        records.append(json.loads(text))
        length += len(line) + 1
    return records, length
