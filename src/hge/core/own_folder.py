"""Folders that hge writes to: marked as its own, held by one process at a time, nothing of others touched.

A folder is hge's own if it has a marker (`.hge-folder`, which says what kind it is of), or if all files in it under
names that hge would use were recognisably written by a version that set no markers. Files under other names are
welcome beside them and are left alone.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hge.core.files import read_json, sync_folder, write_json

MARKER, LOCK = ".hge-folder", ".hge-lock"
LEFTOVER = re.compile(r"\.(?P<name>.+?)(\.[0-9a-f]+)?\.tmp")
"""Temporary names of this version, and of earlier ones: with a process id, or with nothing."""
PAUSE = 0.1
"""Seconds between two attempts to hold a folder that another process holds."""


class FolderInUseError(ValueError):
    """Another process writes to the folder; the message has its process id."""


@dataclass(frozen=True)
class FolderKind:
    """What a folder is for."""

    name: str
    files: re.Pattern[str]
    """Names that are written, replaced and deleted in such a folder."""
    is_ours: Callable[[Path], bool]
    """Whether a file under such a name, in a folder without a marker, was written by hge."""


@contextmanager
def hold(folder: Path, kind: FolderKind, patience: float = 0.0) -> Iterator[None]:
    """Hold a folder, which is created and marked; only then its files may be changed.

    Raises an error if another process holds it and does not give it back within `patience` seconds, or if files of
    others are in the way. What killed processes left half written is deleted. A folder to which nothing was written
    is left as it was.
    """
    created = _create(folder)
    try:
        with _locked(folder, patience):
            if not _is_marked(folder, kind):
                _refuse_files_of_others(folder, kind)
                write_json(folder / MARKER, {"kind": kind.name})
            _sweep(folder, kind)
            try:
                yield
            finally:
                if {path.name for path in folder.iterdir()} <= {MARKER, LOCK}:
                    (folder / MARKER).unlink(missing_ok=True)
    finally:
        with suppress(OSError):  # not empty: something was written
            for path in created:
                path.rmdir()


def _create(folder: Path) -> list[Path]:
    """Create a folder and those above it; return the new ones, the innermost first."""
    if folder.is_dir():
        return []
    if folder.exists():
        raise ValueError(f"{folder}: got a file, expected a folder")
    if folder.is_symlink():
        raise ValueError(f"{folder}: got a link to {os.readlink(folder)}, which does not exist, expected a folder")
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)  # another process may create it at the same time
    sync_folder(folder.parent)
    return new


def _is_marked(folder: Path, kind: FolderKind) -> bool:
    """Return whether the folder has a marker of this kind; raise an error if it is one of another kind."""
    try:
        found = read_json(folder / MARKER)["kind"]
    except (OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
        return False  # also if it is damaged: its files are looked at
    if found != kind.name:
        raise ValueError(f"{folder}: got the folder of a {found}, expected that of a {kind.name}, or a new one")
    return True


def _refuse_files_of_others(folder: Path, kind: FolderKind) -> None:
    found = sorted(path for path in folder.iterdir() if kind.files.fullmatch(path.name))
    others = [path.name for path in found if not kind.is_ours(path)]
    if others:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        raise ValueError(f"{folder}: {shown} in the way, not written by hge for a {kind.name}; expected another folder")


def _sweep(folder: Path, kind: FolderKind) -> None:
    """Delete what was half written; whoever wrote it is gone, since this process holds the folder."""
    for path in folder.iterdir():
        half = LEFTOVER.fullmatch(path.name)
        if half and (kind.files.fullmatch(half["name"]) or half["name"] == MARKER):
            path.unlink(missing_ok=True)


@contextmanager
def _locked(folder: Path, patience: float) -> Iterator[None]:
    path, deadline = folder / LOCK, time.monotonic() + patience
    while (file := _try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise FolderInUseError(f"{folder}: in use by {_holder(path)}; expected that no other process writes to it")
        time.sleep(PAUSE)
    try:
        with suppress(OSError):  # it is for the message only
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
            file.flush()
        yield
    finally:
        if sys.platform != "win32":  # where open files cannot be deleted
            path.unlink(missing_ok=True)
        with suppress(OSError):
            file.close()


def _try_lock(path: Path) -> IO[bytes] | None:
    """Return the lock's file, open and locked, or None if another process holds it.

    The system releases the lock when the process ends, however it ends: a file left by a dead process is no lock.
    """
    while True:
        file = path.open("a+b")
        try:
            _lock(file)
        except (BlockingIOError, PermissionError):
            file.close()
            return None
        except OSError as error:  # some network file systems
            message = f"{path}: {error.strerror}; make sure that no other process writes to the folder"
            warnings.warn(message, stacklevel=6)
        with suppress(OSError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                file.truncate(0)
                return file
        file.close()  # its last holder deleted it after it was opened here


def _holder(path: Path) -> str:
    try:
        return path.read_text() or "another process"
    except OSError:
        return "another process"


if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(2**30)  # a byte that is not there, so that others can read the process id
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
