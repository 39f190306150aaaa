"""Files that are whole or not there, whatever happens while they are written, and JSON with a schema version."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

SCHEMA = 1
"""Version of the JSON documents; those without one are of 0.1.0 and are read all the same (CHANGELOG.md)."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file and flush it and its folder to disk; after a crash it is either complete or unchanged.

    An error, such as that of a full disk, names the file and leaves nothing behind.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex[:12]}.tmp")  # two writers never share one
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk: new, renamed and deleted files."""
    if sys.platform == "win32":  # where a folder cannot be opened
        return
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write indented JSON with the schema version."""
    write_atomically(path, json.dumps({"schema": SCHEMA, **document}, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, without its schema version; raise a ValueError if a later version of hge wrote it."""
    document = json.loads(path.read_text(encoding="utf-8"))
    schema = document.pop("schema", SCHEMA) if isinstance(document, dict) else SCHEMA
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f"{path}: got schema {schema}, expected at most {SCHEMA}; a later version of hge wrote it")
    return document
