"""One process at a time writes to a folder, and it leaves what is not its own alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hge.core.own_folder import LOCK, MARKER, FolderInUseError, FolderKind, hold

KIND = FolderKind("thing", re.compile(r"result\.json|thing-\d+"), lambda path: path.read_text() == "ours")
OTHER = FolderKind("heap", re.compile("heap"), lambda path: True)

HOLDER = """
import re, sys, time
from pathlib import Path
from hge.core.own_folder import FolderKind, hold
with hold(Path(sys.argv[1]), FolderKind("thing", re.compile("x"), lambda path: True)):
    (Path(sys.argv[1]) / ".thing-7.0123456789ab.tmp").touch()
    print("held", flush=True)
    time.sleep(60)
"""


def held_by_another_process(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    process.stdout.close()
    return process


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    process = held_by_another_process(tmp_path)
    try:
        told = f"{tmp_path.name}: in use by process {process.pid} on "
        with pytest.raises(FolderInUseError, match=told), hold(tmp_path, KIND):
            pytest.fail("held twice")
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / LOCK).exists(), "left by the dead process"
    with hold(tmp_path, KIND):
        assert not list(tmp_path.glob(".thing*")), "what it left half written"
        (tmp_path / "thing-7").touch()
    assert sorted(os.listdir(tmp_path)) == [MARKER, "thing-7"]


def test_two_threads_of_a_process_do_not_share_a_folder(tmp_path: Path) -> None:
    with hold(tmp_path, KIND):
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} "), hold(tmp_path, KIND):
            pytest.fail("held twice")
        with pytest.raises(FolderInUseError), hold(tmp_path, KIND, patience=0.15):
            pytest.fail("held twice")
    with hold(tmp_path, KIND):
        pass


@pytest.mark.parametrize("name", ["result.json", "thing-12"])
def test_files_of_others_are_named_and_stay(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("theirs")
    told = f"{name} in the way, not written by hge for a thing"
    with pytest.raises(ValueError, match=told), hold(tmp_path, KIND):
        pytest.fail("held")
    assert os.listdir(tmp_path) == [name]


def test_files_under_other_names_are_welcome(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("theirs")
    (tmp_path / ".notes.txt.tmp").write_text("theirs")
    with hold(tmp_path, KIND):
        (tmp_path / "thing-1").touch()
    assert sorted(os.listdir(tmp_path)) == [MARKER, ".notes.txt.tmp", "notes.txt", "thing-1"]


def test_folders_without_a_marker_are_taken_if_all_is_ours(tmp_path: Path) -> None:
    for name in ("thing-1", "thing-2"):
        (tmp_path / name).write_text("ours")
    with hold(tmp_path, KIND):
        (tmp_path / "thing-1").write_text("anything")
    with hold(tmp_path, KIND):  # it has a marker now
        pass
    (tmp_path / MARKER).write_bytes(b"\xff")  # damaged: the files are looked at
    with pytest.raises(ValueError, match="thing-1 in the way"), hold(tmp_path, KIND):
        pytest.fail("held")


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    with hold(tmp_path, OTHER):
        (tmp_path / "heap").touch()
    with pytest.raises(ValueError, match="got the folder of a heap, expected that of a thing"), hold(tmp_path, KIND):
        pytest.fail("held")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="got a file, expected a folder"), hold(tmp_path / "file", KIND):
        pytest.fail("held")


def test_where_nothing_was_written_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(KeyError), hold(tmp_path / "new", KIND):
        raise KeyError
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    with hold(tmp_path / "empty", KIND):
        pass
    assert not os.listdir(tmp_path / "empty")


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("link", "loop"):
        told = f"{name}: got a link to .*, which does not exist, expected a folder"
        with pytest.raises(ValueError, match=told), hold(tmp_path / name, KIND):
            pass
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize("name", ["new\nline", "duck \U0001f986", "  spaces  ", "-o", "a%s$HOME", "\udcff"])
def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "real")
    with hold(tmp_path / name, KIND):
        (tmp_path / name / "some.txt").write_text("x")
    assert (tmp_path / "real" / "some.txt").read_text() == "x"
