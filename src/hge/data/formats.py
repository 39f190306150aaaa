"""Readers of the official files: idx (MNIST, KMNIST), Python batches (CIFAR), JPEG and npz (Tiny ImageNet).

Each reads a whole set or raises a ValueError that names the file. The expected number of rows is not checked here.
"""

from __future__ import annotations

import io
import math
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hge.data.image_decoding import decode_image
from hge.data.pickled_batches import PickledArray, read_batch
from hge.data.untrusted import open_gzip, open_zip, read_npz, read_regular, unpack_gzip

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
Rows = tuple[Pixels, Labels]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Labelled images for training and testing, as stored in the files."""

    train_images: Pixels
    """Rows × channels × height × width."""
    train_labels: Labels
    test_images: Pixels
    test_labels: Labels
    class_names: tuple[str, ...]
    """In the order of the labels."""
    coarse_labels_of_class: tuple[int, ...] | None = None
    """Superclass of each class, if the set has superclasses."""


def read_idx(path: Path) -> Pixels:
    """Read an idx file of unsigned bytes, plain or gzipped."""
    raw = read_regular(path)
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = unpack_gzip(raw, path)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: not a complete gzip file ({error})") from error
    start = 4 + 4 * raw[3] if len(raw) > 3 else 4
    if raw[:3] != b"\0\0\x08" or len(raw) < start or not 0 < raw[3] <= 4:
        raise ValueError(f"{path}: starts with {raw[:4].hex() or 'nothing'}, expected an idx header of unsigned bytes")
    shape = struct.unpack(f">{raw[3]}I", raw[4:start])
    if len(raw) - start != math.prod(shape):
        raise ValueError(f"{path}: {len(raw) - start} bytes after the header, expected {math.prod(shape)} for {shape}")
    if not all(shape):
        raise ValueError(f"{path}: got the shape {shape}, expected at least one row")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape).copy()


def read_mnist(folder: Path, suffix: str, class_names: Sequence[str]) -> ImageSet:
    """Read the four idx files of MNIST or KMNIST; `suffix` is the end of their names, ".gz" or empty."""
    arrays: list[Rows] = []
    for part in ("train", "t10k"):
        images_at, labels_at = (folder / f"{part}-{kind}-ubyte{suffix}" for kind in ("images-idx3", "labels-idx1"))
        images = read_idx(images_at)
        if images.ndim != 3:
            raise ValueError(f"{images_at}: {images.ndim} dimensions, expected rows × height × width")
        arrays.append((images[:, None], _labels(read_idx(labels_at), len(images), len(class_names), str(labels_at))))
    return ImageSet(*arrays[0], *arrays[1], tuple(class_names))


def read_cifar10(path: Path) -> ImageSet:
    """Read CIFAR-10's Python batches from their folder, or from the official tar.gz."""
    training = [f"data_batch_{i}" for i in range(1, 6)]
    files = _batches(path, "cifar-10-batches-py", [*training, "test_batch", "batches.meta"])
    names = files["batches.meta"].names("label_names")
    parts = [files[name].rows("labels", len(names)) for name in training]
    train_images, train_labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return ImageSet(train_images, train_labels, *files["test_batch"].rows("labels", len(names)), names)


def read_cifar100(path: Path) -> ImageSet:
    """Read CIFAR-100's Python batches from their folder, or from the official tar.gz."""
    files = _batches(path, "cifar-100-python", ["train", "test", "meta"])
    names, coarse_names = (files["meta"].names(f"{kind}_label_names") for kind in ("fine", "coarse"))
    coarse_of = np.full(len(names), -1)
    rows: list[Rows] = []
    for part in (files["train"], files["test"]):
        images, fine = part.rows("fine_labels", len(names))
        coarse = part.labels("coarse_labels", len(images), len(coarse_names))
        if not rows:
            coarse_of[fine] = coarse
        if (coarse_of[fine] != coarse).any():
            raise ValueError(f"{part.where}: a class has rows of two superclasses, expected one")
        if (coarse_of < 0).any():
            raise ValueError(f"{part.where}: no rows of {names[int(coarse_of.argmin())]!r}, expected every class")
        rows.append((images, fine))
    return ImageSet(*rows[0], *rows[1], names, tuple(coarse_of.tolist()))


