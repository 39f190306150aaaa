"""`hge predict`: files in, files out, here and on a cluster."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.command import hge
from helpers.digits import digits
from hge import GatedExperts
from hge.data.input_file import read_inputs
from hge.serving import bulk

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc, which even root cannot write to")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    X, y = digits(True)
    GatedExperts().partial_fit(X[:96], y[:96]).save(folder)
    return folder


def answers(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Any) -> None:
    names = [f"x{number}" for number in range(64)]
    lines = [",".join([*names, "who"]), *(",".join([*map(repr, map(float, row)), "Ann"]) for row in rows)]
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("suffix", ["csv", "npy", "npz"])
def test_answers_are_those_of_the_model(
    model: Path, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK", 16)
    X = digits(True)[0][96:136]
    data = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        write_csv(data, X)
    elif suffix == "npy":
        np.save(data, X)
    else:
        np.savez(data, X=X)
    options = ["--ignore", "who"] if suffix == "csv" else []
    done = hge("predict", str(model), str(data), "--out", "labels.csv", *options, cwd=tmp_path)
    assert (done.returncode, "40 predictions: labels.csv" in done.stdout) == (0, True), done.stderr
    loaded, found = GatedExperts.load(model), answers(tmp_path / "labels.csv")
    assert [int(line["label"]) for line in found] == loaded.predict(X).tolist()
    assert [int(line["row"]) for line in found] == list(range(40))
    np.testing.assert_allclose([float(line["confidence"]) for line in found], loaded.predict_proba(X).max(axis=1))


def test_a_folder_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 100, (64, 3, 4, 4)) + 100 * (np.arange(64) % 2)[:, None, None, None]
    GatedExperts().partial_fit(pixels.reshape(64, -1).astype(float), np.arange(64) % 2).save(tmp_path / "model")
    for name, brightness in (("dark/a.png", 20), ("light/b.png", 180)):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        Image.new("RGB", (9, 9), (brightness,) * 3).save(tmp_path / "images" / name)
    done = hge("predict", "model", "images", "--out", "labels.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "labels.npz") as found:
        assert dict(zip(found["row"].tolist(), found["label"].tolist(), strict=True)) == {
            "dark/a.png": 0,
            "light/b.png": 1,
        }


def test_images_are_read_channels_first(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for shape in ((3, 4, 4), (48,)):
        np.testing.assert_array_equal(read_inputs(tmp_path, shape).rows[0], pixels.transpose(2, 0, 1).reshape(shape))


def test_parquet_in_and_out(model: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    X = digits(True)[0][96:106]
    parquet.write_table(pyarrow.table({f"x{n}": X[:, n] for n in range(64)}), tmp_path / "rows.parquet")
    done = hge("predict", str(model), "rows.parquet", "--out", "labels.parquet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert parquet.read_table(tmp_path / "labels.parquet")["label"].to_pylist() == (
        GatedExperts.load(model).predict(X).tolist()
    )


@pytest.mark.parametrize(
    ("data", "out", "message"),
    [
        ("none.csv", "labels.csv", "data: got none.csv, expected a file or folder that is there"),
        ("rows.npy", "labels.txt", "out: got labels.txt, expected a file .csv, .parquet, .npz"),
        # Before the rows are read.
        (
            "none.csv",
            "rows.txt/labels.csv",
            "out: got rows.txt/labels.csv, expected a file that can be written (rows.txt",
        ),
        ("none.csv", "empty", "out: got empty, expected a file, not a folder"),
        pytest.param("none.csv", "/proc/labels.csv", "out: got /proc/labels.csv, expected a file", marks=ONLY_LINUX),
        ("wide.npy", "labels.csv", "got rows of shape (65,), expected (64,)"),
        ("missing.npy", "labels.csv", "row 2 has a missing or infinite value"),
        ("texts.csv", "labels.csv", "column 'who' has texts, expected numbers; leave it out with --ignore"),
        ("empty", "labels.csv", "expected rows (3, n, n)"),
        ("rows.txt", "labels.csv", "data: got rows.txt, expected .csv"),
        ("broken.npy", "labels.csv", "not a complete npy file"),
    ],
)
def test_an_error_is_one_line(model: Path, tmp_path: Path, data: str, out: str, message: str) -> None:
    X = digits(True)[0][:3]
    np.save(tmp_path / "rows.npy", X)
    np.save(tmp_path / "wide.npy", np.zeros((2, 65)))
    np.save(tmp_path / "missing.npy", np.where(np.arange(3)[:, None] == 1, np.nan, X))
    write_csv(tmp_path / "texts.csv", X)
    (tmp_path / "empty").mkdir()
    (tmp_path / "rows.txt").write_text("1")
    (tmp_path / "broken.npy").write_bytes((tmp_path / "rows.npy").read_bytes()[:-1])
    done = hge("predict", str(model), data, "--out", out, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert not (tmp_path / out).is_file()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    pytest.importorskip("pyarrow", reason="Ray Data needs pyarrow")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # in Ray Data itself
def test_two_nodes_answer_like_one_process(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = digits(True)
    GatedExperts().partial_fit(X[:96], np.array([f"digit {label}" for label in y[:96]])).save(tmp_path / "model")
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    monkeypatch.setattr(bulk, "CHUNK", 16)
    np.save(tmp_path / "rows.npy", X[96:176])
    options = ["--executor", "ray", "--ray-address", cluster.address]
    for out, more in (("here.npz", []), ("there.npz", options)):
        done = hge("predict", "model", "rows.npy", "--out", out, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "here.npz") as here, np.load(tmp_path / "there.npz") as there:
        assert {name: here[name].tolist() for name in here} == {name: there[name].tolist() for name in there}
