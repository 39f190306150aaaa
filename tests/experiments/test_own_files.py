"""A run touches only its own files, alone, and knows its settings and data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.command import hge
from helpers.cut_off import CutOffError, config_of, cut_off_at
from helpers.places import GOLDEN
from hge.core.files import SCHEMA
from hge.core.own_folder import MARKER
from hge.core.settings import override
from hge.experiments.recipes import build_config
from hge.experiments.run_files import CHECKPOINTS, is_run_of
from hge.experiments.runner import run

SHORT = build_config("split-digits", epochs_scale=0.05)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name",
    ["config.json", "events.jsonl", "trace.csv", "result.json", "report.html", "checkpoints/weights.safetensors"],
)
@pytest.mark.parametrize("resume", [False, True])
def test_files_of_others_are_named_and_stay(tmp_path: Path, name: str, resume: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"epochs": 3}')
    before = contents(tmp_path)
    told = f"{name.partition('/')[0]} in the way, not written by hge for a run"
    with pytest.raises(ValueError, match=told):
        run(SHORT, tmp_path, resume=resume)
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_files_beside_a_run_and_beside_its_checkpoints_stay(tmp_path: Path) -> None:
    others = ["notes.txt", "model.safetensors", f"{CHECKPOINTS}/a.safetensors", f"{CHECKPOINTS}/checkpoint-9.json"]
    with pytest.raises(CutOffError):
        run(SHORT, tmp_path, cut_off_at(12), checkpoint_every=5)
    for name in others:
        (tmp_path / name).write_text("[3]")
    result = run(SHORT, tmp_path, resume=True, checkpoint_every=5)
    assert run(SHORT, tmp_path)["accuracy_batch"] == result["accuracy_batch"]
    assert all((tmp_path / name).read_text() == "[3]" for name in others)


@pytest.mark.slow
def test_the_folder_of_an_earlier_version_is_recognised(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "release-0.1.0" / "run", tmp_path / "run")
    run(SHORT, tmp_path / "run")
    assert not (tmp_path / "run" / CHECKPOINTS).exists()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["schema"] == SCHEMA


def test_a_run_that_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="MNIST was not found"):
        run(build_config("smnist"), tmp_path / "run", data=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_second_process_is_refused_until_the_first_is_dead(tmp_path: Path) -> None:
    options = ["run", "split-digits", "--device", "cpu", "--checkpoint-every", "5", "--out", str(tmp_path / "run")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    first = subprocess.Popen([sys.executable, "-m", "hge", *options], env=environment, stdout=subprocess.DEVNULL)
    try:
        while not (tmp_path / "run" / "events.jsonl").exists():
            assert first.poll() is None
        second = hge(*options, cwd=tmp_path)
        assert (second.returncode, f"in use by process {first.pid} on " in second.stderr) == (2, True)
    finally:
        first.kill()
        first.wait()
    assert hge(*options, "--epochs-scale", "0.05", cwd=tmp_path).returncode == 0, "the lock of a dead process is none"
    assert not list((tmp_path / "run").glob(".hge-lock"))


def write_images(folder: Path, classes: str, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    for number, name in enumerate(classes.split()):
        (folder / name).mkdir(parents=True)
        for image in range(30):
            pixels = rng.integers(number * 100, number * 100 + 50, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{image}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("finished", [False, True])
def test_other_data_are_an_error(tmp_path: Path, finished: bool) -> None:
    config = override(build_config("image-folder", epochs_scale=0.02), "net=mlp")
    images = write_images(tmp_path / "images", "cat dog")
    if finished:
        run(config, tmp_path / "run", data=images)
    else:
        with pytest.raises(CutOffError):
            run(config, tmp_path / "run", cut_off_at(1), images, checkpoint_every=1)
    before = contents(tmp_path / "run")
    changed = shutil.copytree(images, tmp_path / "changed")
    pixels = np.array(Image.open(changed / "dog" / "3.png"))
    pixels[0, 0] ^= 255
    Image.fromarray(pixels).save(changed / "dog" / "3.png")
    fewer = shutil.copytree(images, tmp_path / "fewer")
    (fewer / "cat" / "7.png").unlink()
    others = [write_images(tmp_path / "other", "cat dog", seed=1), write_images(tmp_path / "renamed", "cow dog")]
    for other in (*others, changed, fewer):
        with pytest.raises(ValueError, match=r"resume: got other data than those of the run in .*run, expected the"):
            run(config, tmp_path / "run", data=other, resume=True)
    assert contents(tmp_path / "run") == before
    moved = images.rename(tmp_path / "elsewhere")
    assert len(run(config, tmp_path / "run", data=moved, resume=True)["data"]) == 64


@pytest.mark.slow
def test_the_result_is_on_disk_before_the_checkpoints_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the order in which they are flushed, named and deleted."""
    done: list[str] = []
    sync, rename, delete = os.fsync, Path.replace, Path.unlink

    def syncing(descriptor: int) -> None:
        done.append(f"flush {Path(os.readlink(f'/proc/self/fd/{descriptor}')).name}")
        sync(descriptor)

    def renaming(self: Path, target: Path) -> Path:
        done.append(f"name {target.name}")
        return rename(self, target)

    def deleting(self: Path, missing_ok: bool = False) -> None:
        done.append(f"delete {self.name}")
        delete(self, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", syncing)
        patch.setattr(Path, "replace", renaming)
        patch.setattr(Path, "unlink", deleting)
        run(SHORT, tmp_path / "run", checkpoint_every=50)
    named = done.index("name result.json")
    assert done[named - 1].startswith("flush .result.json.")
    assert {"flush events.jsonl", "flush trace.csv"} <= set(done[:named])
    assert done[named + 1] == "flush run"
    first_deleted = next(n for n, what in enumerate(done) if n > named and what.startswith("delete checkpoint-"))
    assert first_deleted > named + 1


@pytest.mark.slow
def test_a_report_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("run", "split-digits", "--epochs-scale", "0.05", "--device", "cpu", "--out", "run")
    assert hge(*options, cwd=tmp_path).returncode == 0
    before = (tmp_path / "run" / "report.html").read_bytes()

    def full(self: Path, target: Path) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    done = hge("report", "run", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"hge: {Path('run') / 'report.html'}: No space left on device\n")
    assert (tmp_path / "run" / "report.html").read_bytes() == before
    assert not list((tmp_path / "run").glob(".*.tmp"))


def test_every_json_file_of_a_run_has_its_schema(tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(config_of("ge"), tmp_path, cut_off_at(12), checkpoint_every=5)
    manifests = [json.loads(path.read_text())["body"] for path in tmp_path.glob("checkpoints/*.json")]
    documents = [json.loads((tmp_path / name).read_text()) for name in ("config.json", MARKER)]
    assert all(document["schema"] >= 1 for document in [*manifests, *documents])
    (tmp_path / "config.json").write_text(json.dumps(documents[0] | {"schema": SCHEMA + 1}))
    with pytest.raises(ValueError, match=rf"config\.json: .*got schema {SCHEMA + 1}, expected at most {SCHEMA}"):
        is_run_of(tmp_path, config_of("ge"))