def read_tiny_imagenet(path: Path) -> ImageSet:
    """Read Tiny ImageNet's JPEGs from their folder or the official zip, resized to 32×32; `val` is the test part."""
    if path.is_dir():
        inside = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        return _jpeg_set(path, inside, lambda name: read_regular(path / name))
    top = "tiny-imagenet-200/"
    with open_zip(path) as archive:
        inside = [name.removeprefix(top) for name in archive.names() if name.startswith(top)]
        return _jpeg_set(path, inside, lambda name: archive.read(top + name))


def read_tiny_imagenet_32px(folder: Path) -> ImageSet:
    """Read `train.npz` and `val.npz`: images N×32×32×3, labels, wnids and names."""
    rows: list[Rows] = []
    classes: list[tuple[list[str], list[str]]] = []
    for path in (folder / "train.npz", folder / "val.npz"):
        arrays = read_npz(path, ("images", "labels", "wnids", "names"))
        images, names = arrays["images"], arrays["names"]
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1:] != (32, 32, 3):
            raise ValueError(f"{path}: images are {images.dtype} {images.shape}, expected uint8 (n, 32, 32, 3)")
        if names.ndim != 1 or names.dtype.kind != "U" or arrays["wnids"].shape != names.shape:
            raise ValueError(f"{path}: wnids {arrays['wnids'].shape} and names {names.shape}, expected one per class")
        labels = _labels(arrays["labels"], len(images), len(names), str(path))
        rows.append((np.ascontiguousarray(images.transpose(0, 3, 1, 2)), labels))
        classes.append((arrays["wnids"].tolist(), names.tolist()))
    if classes[0] != classes[1]:
        raise ValueError(f"{folder / 'val.npz'}: other wnids or names than in train.npz, expected the same")
    return ImageSet(*rows[0], *rows[1], tuple(classes[0][1]))


def _labels(labels: npt.NDArray[np.generic], rows: int, classes: int, where: str) -> Labels:
    if labels.dtype.kind not in "iu" or labels.shape != (rows,) or not rows:
        raise ValueError(
            f"{where}: labels are {labels.dtype} {labels.shape}, expected an integer for each of {rows} rows"
        )
    whole = labels.astype(np.int64)
    if whole.min() < 0 or whole.max() >= classes:
        raise ValueError(f"{where}: labels from {whole.min()} to {whole.max()}, expected 0 to {classes - 1}")
    return whole


@dataclass(frozen=True)
class _Batch:
    """Contents of one of CIFAR's pickles."""

    where: str
    values: dict[object, object]

    def names(self, key: str) -> tuple[str, ...]:
        names = self.values.get(key)
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{self.where}: {key!r} is {type(names).__name__}, expected a list of names")
        return tuple(names)

    def rows(self, key: str, classes: int) -> Rows:
        data = self.values.get("data")
        pixels = data.pixels if isinstance(data, PickledArray) else None
        if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3072:
            came = type(data).__name__ if pixels is None else f"uint8 {pixels.shape}"
            raise ValueError(f"{self.where}: 'data' is {came}, expected uint8 (n, 3072)")
        return pixels.reshape(-1, 3, 32, 32).copy(), self.labels(key, len(pixels), classes)

    def labels(self, key: str, rows: int, classes: int) -> Labels:
        values = self.values.get(key)
        if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**31 for value in values):
            raise ValueError(f"{self.where}: {key!r} is {type(values).__name__}, expected a list of integers")
        return _labels(np.array(values, np.int64), rows, classes, f"{self.where}: {key!r}")


