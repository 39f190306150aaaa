from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.dataset_files import (
    DIGITS,
    tar,
    write_cifar10,
    write_cifar100,
    write_mnist,
    write_tiny,
    write_tiny_32px,
    zipped,
)
from hge.data.dataset_registry import CHECKSUMS, DATASETS, KnownVariant
from hge.data.datasets import data_folder, find, get, import_files, load, verify
from hge.data.formats import ImageSet, read_mnist

NAMES = ("mnist", "kmnist", "cifar10", "cifar100", "tiny-imagenet")


def write_all(folder: Path) -> None:
    write_mnist(folder / "MNIST" / "raw")
    write_mnist(folder / "KMNIST" / "raw", zipped=True)
    write_cifar10(folder / "cifar-10-batches-py")
    write_cifar100(folder / "cifar-100-python")
    write_tiny_32px(folder / "tiny-imagenet-200-32px")


def test_the_five_sets_are_known() -> None:
    assert tuple(DATASETS) == tuple(CHECKSUMS) == NAMES


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HGE_DATA", str(tmp_path / "env"))
    assert data_folder(tmp_path) == tmp_path
    assert data_folder(None) == tmp_path / "env"
    monkeypatch.setenv("HGE_DATA", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    for platform, expected in (
        ("linux", tmp_path / "xdg" / "hge"),
        ("darwin", Path.home() / "Library" / "Caches" / "hge"),
        ("win32", tmp_path / "local" / "hge"),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert data_folder(None) == expected
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(sys, "platform", "linux")
    assert data_folder(None) == Path.home() / ".cache" / "hge"


@pytest.mark.parametrize("place", ["MNIST/raw", "MNIST", "mnist/raw", "mnist"])
@pytest.mark.parametrize("gz", [False, True])
def test_mnist_is_found_where_people_keep_it(tmp_path: Path, place: str, gz: bool) -> None:
    assert find("mnist", tmp_path) is None
    write_mnist(tmp_path / place, zipped=gz)
    found = find("mnist", tmp_path)
    assert found is not None
    assert found.samefile(tmp_path / place)
    assert load("mnist", tmp_path).train_images.shape == (12, 1, 28, 28)
    assert find("kmnist", tmp_path) is None


def test_a_set_that_lacks_a_file_is_not_found(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST")
    (tmp_path / "MNIST" / "t10k-labels-idx1-ubyte").unlink()
    assert find("mnist", tmp_path) is None


def test_downloaded_files_go_before_unpacked_ones(tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw", train=20)
    write_mnist(tmp_path / "MNIST" / "raw", train=30, zipped=True)
    assert len(load("mnist", tmp_path).train_labels) == 30
    write_cifar10(tmp_path / "cifar-10-batches-py")
    archive = tar(tmp_path / "cifar-10-batches-py")
    assert find("cifar10", tmp_path) == archive
    write_tiny_32px(tmp_path / "tiny-imagenet-200-32px")
    write_tiny(tmp_path / "tiny-imagenet-200")
    assert find("tiny-imagenet", tmp_path) == tmp_path / "tiny-imagenet-200"
    archive = zipped(tmp_path / "tiny-imagenet-200")
    assert find("tiny-imagenet", tmp_path) == archive


def test_sets_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "MNIST")
    first = load("mnist", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert load("mnist", Path(".")) is first


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_set_says_in_one_line_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"was not found: put .* into .*, or run `hge data get {name}`$") as raised:
        load(name, tmp_path)
    assert "\n" not in str(raised.value)
    assert str(tmp_path) in str(raised.value)
    verdict = verify(name, tmp_path)
    assert (verdict.found, verdict.ok, verdict.variant) == (None, False, "missing")


def test_unknown_names(tmp_path: Path) -> None:
    for call in (find, load, verify):
        with pytest.raises(ValueError, match="data set: got 'imagenet', expected one of mnist, kmnist"):
            call("imagenet", tmp_path)
    with pytest.raises(ValueError, match="data set: got 'imagenet'"):
        get("imagenet", tmp_path, progress=False)


def test_verify_says_what_differs(tmp_path: Path) -> None:
    write_all(tmp_path)
    for name in NAMES:
        verdict = verify(name, tmp_path)
        assert verdict.found == find(name, tmp_path)
        assert not verdict.ok
        assert "differs in train images, train labels" in verdict.detail
    assert "12 + 5 images of 10 classes" in verify("mnist", tmp_path).detail


def test_verify_says_what_cannot_be_read(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "cifar-10-batches-py" / "test_batch").write_bytes(b"")
    verdict = verify("cifar10", tmp_path)
    assert (verdict.ok, verdict.variant) == (False, "unreadable")
    assert "test_batch" in verdict.detail


def test_verify_compares_each_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar100(tmp_path / "cifar-100-python")
    images = load("cifar100", tmp_path)
    coarse = np.array(images.coarse_labels_of_class)
    arrays = {"train images": images.train_images, "test images": images.test_images}
    for part, labels in (("train", images.train_labels), ("test", images.test_labels)):
        arrays |= {f"{part} labels": labels, f"{part} coarse": coarse[labels]}
    sums = {name: hashlib.sha256(array.astype(np.uint8).tobytes()).hexdigest() for name, array in arrays.items()}
    known = KnownVariant("official", sums)
    assert set(known.sha256) == set(CHECKSUMS["cifar100"].sha256)
    monkeypatch.setitem(CHECKSUMS, "cifar100", known)
    assert verify("cifar100", tmp_path).ok
    for key in known.sha256:
        monkeypatch.setitem(CHECKSUMS, "cifar100", KnownVariant("official", known.sha256 | {key: "0"}))
        verdict = verify("cifar100", tmp_path)
        assert not verdict.ok
        assert f"differs in {key} from" in verdict.detail


@pytest.mark.slow
def test_official_counts_are_enough_where_no_checksum_is_known(tmp_path: Path) -> None:
    write_mnist(tmp_path / "KMNIST", train=60_000, test=10_000)
    verdict = verify("kmnist", tmp_path)
    assert (verdict.ok, verdict.variant) == (True, "official counts; no checksum known")
    assert get("kmnist", tmp_path, progress=False) == tmp_path / "KMNIST"  # there already: no network
    write_mnist(tmp_path / "KMNIST", train=60_000, test=10_001)
    assert not verify("kmnist", tmp_path).ok
    (tmp_path / "KMNIST").rename(tmp_path / "MNIST")
    assert not verify("mnist", tmp_path).ok


def test_import_copies_every_set_under_the_source(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    write_all(source / "here")
    assert import_files(source, folder) == list(NAMES)
    for name in NAMES:
        assert same(load(name, folder), load(name, source / "here"))
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]
    assert import_files(source, folder) == list(NAMES)  # once more changes nothing


def test_import_takes_a_set_itself(tmp_path: Path) -> None:
    source, folder = tmp_path / "source", tmp_path / "folder"
    write_all(source)
    write_tiny(source / "tiny-imagenet-200")
    for path, names in (
        (source / "MNIST" / "raw", ["mnist"]),
        (source / "KMNIST", ["kmnist"]),
        (tar(source / "cifar-10-batches-py"), ["cifar10"]),
        (source / "cifar-100-python", ["cifar100"]),
        (source / "tiny-imagenet-200", ["tiny-imagenet"]),
    ):
        assert import_files(path, folder) == names
        assert find(names[0], folder) is not None
    assert load("tiny-imagenet", folder).class_names == ("goldfish", "bullfrog, frog")
    assert import_files(source / "tiny-imagenet-200-32px", folder) == ["tiny-imagenet"]
    assert (folder / "tiny-imagenet-200-32px" / "val.npz").exists()


def test_import_takes_only_the_files_of_the_set(tmp_path: Path) -> None:
    write_mnist(tmp_path / "source" / "mnist")
    (tmp_path / "source" / "mnist" / "notes.txt").write_text("mine")
    import_files(tmp_path / "source", tmp_path / "folder")
    assert find("mnist", tmp_path / "folder") == tmp_path / "folder" / "MNIST" / "raw"
    assert not list((tmp_path / "folder").rglob("notes.txt"))


def test_import_of_a_broken_set_names_the_source_and_leaves_nothing(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "cifar-10-batches-py")
    broken = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    broken.write_bytes(broken.read_bytes()[:-9])
    with pytest.raises(ValueError, match=f"^{re.escape(str(broken))}: "):
        import_files(tmp_path, tmp_path / "folder")
    assert not list((tmp_path / "folder").iterdir())


def test_import_does_not_overwrite_another_set(tmp_path: Path) -> None:
    write_mnist(tmp_path / "source" / "MNIST")
    write_cifar100(tmp_path / "source" / "cifar-100-python")
    write_mnist(tmp_path / "folder" / "MNIST" / "raw", seed=1)
    before = load("mnist", tmp_path / "folder").train_images.copy()
    with pytest.raises(ValueError, match="contains other data than"):
        import_files(tmp_path / "source", tmp_path / "folder")
    now = read_mnist(tmp_path / "folder" / "MNIST" / "raw", "", DIGITS).train_images  # past the cache of `load`
    np.testing.assert_array_equal(now, before)
    assert find("cifar100", tmp_path / "folder") is None


def test_import_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no known data set found, expected one of MNIST/raw, MNIST"):
        import_files(tmp_path, tmp_path / "folder")
    with pytest.raises(ValueError, match="no known data set found"):
        import_files(tmp_path / "missing.zip", tmp_path / "folder")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("progress", [False, True])
def test_get_offline_says_in_one_line_which_file_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, progress: bool
) -> None:
    pooch = pytest.importorskip("pooch")
    calls = []

    def offline(url: str, *_: object, **__: object) -> str:
        calls.append(url)
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(pooch, "retrieve", offline)
    download = DATASETS[name].downloads[0]
    with pytest.raises(ValueError, match="ConnectionError: no route to host") as raised:
        get(name, tmp_path, progress=progress)
    message = str(raised.value)
    assert "\n" not in message
    assert f"put the file from {download.url} at {tmp_path / download.path}" in message
    assert calls == [download.url] * 3


def test_get_puts_the_files_where_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pooch = pytest.importorskip("pooch")
    write_mnist(tmp_path / "server", zipped=True)
    failures = iter([ValueError("hash of downloaded file does not match")])

    def retrieve(url: str, known_hash: str, fname: str, path: Path, downloader: Any) -> str:
        for failure in failures:
            raise failure
        assert known_hash.startswith("md5:")
        bar = downloader.progressbar
        bar.total = 10  # as pooch drives it
        for step in (lambda: bar.update(7), bar.reset, lambda: bar.update(10), bar.close):
            step()
        path.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(tmp_path / "server" / fname, path / fname))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert get("kmnist", tmp_path / "folder", progress=True) == tmp_path / "folder" / "KMNIST" / "raw"
    assert load("kmnist", tmp_path / "folder").class_names[:2] == ("o", "ki")


def test_get_without_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ValueError, match=r"pip install 'hge\[data\]'"):
        get("mnist", tmp_path, progress=False)


