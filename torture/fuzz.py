"""`python -m torture.fuzz SECONDS`: fuzz the readers of files, guided by coverage (atheris, in an environment with it).

Every input is read correctly or refused with a ValueError; any other exception, or more than 512 MiB, is a crash.
Without atheris, Hypothesis generates the inputs: `torture/hostile.py`.
"""

from __future__ import annotations

import io
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["hge.data", "zipfile", "tarfile", "gzip", "csv", "PIL"]):
    from hge.data.formats import read_cifar10, read_idx, read_tiny_imagenet
    from hge.data.image_decoding import decode_image
    from hge.data.pickled_batches import read_batch
    from hge.data.table_file import read_table

FOLDER = Path(tempfile.mkdtemp())


def _file(name: str, raw: bytes) -> Path:
    (FOLDER / name).write_bytes(raw)
    return FOLDER / name


def _npz(raw: bytes) -> Path:
    """A zip whose directory is right, around arrays that may not be."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("X.npy", raw[: len(raw) // 2])
        archive.writestr("y.npy", raw[len(raw) // 2 :])
    return _file("x.npz", stream.getvalue())


READERS: list[Callable[[bytes], object]] = [
    read_batch,
    lambda raw: decode_image(io.BytesIO(raw), Path("image"), 8),
    lambda raw: read_idx(_file("x", raw)),
    lambda raw: read_idx(_file("x", b"\0\0\x08\x03" + raw)),
    lambda raw: read_table(_file("x.csv", raw), "y", drop_missing=True),
    lambda raw: read_table(_file("x.csv", b"a,b,y\n" + raw), "y", drop_missing=True),
    lambda raw: read_table(_file("x.csv.gz", raw), "y"),
    lambda raw: read_table(_file("x.npz", raw)),
    lambda raw: read_table(_npz(raw)),
    lambda raw: read_cifar10(_file("x.tar.gz", raw)),
    lambda raw: read_tiny_imagenet(_file("x.zip", raw)),
]


def one(raw: bytes) -> None:
    """Read one input; its first byte chooses the reader."""
    if not raw:
        return
    with suppress(ValueError):
        READERS[raw[0] % len(READERS)](raw[1:])


def seeds() -> list[bytes]:
    """Return good inputs of every reader, from which others are bred."""
    from PIL import Image

    images = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF"):
        Image.new("RGB", (6, 5), (9, 80, 200)).save(stream := io.BytesIO(), kind)
        images.append(stream.getvalue())
    npy = b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (2, 1), }".ljust(127) + b"\n"
    return [
        b"\0\x80\x02}U\x06labels](K\x03K\x05es.",
        b"\0\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R.",
        *(b"\1" + image for image in images),
        b"\2\0\0\x08\x01" + struct.pack(">I", 3) + b"abc",
        b"\4a;y\n1;x\n2;z\n",
        b"\x051,2,0\n3,?,1\n",
        b"\x08" + npy + bytes(16) + npy + bytes(16),
    ]


def main() -> None:
    """Fuzz for as many seconds as the first argument says."""
    corpus = Path(tempfile.mkdtemp())
    for number, seed in enumerate(seeds()):
        (corpus / str(number)).write_bytes(seed)
    limits = ["-rss_limit_mb=512", "-max_len=4096", "-timeout=20", f"-max_total_time={sys.argv[1]}", str(corpus)]
    atheris.Setup([sys.argv[0], *limits], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