def _batches(path: Path, top: str, names: list[str]) -> dict[str, _Batch]:
    raw = {name: read_regular(path / name) for name in names} if path.is_dir() else _untar(path, top, names)
    missing = [name for name in names if name not in raw]
    if missing:
        raise ValueError(f"{path}: lacks {', '.join(missing)} in {top}")
    return {name: _batch(raw.pop(name), str(path / name)) for name in names}


def _untar(path: Path, top: str, names: list[str]) -> dict[str, bytes]:
    """Return the named files of an archive; the size of a sparse one is not that of its content, so it is left out."""
    found: dict[str, bytes] = {}
    try:
        with open_gzip(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                name = member.name.removeprefix(f"{top}/")
                file = tar.extractfile(member) if member.isfile() and not member.issparse() else None
                if file is not None and member.name.startswith(f"{top}/") and name in names:
                    found[name] = file.read()
            while stream.read(2**20):  # gzip's checksum is at the very end, after what tar reads
                pass
    except Exception as error:  # a broken archive may raise almost any exception
        raise ValueError(f"{path}: not a complete tar.gz file ({error})") from error
    return found


def _batch(raw: bytes, where: str) -> _Batch:
    try:
        values, end = read_batch(raw)
    except ValueError as error:
        raise ValueError(f"{where}: not a pickle of plain values and uint8 arrays ({error})") from error
    if not isinstance(values, dict) or end != len(raw):
        raise ValueError(f"{where}: holds {type(values).__name__} in {end} of {len(raw)} bytes, expected a dict")
    return _Batch(where, values)


def _jpeg_set(path: Path, inside: Iterable[str], read: Callable[[str], bytes]) -> ImageSet:
    """Read the contents of a Tiny ImageNet folder or zip. Labels follow the sorted wnids, as ImageFolder's do."""
    files = set(inside)

    def table(name: str) -> list[list[str]]:
        if name not in files:
            raise ValueError(f"{path / name}: is missing")
        try:
            return [line.split("\t") for line in read(name).decode().splitlines() if line]
        except UnicodeDecodeError as error:
            raise ValueError(f"{path / name}: not a text file ({error})") from error

    wnids = sorted({row[0].strip() for row in table("wnids.txt")})
    words = {row[0]: row[-1] for row in table("words.txt")} if "words.txt" in files else {}
    jpegs = sorted(name for name in files if name.endswith(".JPEG"))
    train = [(name, name.split("/")[1]) for name in jpegs if name.startswith("train/")]
    val = [(f"val/images/{row[0]}", "".join(row[1:2])) for row in table("val/val_annotations.txt")]
    empty = sorted(set(wnids) - {wnid for _, wnid in train})
    if empty:
        raise ValueError(f"{path / 'train' / empty[0]}: no JPEG images, expected some of each class in wnids.txt")
    lost = {name for name in jpegs if name.startswith("val/")} ^ {name for name, _ in val}
    if lost:
        raise ValueError(f"{path / min(lost)}: is in only one of val/images and val/val_annotations.txt")
    names = tuple(words.get(wnid, wnid) for wnid in wnids)
    return ImageSet(*_jpegs(path, train, wnids, read), *_jpegs(path, val, wnids, read), names)


def _jpegs(path: Path, rows: list[tuple[str, str]], wnids: list[str], read: Callable[[str], bytes]) -> Rows:
    label = {wnid: i for i, wnid in enumerate(wnids)}
    images = np.empty((len(rows), 3, 32, 32), np.uint8)
    for i, (name, wnid) in enumerate(rows):
        if wnid not in label:
            raise ValueError(f"{path / name}: of class {wnid!r}, expected one of those in wnids.txt")
        images[i] = decode_image(io.BytesIO(read(name)), path / name, 32, formats=("JPEG",))
    return images, _labels(np.array([label[wnid] for _, wnid in rows]), len(rows), len(wnids), str(path))
