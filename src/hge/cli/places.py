"""Places that commands write to: tried before any work is done, so that none is lost and an error names the option."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import typer


def folder_to_write(option: typer.CallbackParam, folder: Path | None) -> Path | None:
    """Return a command's folder, there or yet to be made; raise an error if it cannot be written to."""
    if folder is not None:
        check_folder(str(option.name), folder)
    return folder


def file_to_write(option: typer.CallbackParam, file: Path | None) -> Path | None:
    """Return a command's file, there or yet to be made; raise an error if it cannot be written."""
    if file is not None:
        if file.is_dir():
            raise ValueError(f"{option.name}: got {file}, expected a file, not a folder")
        _try(f"{option.name}: got {file}, expected a file that can be written", file.parent)
    return file


def check_folder(name: str, folder: Path) -> None:
    """Raise an error that names the option if no file can be written to a folder; change nothing."""
    _try(f"{name}: got {folder}, expected a folder that can be written to", folder)


def _try(message: str, folder: Path) -> None:
    """Write below the innermost folder that is there: permissions alone do not tell, as in /proc."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    try:
        with TemporaryDirectory(prefix=".hge-", dir=there):
            pass
    except OSError as error:
        raise ValueError(f"{message} ({there}: {error.strerror})") from None