def same(one: ImageSet, other: ImageSet) -> bool:
    return one.class_names == other.class_names and all(
        np.array_equal(getattr(one, field), getattr(other, field))
        for field in ("train_images", "train_labels", "test_images", "test_labels")
    )


real = pytest.mark.skipif(not os.environ.get("HGE_DATA"), reason="HGE_DATA is not set")


@pytest.mark.data
@real
@pytest.mark.parametrize(
    ("name", "train", "test", "classes", "means"),
    [
        ("mnist", 60_000, 10_000, 10, [0.1307]),
        ("kmnist", 8_000, 2_000, 10, [0.1843]),
        ("cifar10", 50_000, 10_000, 10, [0.4914, 0.4822, 0.4465]),
        ("cifar100", 50_000, 10_000, 100, [0.5071, 0.4865, 0.4409]),
        ("tiny-imagenet", 50_000, 5_000, 100, [0.4813, 0.4456, 0.3944]),
    ],
)
def test_real_sets(name: str, train: int, test: int, classes: int, means: list[float]) -> None:
    images = load(name, data_folder(None))
    assert (len(images.train_images), len(images.test_images)) == (train, test)
    assert len(images.class_names) == classes
    np.testing.assert_allclose(images.train_images.mean(axis=(0, 2, 3)) / 255, means, atol=1e-4)
    if name == "mnist":
        counts = np.bincount(images.train_labels).tolist()
        assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    else:
        for labels, rows in ((images.train_labels, train), (images.test_labels, test)):
            assert set(np.bincount(labels, minlength=classes).tolist()) == {rows // classes}
    if name == "cifar100":
        assert images.coarse_labels_of_class is not None
        assert np.bincount(images.coarse_labels_of_class).tolist() == [5] * 20


@pytest.mark.data
@real
@pytest.mark.parametrize("name", NAMES)
def test_real_sets_are_what_they_should_be(name: str) -> None:
    verdict = verify(name, data_folder(None))
    assert verdict.ok, verdict.detail
    variants = {
        "kmnist": "part: 8,000 + 2,000 of the official test images, not comparable",
        "tiny-imagenet": "100 classes at 32 pixels, lossy, not comparable",
    }
    assert verdict.variant == variants.get(name, "official")
