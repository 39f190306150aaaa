from __future__ import annotations

import gzip
import io
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers.dataset_files import (
    DIGITS,
    Array,
    idx,
    jpeg,
    opcodes,
    pixels,
    python2,
    tar,
    write_cifar10,
    write_cifar100,
    write_mnist,
    write_tiny,
    write_tiny_32px,
    zipped,
)
from hge.data.formats import (
    read_cifar10,
    read_cifar100,
    read_idx,
    read_mnist,
    read_tiny_imagenet,
    read_tiny_imagenet_32px,
)


def named(path: Path) -> str:
    """A pattern for pytest.raises: the message begins with the file."""
    return "^" + re.escape(str(path)) + ".*: "


@pytest.mark.parametrize("shape", [(5,), (3, 4, 2)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_idx_reads_what_was_written_whatever_its_name(
    tmp_path: Path, shape: tuple[int, ...], pack: Callable[[bytes], bytes]
) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path / "any-name"
    path.write_bytes(pack(idx(array)))
    np.testing.assert_array_equal(read_idx(path), array)


GOOD = idx(np.zeros((2, 3), np.uint8))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "starts with nothing"),
        (GOOD[:6], "starts with 00000802"),
        (GOOD[:-1], "5 bytes after the header, expected 6"),
        (GOOD + b"\0", "7 bytes after the header, expected 6"),
        (b"\0\0\x0d" + GOOD[3:], "starts with 00000d02"),
        (b"\0\0\x08\0", "starts with 00000800"),
        (b"<html>not found", "starts with 3c68746d"),
        (gzip.compress(GOOD, mtime=0)[:-6], "not a complete gzip file"),
        (
            gzip.compress(GOOD, mtime=0)[:12] + b"\xff\xff" + gzip.compress(GOOD, mtime=0)[14:],
            "not a complete gzip file",
        ),
    ],
)
def test_broken_idx_is_an_error_that_names_the_file(tmp_path: Path, raw: bytes, why: str) -> None:
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=named(path) + why):
        read_idx(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_mnist(tmp_path: Path, suffix: str) -> None:
    write_mnist(tmp_path, zipped=bool(suffix))
    images = read_mnist(tmp_path, suffix, DIGITS)
    assert images.train_images.shape == (12, 1, 28, 28)
    assert images.test_labels.tolist() == [0, 1, 2, 3, 4]
    assert (images.train_images.dtype, images.train_labels.dtype) == (np.uint8, np.int64)
    assert images.train_images.flags.c_contiguous
    assert images.class_names == DIGITS
    np.testing.assert_array_equal(images.test_images[:, 0], read_idx(tmp_path / f"t10k-images-idx3-ubyte{suffix}"))


@pytest.mark.parametrize(
    ("file", "array", "why"),
    [
        ("train-labels-idx1-ubyte", np.zeros(11, np.uint8), r"labels are uint8 \(11,\), expected .* 12 rows"),
        ("t10k-labels-idx1-ubyte", np.full(5, 10, np.uint8), "labels from 10 to 10, expected 0 to 9"),
        ("train-images-idx3-ubyte", np.zeros((12, 28), np.uint8), "2 dimensions"),
    ],
)
def test_mnist_files_that_do_not_fit_together(tmp_path: Path, file: str, array: Array, why: str) -> None:
    write_mnist(tmp_path)
    (tmp_path / file).write_bytes(idx(array))
    with pytest.raises(ValueError, match=named(tmp_path / file) + why):
        read_mnist(tmp_path, "", DIGITS)


def test_mnist_lacking_a_file(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match=named(tmp_path / "t10k-labels-idx1-ubyte") + "cannot be read"):
        read_mnist(tmp_path, "", DIGITS)


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "tar.gz"])
def test_cifar10(tmp_path: Path, archived: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    images = read_cifar10(tar(folder) if archived else folder)
    assert images.train_labels.tolist() == [0, 2, 1, 2, 2, 2, 0, 2, 1, 2]
    assert images.test_labels.tolist() == [2, 2]
    expected = np.concatenate([pixels(2, i) for i in range(5)]).reshape(-1, 3, 32, 32)
    np.testing.assert_array_equal(images.train_images, expected)
    assert images.train_images.flags.c_contiguous
    assert images.class_names == ("cat", "dog", "frog")
    assert images.coarse_labels_of_class is None


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "tar.gz"])
def test_cifar100(tmp_path: Path, archived: bool) -> None:
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder)
    images = read_cifar100(tar(folder) if archived else folder)
    assert images.train_labels.tolist() == [0, 1, 2, 2]
    assert images.class_names == ("apple", "bear", "pear")
    assert images.coarse_labels_of_class == (1, 0, 1)
    np.testing.assert_array_equal(images.test_images.reshape(2, -1), pixels(2, 2))


