"""Small data sets in the files of the real ones."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[np.generic]
DIGITS = tuple("0123456789")


def idx(array: Array) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_mnist(folder: Path, train: int = 12, test: int = 5, zipped: bool = False, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for part, rows in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (rows, 28, 28), np.uint8)
        labels = (np.arange(rows) % 10).astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{part}-{kind}-ubyte"
            if zipped:
                (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array), mtime=0))
            else:
                (folder / name).write_bytes(idx(array))


def python2(value: object) -> bytes:
    """Pickle as Python 2 did: str as byte strings, arrays by numpy.core.multiarray."""
    return b"\x80\x02" + opcodes(value) + b"."


def opcodes(value: object) -> bytes:
    if isinstance(value, str):
        return b"U" + bytes([len(value)]) + value.encode()
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(map(opcodes, value)) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(opcodes(key) + opcodes(item) for key, item in value.items()) + b"u"
    assert isinstance(value, np.ndarray)
    code = value.dtype.str[1:].encode()
    shape = b"(" + b"".join(opcodes(size) for size in value.shape) + b"t"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + shape
        + b"cnumpy\ndtype\nU\x02"
        + code
        + b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<i", value.nbytes)
        + value.tobytes()
        + b"tb"
    )


def pixels(rows: int, seed: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (rows, 3072), np.uint8)


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        batch = {"batch_label": name, "labels": [i % 3, 2], "data": pixels(2, i), "filenames": ["a.png", "b.png"]}
        (folder / name).write_bytes(python2(batch))
    (folder / "batches.meta").write_bytes(python2({"label_names": ["cat", "dog", "frog"], "num_vis": 3072}))


def write_cifar100(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, fine in (("train", [0, 1, 2, 2]), ("test", [2, 0])):
        coarse = [[1, 0, 1][label] for label in fine]
        batch = {"fine_labels": fine, "coarse_labels": coarse, "data": pixels(len(fine), len(fine))}
        (folder / name).write_bytes(python2(batch))
    meta = {"fine_label_names": ["apple", "bear", "pear"], "coarse_label_names": ["animals", "fruit"]}
    (folder / "meta").write_bytes(python2(meta))


def write_tiny(folder: Path) -> None:
    for row, wnid in enumerate(("n02", "n01")):
        images = folder / "train" / wnid / "images"
        images.mkdir(parents=True)
        for i in range(2):
            (images / f"{wnid}_{i}.JPEG").write_bytes(jpeg(60 * row + 20 * i, "L" if i else "RGB"))
    (folder / "val" / "images").mkdir(parents=True)
    (folder / "val" / "images" / "val_0.JPEG").write_bytes(jpeg(200))
    (folder / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn02\t0\t32\t44\t62\n")
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n01\tgoldfish\nn02\tbullfrog, frog\nn03\tnewt\n")


def jpeg(value: int, mode: str = "RGB") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (64, 64), value if mode == "L" else (value, value, value)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def write_tiny_32px(folder: Path, **changed: Array) -> None:
    folder.mkdir(parents=True)
    for name, rows in (("train", 4), ("val", 2)):
        images = np.random.default_rng(rows).integers(0, 256, (rows, 32, 32, 3), np.uint8)
        arrays: dict[str, Array] = {"images": images, "labels": np.arange(rows) % 2}
        arrays |= {"wnids": np.array(["n01", "n02"]), "names": np.array(["goldfish", "bullfrog"])}
        np.savez(folder / f"{name}.npz", **(arrays | changed))


def tar(folder: Path) -> Path:
    path = folder.parent / {"cifar-10-batches-py": "cifar-10-python"}.get(folder.name, folder.name)
    path = path.with_name(f"{path.name}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name)
    return path


def zipped(folder: Path) -> Path:
    path = folder.parent / f"{folder.name}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    return path
