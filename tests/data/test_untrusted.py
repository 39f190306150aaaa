"""Files from strangers: each is read correctly or refused with an error that names it, and takes little memory."""

from __future__ import annotations

import gzip
import io
import os
import re
import socket
import struct
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from helpers.dataset_files import idx, jpeg, write_cifar10, write_tiny, zipped
from hge.data.formats import read_cifar10, read_idx, read_tiny_imagenet, read_tiny_imagenet_32px
from hge.data.image_folder import read_image_folder
from hge.data.table_file import read_table

resource = pytest.importorskip("resource", reason="limits memory by Unix's means")

UNPACKED_FREELY = 2**20
"""Lowered, so that small bombs will do."""
BOMB = 4 * UNPACKED_FREELY
MOST_MEMORY = 2**29
"""Bytes of address space, besides what the imported libraries take."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of two classes."""
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(40):
            image = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
            image.save(tmp_path / name / f"{number}.png")
    return tmp_path


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let allocations of more than half a GiB fail."""
    monkeypatch.setattr("hge.data.untrusted.UNPACKED_FREELY", UNPACKED_FREELY)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_MEMORY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(touched) (w) file closefile\n%%EOF\n"


def test_only_listed_formats_are_decoded_whatever_the_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "check_call", lambda *args, **_: started.append(args))
    monkeypatch.setattr("PIL.EpsImagePlugin.has_ghostscript", lambda: True)
    (folder / "cat" / "cat.png").write_bytes(EPS)
    with pytest.raises(ValueError, match=r"cat\.png: not a readable image in PNG, JPEG"):
        read_image_folder(folder)
    assert not started


def test_a_jpeg_called_png_is_read(folder: Path) -> None:
    (folder / "cat" / "photo.png").write_bytes(jpeg(90))
    assert len(read_image_folder(folder).train_labels) + len(read_image_folder(folder).test_labels) == 81


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_only_regular_files_are_opened(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    strange = folder / "cat" / "strange.png"
    os.mkfifo(strange)
    with pytest.raises(ValueError, match=r"strange\.png: not a regular file"):
        read_image_folder(folder)
    strange.unlink()
    strange.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"strange\.png: not a regular file"):
        read_image_folder(folder)
    strange.unlink()
    strange.symlink_to(strange)
    with pytest.raises(ValueError, match=r"strange\.png: cannot be read \(Too many levels"):
        read_image_folder(folder)
    strange.unlink()
    strange.mkdir()
    with pytest.raises(ValueError, match=r"strange\.png: cannot be read"):
        read_image_folder(folder)
    strange.rmdir()
    monkeypatch.chdir(folder / "cat")  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("strange.png")
        with pytest.raises(ValueError, match=r"strange\.png: cannot be read"):
            read_image_folder(folder)


@pytest.mark.timeout(20)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("name", ["train.npz", "x-idx3-ubyte", "stream.csv", "stream.csv.gz"])
def test_no_reader_waits_for_a_pipe(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    read: Callable[[], object] = lambda: read_table(tmp_path / name, "y")  # noqa: E731
    if name == "train.npz":
        read = lambda: read_tiny_imagenet_32px(tmp_path)  # noqa: E731
    elif "idx" in name:
        read = lambda: read_idx(tmp_path / name)  # noqa: E731
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / name))):
        read()


def png_of(width: int, height: int) -> bytes:
    """The header of a PNG that claims so many pixels, and one row of them."""
    stream = io.BytesIO()
    Image.new("RGB", (1, 1)).save(stream, "PNG")
    raw = bytearray(stream.getvalue())
    raw[16:24] = struct.pack(">II", width, height)
    raw[29:33] = struct.pack(">I", zlib.crc32(raw[12:29]))
    return bytes(raw)


def png_with_text(size: int) -> bytes:
    stream, info = io.BytesIO(), PngImagePlugin.PngInfo()
    info.add_text("comment", "x" * size, zip=True)
    Image.new("RGB", (8, 8)).save(stream, "PNG", pnginfo=info)
    return stream.getvalue()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (png_of(8000, 6000), "got 8000 × 6000 pixels, expected at most"),
        (png_of(12_000, 12_000), "got 12000 × 12000 pixels"),
        (png_of(60_000, 60_000), "not a readable image"),
        (png_with_text(2 * 2**20), "not a readable image"),
        (jpeg(9)[:300], "not a readable image"),
        (b"", "not a readable image"),
    ],
)
def test_images_that_unpack_to_too_much_are_named(folder: Path, raw: bytes, why: str) -> None:
    (folder / "dog" / "bomb.png").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"bomb\.png: {why}"):
        read_image_folder(folder)


def test_a_gzipped_idx_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(">IIII", 0x803, BOMB // 2**20, 1024, 1024))
        for _ in range(BOMB // 2**20):
            file.write(bytes(2**20))
    with pytest.raises(ValueError, match=r"gz: unpacks to more than .* bytes, expected at most 200 times"):
        read_idx(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"\0\0\x08\x03" + b"\xff" * 12,
        b"\0\0\x08\xff" + b"\0\0\0\1" * 255 + b"x",
        b"\0\0\x08\x04" + b"\0" * 4 + b"\xff" * 12,
    ],
)
def test_an_idx_header_that_claims_too_much(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "x").write_bytes(raw)
    with pytest.raises(ValueError, match=re.escape(str(tmp_path / "x"))):
        read_idx(tmp_path / "x")


def deflated_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return path


def test_a_zip_that_unpacks_to_too_much(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tiny-imagenet-200")
    path = zipped(tmp_path / "tiny-imagenet-200")
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("more", "w") as member:
        for _ in range(BOMB // 2**20):
            member.write(bytes(2**20))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: its .* bytes unpack to"):
        read_tiny_imagenet(path)


def test_a_zip_whose_directory_lies_about_the_sizes(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny(folder)
    (folder / "wnids.txt").write_bytes(bytes(BOMB))
    path = tmp_path / "tiny-imagenet-200.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(tmp_path))
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", BOMB), struct.pack("<I", 10)))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: not a complete zip file"):
        read_tiny_imagenet(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_whose_decompressor_takes_what_the_file_says(tmp_path: Path, method: int) -> None:
    path = deflated_zip(tmp_path / "stream.npz", {"X.npy": b"x", "y.npy": b"y"}, method)
    with pytest.raises(ValueError, match="compressed by another method"):
        read_table(path)


def npy(shape: str, dtype: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "array",
    [
        npy("(100000000000,)"),
        npy("(-1,)", data=b"12345678"),
        npy("(2,)", "|O", b"cos\nsystem\n"),
        npy("(1,)", "<U400000000", b"x"),
        npy("(2, 2)", data=bytes(31)),
        npy("(" * 3000),
        b"\x93NUMPY\x09\x00",
        b"",
    ],
)
def test_an_npz_whose_arrays_claim_more_than_is_there(tmp_path: Path, array: bytes) -> None:
    path = deflated_zip(tmp_path / "stream.npz", {"X.npy": array, "y.npy": npy("(2,)", data=bytes(16))})
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_table(path)


def test_a_tar_with_a_sparse_file(tmp_path: Path) -> None:
    """Its header says how large it is; the file holds nothing."""
    write_cifar10(tmp_path / "cifar-10-batches-py")
    member = tarfile.TarInfo("cifar-10-batches-py/test_batch")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 0
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"77777777777\0"
    header[148:156] = b"        "
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    path = tmp_path / "cifar-10-python.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(bytes(header) + bytes(1024))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: lacks data_batch_1"):
        read_cifar10(path)


def test_a_tar_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = BOMB
        archive.addfile(member, io.BytesIO(bytes(BOMB)))
    with pytest.raises(ValueError, match=rf"{re.escape(str(path))}: not a complete tar.gz file .*unpacks to more"):
        read_cifar10(path)


def nested_tuples(depth: int) -> bytes:
    """A tuple of 2**depth parts, of which every level is stored once; as a key, its hash takes for ever."""
    return b"\x80\x02}" + b")" + b"q\x00h\x00\x86" * depth + b"K\x01s."


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02Nr\xff\xff\xff\x1f.",
        b"\x80\x02N" + b"p268435455\n.",
        nested_tuples(60),
        b"\x80\x02cnumpy\ndtype\n" + b")" + b"q\x00h\x00\x86" * 60 + b"R.",
        b"\x80\x04\x96" + struct.pack("<Q", 2**34) + b".",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
        b"\x80\x02\x8b\xff\xff\xff\x7f.",
        b"\x80\x02" + b"]" * 11_000 + b".",
        b"\x80\x02" + b"(" * 1000 + b"t" * 1001 + b".",
        b"\x80\x02h\x07.",
        b"\x80\x02}(K\x01K\x02u.",
    ],
)
def test_pickles_that_ask_for_memory_or_time(tmp_path: Path, raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.data.pickled_batches.MOST_OPCODES", 10_000)
    folder = tmp_path / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "data_batch_1").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"{re.escape(str(folder / 'data_batch_1'))}: (not a pickle|holds)"):
        read_cifar10(folder)


@pytest.mark.slow
def test_a_gzipped_table_that_unpacks_to_too_much(tmp_path: Path) -> None:
    path = tmp_path / "stream.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a,y\n")
        for _ in range(BOMB // 2**20):
            file.write(b"1,2\n" * 2**18)
    with pytest.raises(ValueError, match="unpacks to more than"):
        read_table(path, "y")


@pytest.mark.timeout(30)
def test_tables_that_ask_for_memory_or_time(tmp_path: Path) -> None:
    path = tmp_path / "stream.csv"
    path.write_text("a,y\n1," + "x" * 100_000 + "\n" + "1,b\n" * 20_000)
    with pytest.raises(ValueError, match="label: column 'y' has a text of 100,000 characters, expected at most 200"):
        read_table(path, "y")
    path.write_text(",".join(map(str, range(200_000))) + ",0\n")
    with pytest.raises(ValueError, match="two columns are named '0'"):
        read_table(path, "y")


@pytest.mark.parametrize("labels", [(2**53 + 1, 2**53 + 2), (2**63 - 1, -(2**63))])
def test_whole_labels_keep_their_value(tmp_path: Path, labels: tuple[int, int]) -> None:
    path = tmp_path / "stream.csv"
    path.write_text(f"a,y\n1,{labels[0]}\n2,{labels[1]}\n")
    assert read_table(path, "y").y.tolist() == list(labels)
    np.savez(tmp_path / "stream.npz", X=np.eye(2), y=np.array(labels))
    assert read_table(tmp_path / "stream.npz").y.tolist() == list(labels)


@pytest.mark.parametrize("label", ["1e400", "1e99999999", str(2**64), "1.5", "inf"])
def test_numbers_that_are_no_classes_are_shown(tmp_path: Path, label: str) -> None:
    path = tmp_path / "stream.csv"
    path.write_text(f"a,y\n1,{label}\n2,0\n")
    with pytest.raises(ValueError, match=rf"column 'y' holds numbers such as {label}, expected classes"):
        read_table(path, "y")


def test_parquet_that_stands_for_much(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "stream.parquet"
    parquet.write_table(pyarrow.table({"a": np.zeros(10**6, np.int8), "y": np.zeros(10**6, np.int8)}), path)
    with pytest.raises(ValueError, match=r"stream\.parquet: its .* bytes unpack to"):
        read_table(path, "y")
    codes = pyarrow.array(np.arange(6000, dtype=np.int32) % 2)
    words = pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array(["x" * 10**5, "y" * 10**5]))
    parquet.write_table(pyarrow.table({"a": words, "y": words}), path)
    with pytest.raises(ValueError, match="has a text of 100,000 characters"):
        read_table(path, "y")


def test_the_reader_of_idx_still_reads(tmp_path: Path) -> None:
    zeros = np.zeros((UNPACKED_FREELY // 2**10 - 1, 1024), np.uint8)
    (tmp_path / "x").write_bytes(gzip.compress(idx(zeros)))
    assert read_idx(tmp_path / "x").shape == zeros.shape, "a small file may consist of zeros"