def test_batches_written_by_new_numpy_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder)
    batch = {"fine_labels": [2, 0], "coarse_labels": [1, 1], "data": pixels(2, 7)}
    raw = pickle.dumps(batch, protocol=3)
    assert b"multiarray" in raw
    for module in (b"numpy.core.multiarray", b"numpy._core.multiarray"):
        renamed = raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
        (folder / "test").write_bytes(renamed.replace(b"numpy.core.multiarray", module))
        np.testing.assert_array_equal(read_cifar100(folder).test_images.reshape(2, -1), pixels(2, 7))


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ({"fine_labels": [0, 1], "coarse_labels": [1, 0]}, "'data' is NoneType"),
        ({"data": [1, 2], "fine_labels": [0, 1], "coarse_labels": [1, 0]}, "'data' is list"),
        ({"data": pixels(2, 0)[:, :3071], "fine_labels": [0, 1]}, r"'data' is uint8 \(2, 3071\)"),
        ({"data": pixels(2, 0).reshape(2, 3, 1024), "fine_labels": [0, 1]}, r"'data' is uint8 \(2, 3, 1024\)"),
        ({"data": pixels(2, 0).view(np.uint16)[:, :3], "fine_labels": [0, 1]}, "an array of 'u2'"),
        ({"data": pixels(2, 0), "labels": [0, 1]}, "'fine_labels' is NoneType"),
        ({"data": pixels(2, 0), "fine_labels": [0, "1"]}, "'fine_labels' is list, expected a list of integers"),
        ({"data": pixels(2, 0), "fine_labels": [0]}, r"'fine_labels': labels are int64 \(1,\), expected .* 2 rows"),
        ({"data": pixels(2, 0), "fine_labels": [0, 3]}, "labels from 0 to 3, expected 0 to 2"),
        ({"data": pixels(2, 0), "fine_labels": [-1, 0]}, "labels from -1 to 0"),
        ({"data": pixels(2, 0), "fine_labels": [0, 1], "coarse_labels": [0, 2]}, "'coarse_labels': labels from 0 to 2"),
        ({"data": pixels(2, 0), "fine_labels": [0, 0], "coarse_labels": [0, 1]}, "rows of two superclasses"),
        ({"data": pixels(2, 0), "fine_labels": [0, 1], "coarse_labels": [1, 0]}, "no rows of 'pear'"),
        ({"data": pixels(0, 0), "fine_labels": [], "coarse_labels": []}, "expected an integer for each of 0 rows"),
        ([1, 2], "holds list"),
    ],
)
def test_wrong_batches_are_errors_that_name_the_file(tmp_path: Path, batch: object, why: str) -> None:
    folder = tmp_path / "cifar-100-python"
    write_cifar100(folder)
    (folder / "train").write_bytes(python2(batch))
    with pytest.raises(ValueError, match=named(folder / "train") + ".*" + why):
        read_cifar100(folder)
    archive = tar(folder)
    with pytest.raises(ValueError, match=named(archive / "train") + ".*" + why):
        read_cifar100(archive)


def test_wrong_names_of_classes(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "batches.meta").write_bytes(python2({"names": ["cat"]}))
    with pytest.raises(ValueError, match=named(folder / "batches.meta") + "'label_names' is NoneType"):
        read_cifar10(folder)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-40], lambda raw: raw + b"more", lambda raw: b"", lambda raw: b"%"]
)
def test_broken_pickles_are_errors_that_name_the_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    file = folder / "data_batch_3"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=named(file)):
        read_cifar10(folder)


