"""The streams of the benchmark: those that need no files, and the others from small files of their form."""

from __future__ import annotations

import gzip
import struct
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hge.data.named_streams import IMAGE_PLANS, PAIR_ORDER, STREAMS

FREE = [name for name, stream in STREAMS.items() if not stream.files()]
SHAPES = {
    "stagger": (3, 2, 3),
    "sine": (2, 2, 3),
    "agrawal": (9, 2, 3),
    "rbf": (10, 2, 3),
    "digit-pairs": (64, 10, 5),
    "rbf-stationary": (10, 2, 1),
    "led": (24, 10, 1),
    "noise": (10, 2, 1),
}
"""Inputs, classes and concepts."""


def test_streams_that_need_no_files() -> None:
    assert set(FREE) == set(SHAPES)


@pytest.mark.parametrize("name", FREE)
def test_a_stream_is_determined_by_its_seed(name: str) -> None:
    inputs, classes, concepts = SHAPES[name]
    stream, again, other = (STREAMS[name].draw(seed) for seed in (3, 3, 4))
    assert stream.x.shape == (len(stream), inputs)
    assert (stream.x.dtype, stream.y.dtype) == (np.float32, np.int64)
    assert np.unique(stream.y).tolist() == list(range(classes))
    assert sorted(stream.held_out) == sorted(set(stream.concept.tolist())) == list(range(concepts))
    assert all(x.shape == (len(y), inputs) for x, y in stream.held_out.values())
    np.testing.assert_array_equal(stream.x[:200], again.x[:200])
    np.testing.assert_array_equal(stream.y[:200], again.y[:200])
    assert (stream.x[:200] != other.x[:200]).any()


def test_each_digit_is_learned_or_held_out_once() -> None:
    stream = STREAMS["digit-pairs"].draw(0)
    held_out = [x for x, _ in stream.held_out.values()]
    assert (len(stream), sum(map(len, held_out))) == (1797 - 360, 360)
    learned = {row.tobytes() for row in stream.x}
    assert len({row.tobytes() for row in np.concatenate(held_out)} & learned) == 0


def write_idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(
        b"\0\0\x08" + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    )


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 training and 20 test images of each class; one pixel of an image is its class, others its number."""
    monkeypatch.setenv("HGE_DATA", str(tmp_path))
    (tmp_path / "MNIST/raw").mkdir(parents=True)
    for part, rows, first in (("train", 400, 0), ("t10k", 200, 400)):
        y = np.arange(rows) % 10
        x = np.zeros((rows, 28, 28), np.uint8)
        x[:, :2, :2] = y[:, None, None]
        x[:, 2:4, :2], x[:, 4:6, :2] = (n[:, None, None] for n in divmod(np.arange(first, first + rows), 256))
        write_idx(tmp_path / f"MNIST/raw/{part}-images-idx3-ubyte", x)
        write_idx(tmp_path / f"MNIST/raw/{part}-labels-idx1-ubyte", y.astype(np.uint8))
    return tmp_path


@pytest.mark.parametrize("name", IMAGE_PLANS)
def test_streams_of_images(name: str, images: Path) -> None:
    stream = replace(IMAGE_PLANS[name], held_out=20).draw("MNIST", 0)
    visits = len(IMAGE_PLANS[name].order)
    rows = 40 if "pairs" in name else 200  # all images, in two visits
    assert stream.x.shape == (visits * rows, 196)
    assert sorted(stream.held_out) == sorted(set(stream.concept.tolist()))
    for concept, (x, y) in stream.held_out.items():
        own = stream.concept == concept
        assert not {row.tobytes() for row in x} & {row.tobytes() for row in stream.x[own]}
        assert len(np.unique(stream.x[own], axis=0)) == own.sum()
        assert len(np.unique(stream.y[own])) == (2 if "pairs" in name else 10)
        assert set(y.tolist()) <= set(stream.y[own].tolist())


def test_what_changes_between_concepts(images: Path) -> None:
    drawn = {name: replace(plan, held_out=20).draw("MNIST", 0) for name, plan in IMAGE_PLANS.items()}
    labels = drawn["labels"]
    given = [{int(row[0]): int(y) for row, y in zip(*labels.held_out[c], strict=True)} for c in range(3)]
    assert all(len(set(one.values())) == len(one) for one in given)
    assert given[0] != given[1]
    np.testing.assert_array_equal(drawn["pairs"].x[:, 0], drawn["pairs"].y)
    assert drawn["pairs"].concept.tolist() == np.repeat(PAIR_ORDER, 40).tolist()
    assert np.count_nonzero(np.diff(drawn["pairs-blended"].concept)) > 5
    assert {tuple(sorted(row)) for row in drawn["pixels"].x.tolist()} == {
        tuple(sorted(row)) for row in labels.x.tolist()
    }


def test_files_that_are_missing_are_named(images: Path) -> None:
    assert STREAMS["mnist-pairs"].missing == []
    assert STREAMS["fashion-pairs"].missing[0] == images / "FashionMNIST/raw/train-images-idx3-ubyte"
    assert STREAMS["elec"].missing == [images / "streams/elec.npz"]


def test_recorded_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HGE_DATA", str(tmp_path))
    (tmp_path / "streams").mkdir()
    np.savez(tmp_path / "streams/elec.npz", X=np.arange(6.0).reshape(3, 2), y=np.array([1, 0, 1], np.int16))
    stream = STREAMS["elec"].draw(0)
    assert (stream.x.tolist(), stream.y.tolist(), stream.held_out) == ([[0, 1], [2, 3], [4, 5]], [1, 0, 1], {})


def test_streams_of_river(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found without importing the package, whose import fails here."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "river", raising=False)
    folder = tmp_path / "river/datasets"
    folder.mkdir(parents=True)
    (tmp_path / "river/__init__.py").write_text("raise ImportError")
    (folder / "phishing.csv.gz").write_bytes(gzip.compress(b"a,b,is_phishing\n0.5,1,1\n0,0.25,0\n"))
    with zipfile.ZipFile(folder / "banana.zip", "w") as archive:
        archive.writestr("banana.all.txt", "-1 1:1.5 2:-0.5 \n1 1:2 2:0.25\n\n")
    with zipfile.ZipFile(folder / "segment.csv.zip", "w") as archive:
        archive.writestr("segment.csv", "a,category\n1,sky\n2,path\n3,sky\n")
    phishing, bananas, segments = (STREAMS[name].draw(0) for name in ("phishing", "bananas", "image-segments"))
    assert (phishing.x.tolist(), phishing.y.tolist()) == ([[0.5, 1], [0, 0.25]], [1, 0])
    assert (bananas.x.tolist(), bananas.y.tolist()) == ([[1.5, -0.5], [2, 0.25]], [0, 1])
    assert (segments.x.tolist(), segments.y.tolist()) == ([[1], [2], [3]], [1, 0, 1])
