"""Files are whole or not there, and an error names them."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hge.core.files import SCHEMA, read_json, write_atomically, write_json


def test_a_file_is_on_disk_before_it_has_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, rename = os.fsync, Path.replace

    def syncing(descriptor: int) -> None:
        done.append("folder" if os.path.samestat(os.fstat(descriptor), tmp_path.stat()) else "file")
        sync(descriptor)

    def renaming(self: Path, target: Path) -> Path:
        done.append("name")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", syncing)
    monkeypatch.setattr(Path, "replace", renaming)
    write_atomically(tmp_path / "result.json", "{}")
    assert done == ["file", "name", "folder"]


@pytest.mark.parametrize("where", ["write", "fsync", "replace"])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_atomically(path, "old")

    def full(*arguments: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if where == "write":
            patch.setattr(Path, "open", lambda self, mode: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
        else:
            patch.setattr(*(os, "fsync") if where == "fsync" else (Path, "replace"), full)
        with pytest.raises(OSError, match="No space left on device") as caught:
            write_atomically(path, "new")
    assert caught.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["report.html"]


def test_two_writers_of_one_file_do_not_meet(tmp_path: Path) -> None:
    path, contents = tmp_path / "file", [letter * 50_000 for letter in "abcd"]

    def write(content: str) -> None:
        for _ in range(20):
            write_atomically(path, content)
            assert path.read_text() in contents

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["file"]


def test_json_has_a_schema_and_that_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, {"accuracy": 99.5})
    assert json.loads(path.read_text()) == {"schema": SCHEMA, "accuracy": 99.5}
    assert read_json(path) == {"accuracy": 99.5}
    path.write_text('{"accuracy": 99.5}')
    assert read_json(path) == {"accuracy": 99.5}, "of 0.1.0"
    path.write_text('{"schema": 2, "accuracy": 99.5}')
    with pytest.raises(ValueError, match=r"result\.json: got schema 2, expected at most 1; a later version"):
        read_json(path)