def test_batch_shorter_than_its_shape(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    raw = (folder / "test_batch").read_bytes()
    (folder / "test_batch").write_bytes(raw.replace(opcodes(2) + opcodes(3072), opcodes(3) + opcodes(3072)))
    with pytest.raises(ValueError, match=named(folder / "test_batch")):
        read_cifar10(folder)


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: raw[:-3], lambda raw: b"<html>"])
def test_broken_archives_are_errors_that_name_the_file(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    archive = tar(folder)
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(ValueError, match=named(archive) + "not a complete tar.gz file"):
        read_cifar10(archive)


def test_archive_that_lacks_a_batch(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "data_batch_4").unlink()
    with pytest.raises(ValueError, match=named(tar(folder)) + "lacks data_batch_4"):
        read_cifar10(tar(folder))
    with pytest.raises(ValueError, match=named(folder / "data_batch_4") + "cannot be read"):
        read_cifar10(folder)


class Calls:
    """Pickles as a call of `function`."""

    def __init__(self, function: object, *args: object) -> None:
        self.call = (function, args)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def hostile(marker: Path) -> dict[str, bytes]:
    touch = f"open({str(marker)!r}, 'w').close()"
    shell = f"touch {marker}"

    def call(module: str, name: str, argument: str) -> bytes:
        return f"c{module}\n{name}\n(V{argument}\ntR.".encode()

    return {
        "os.system": pickle.dumps({"data": Calls(os.system, shell)}, protocol=2),
        "exec": pickle.dumps({"data": Calls(exec, touch)}, protocol=4),
        "eval": call("__builtin__", "eval", touch),
        "builtins.eval": call("builtins", "eval", touch),
        "a gadget in numpy": call("numpy.testing._private.utils", "runstring", touch),
        "a module that numpy imports": call("numpy.core.multiarray", "os.system", shell),
        "an attribute path": b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.sys\x93.",
        "a file by numpy": call("numpy", "save", str(marker)),
        "memmap": call("numpy", "memmap", str(marker)),
        "state of a stand-in": b"cnumpy.core.multiarray\n_reconstruct\n}S'__call__'\nS'x'\nsb.",
        "slots of a stand-in": b"cnumpy\ndtype\nN}S'__init__'\nS'x'\ns\x86b.",
        "array of objects": b"cnumpy\ndtype\n(S'O'\nK\x00K\x01tR.",
        "persistent id": b"Pos.system\n.",
    }


@pytest.mark.parametrize("attack", hostile(Path("marker")))
def test_hostile_pickles_raise_and_run_nothing(tmp_path: Path, attack: str) -> None:
    folder, marker = tmp_path / "cifar-10-batches-py", tmp_path / "marker"
    write_cifar10(folder)
    good = (folder / "data_batch_1").read_bytes()
    (folder / "data_batch_1").write_bytes(hostile(marker)[attack])
    with pytest.raises(ValueError, match=named(folder / "data_batch_1") + "not a pickle of plain values"):
        read_cifar10(folder)
    assert not marker.exists()
    (folder / "data_batch_1").write_bytes(good)
    assert len(read_cifar10(folder).train_labels) == 10  # the attack left nothing behind in the reader


def test_the_attacks_work_on_the_ordinary_unpickler(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for attack in ("exec", "builtins.eval"):
        pickle.loads(hostile(marker)[attack])
        assert marker.exists()
        marker.unlink()


@pytest.mark.parametrize("archived", [False, True], ids=["folder", "zip"])
def test_tiny_imagenet(tmp_path: Path, archived: bool) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny(folder)
    images = read_tiny_imagenet(zipped(folder) if archived else folder)
    assert images.train_images.shape == (4, 3, 32, 32)
    assert images.train_labels.tolist() == [0, 0, 1, 1]
    assert images.test_labels.tolist() == [1]
    assert images.class_names == ("goldfish", "bullfrog, frog")
    np.testing.assert_allclose(images.train_images.mean(axis=(1, 2, 3)), [60, 80, 0, 20], atol=1)
    np.testing.assert_allclose(images.test_images.mean(axis=(0, 2, 3)), [200] * 3, atol=1)


def test_tiny_imagenet_without_words_is_named_by_wnids(tmp_path: Path) -> None:
    write_tiny(tmp_path / "t")
    (tmp_path / "t" / "words.txt").unlink()
    assert read_tiny_imagenet(tmp_path / "t").class_names == ("n01", "n02")


@pytest.mark.parametrize(
    ("file", "raw", "why"),
    [
        ("train/n01/images/n01_1.JPEG", jpeg(9)[:-200], "not a readable image"),
        ("train/n01/images/n01_1.JPEG", b"GIF89a", "not a readable image"),
        ("train/n05/images/n05_0.JPEG", jpeg(9), "of class 'n05', expected one of those in wnids.txt"),
        ("val/images/val_1.JPEG", jpeg(9), "is in only one of"),
        ("val/images/val_0.JPEG", None, "is in only one of"),
        ("wnids.txt", None, "is missing"),
        ("wnids.txt", b"\xff\xfe", "not a text file"),
        ("val/val_annotations.txt", None, "is missing"),
    ],
)
def test_broken_tiny_imagenet(tmp_path: Path, file: str, raw: bytes | None, why: str) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny(folder)
    if raw is None:
        (folder / file).unlink()
    else:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(raw)
    for path in (folder, zipped(folder)):
        with pytest.raises(ValueError, match=named(path / file) + why):
            read_tiny_imagenet(path)


def test_tiny_imagenet_class_without_images(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    (tmp_path / "wnids.txt").write_text("n01\nn02\nn03\n")
    with pytest.raises(ValueError, match=named(tmp_path / "train" / "n03") + "no JPEG images"):
        read_tiny_imagenet(tmp_path)


def test_broken_zip(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny-imagenet-200")
    path = zipped(tmp_path / "tiny-imagenet-200")
    raw = path.read_bytes()
    flipped = raw.replace(jpeg(200), jpeg(200)[:-9] + b"\0" * 9)
    for damaged in (raw[:-300], flipped, b"<html>"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=named(path)):
            read_tiny_imagenet(path)


def test_tiny_imagenet_32px(tmp_path: Path) -> None:
    write_tiny_32px(tmp_path / "t")
    images = read_tiny_imagenet_32px(tmp_path / "t")
    assert images.train_labels.tolist() == [0, 1, 0, 1]
    assert images.class_names == ("goldfish", "bullfrog")
    assert images.train_images.flags.c_contiguous
    with np.load(tmp_path / "t" / "val.npz") as arrays:
        np.testing.assert_array_equal(images.test_images.transpose(0, 2, 3, 1), arrays["images"])


@pytest.mark.parametrize(
    "changed",
    [
        {"images": np.zeros((4, 3, 32, 32), np.uint8)},
        {"images": np.zeros((4, 32, 32, 3), np.float32)},
        {"labels": np.array([0, 1, 2, 1])},
        {"labels": np.array([0.0, 1.0, 0.0, 1.0])},
        {"labels": np.array([0, 1, 0])},
        {"names": np.array(["goldfish"])},
        {"names": np.array([1, 2])},
        {"images": np.array([None, {}], dtype=object)},
    ],
)
def test_wrong_npz_is_an_error_that_names_the_file(tmp_path: Path, changed: dict[str, Array]) -> None:
    write_tiny_32px(tmp_path / "t", **changed)
    with pytest.raises(ValueError, match=named(tmp_path / "t" / "train.npz")):
        read_tiny_imagenet_32px(tmp_path / "t")


def test_npz_lacking_an_array_cut_short_or_of_other_classes(tmp_path: Path) -> None:
    write_tiny_32px(tmp_path / "t")
    path = tmp_path / "t" / "val.npz"
    with np.load(path) as file:
        arrays = dict(file)
    damaged = io.BytesIO()
    np.save(damaged, arrays["images"])
    for raw in (path.read_bytes()[:-100], b"", b"<html>", damaged.getvalue()):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=named(path) + "not a complete zip file"):
            read_tiny_imagenet_32px(tmp_path / "t")
    np.savez(path, **{key: array for key, array in arrays.items() if key != "wnids"})
    with pytest.raises(ValueError, match=named(path) + "lacks wnids, expected an npz with"):
        read_tiny_imagenet_32px(tmp_path / "t")
    np.savez(path, **(arrays | {"wnids": np.array(["n01", "n07"])}))
    with pytest.raises(ValueError, match=named(path) + "other wnids or names"):
        read_tiny_imagenet_32px(tmp_path / "t")
