"""Hostile files with valid checksums and headers: each is read correctly or refused clearly, in little memory.

Each kind runs in a process of its own (`python -m torture.hostile KIND COUNT SEED FOLDER`), whose peak memory counts.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import resource
import struct
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

Log = Callable[[str], None]
MOST_MEMORY = 512 * 2**20
KINDS = ("images", "pickles", "manifests")


def torture_hostile(folder: Path, count: int, seed: int, log: Log) -> dict[str, Any]:
    """Read `count` hostile files of each kind; return the outcomes, the peak memory and all failures."""
    found: dict[str, Any] = {}
    wrong: list[str] = []
    for kind in KINDS:
        (folder / kind).mkdir()
        command = [sys.executable, "-m", "torture.hostile", kind, str(count), str(seed), str(folder / kind)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            wrong.append(f"{kind}: ended with {done.returncode}, {done.stderr[-500:]}")
            continue
        found[kind] = json.loads(done.stdout)
        wrong += [f"{kind}: {text}" for text in found[kind].pop("wrong")]
        if found[kind]["peak_bytes"] > MOST_MEMORY:
            wrong.append(f"{kind}: took {found[kind]['peak_bytes']} bytes")
        log(f"hostile {kind}: {found[kind]}, {len(wrong)} wrong")
    return {"count": count, "seed": seed, **found, "wrong": wrong}


def read_all(kind: str, count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Read hostile files of one kind in this process."""
    read = {"images": _images, "pickles": _pickles, "manifests": _manifests}[kind](random.Random(seed), folder)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            outcome = read()
            outcomes[outcome.partition(":")[0]] += 1
            if outcome.startswith("wrong"):
                wrong.append(f"{number}, {outcome[:300]}")
    return {"outcomes": dict(outcomes), "peak_bytes": _peak_bytes(), "wrong": wrong}


def _peak_bytes() -> int:
    """Return the most memory that this process has had; `getrusage` would count that of the process that forked it."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1])  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _images(rng: random.Random, folder: Path) -> Callable[[], str]:
    from PIL import Image

    from hge.data.image_decoding import decode_image

    good = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF", "EPS", "PDF", "ICNS", "TGA"):
        Image.new("RGB", (16, 12), (9, 80, 200)).save(stream := io.BytesIO(), kind)
        good.append(stream.getvalue())

    def read() -> str:
        raw = _changed(rng.choice(good), rng)
        return _outcome(lambda: decode_image(io.BytesIO(raw), folder / "x.png", 8).shape == (3, 8, 8), ValueError)

    return read


def _pickles(rng: random.Random, folder: Path) -> Callable[[], str]:
    from hge.data.pickled_batches import _OPCODES, read_batch

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R(K\x01K\x01K\x03\x86"
    array += (
        b"cnumpy\ndtype\nU\x02u1K\0K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T\3\0\0\0abctb"
    )
    good = [b"\x80\x02}(U\x06labels](K\x03K\x05eU\x04data" + array + b"u.", b"\x80\x02}q\0(X\1\0\0\0aq\1h\1u."]
    odd = [
        *_OPCODES,
        b"r\xff\xff\xff\x7f",
        b"j\xff\xff\xff\x7f",
        b"\x8e" + b"\xff" * 8,
        b"q\0h\0\x86" * 60,
        b"cos\nsystem\n",
    ]

    def read() -> str:
        raw = bytearray(rng.choice(good))
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(raw) + 1)
            raw[place:place] = rng.choice(odd) * rng.choice((1, 1, 2, 50))
        changed = _changed(bytes(raw), rng)
        return _outcome(lambda: isinstance(read_batch(changed), tuple), ValueError)

    return read


def _manifests(rng: random.Random, folder: Path) -> Callable[[], str]:
    import numpy as np
    import torch

    from hge import GatedExperts
    from hge.learning.checkpoint import CheckpointError

    torch.set_num_threads(1)
    rows = np.random.default_rng(0).random((40, 6), dtype=np.float32)
    model = GatedExperts(class_capacity=4, batch_size=10)
    for shift in (0, 5):
        for _ in range(3):
            model.partial_fit(rows + shift, (rows[:, 0] > 0.5).astype(int) + shift // 5)
    model.save(folder)
    path = next(folder.glob("checkpoint-*.json"))
    text = path.read_text()

    def load() -> bool:
        loaded = GatedExperts.load(folder)
        return len(loaded.predict(rows[:2])) == 2

    def read() -> str:
        body = json.loads(text)["body"]
        _spoil(body, rng)
        content = json.dumps(body, sort_keys=True).encode()
        path.write_text(json.dumps({"sha256": hashlib.sha256(content).hexdigest(), "body": body}))
        return _outcome(load, CheckpointError)

    return read


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 7, 2**31, 2**63, 10**40, -1e308, float("nan"), float("inf"), "", "x", "../../etc/passwd",
    [], [[]], [[1, 2], [3]], {}, {"a": 1}, [None], ["x"] * 50, "<U99999999", "|O", "cuda:99", [10**9, 10**9],
)  # fmt: skip


def _spoil(body: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove or add a value somewhere below the learner, the facts or the files."""
    where: Any = body[rng.choice(("learner", "learner", "facts", "facts", "files"))]
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(where[key], dict | list) and where[key] and rng.random() < 0.75:
            where = where[key]
            continue
        if rng.random() < 0.2:
            del where[key]
        elif isinstance(where, list) and rng.random() < 0.2:
            where.append(where[key])
        else:
            where[key] = rng.choice(HOSTILE)
        return


def _changed(raw: bytes, rng: random.Random) -> bytes:
    """Flip, overwrite, cut or repeat some bytes."""
    changed = bytearray(raw)
    for _ in range(rng.choice((0, 1, 1, 2, 4, 16))):
        place = rng.randrange(len(changed) or 1)
        way = rng.randrange(5)
        if way == 0:
            changed[place : place + 1] = bytes([rng.randrange(256)])
        elif way == 1:
            changed[place : place + 4] = struct.pack(
                rng.choice("<>") + "I", rng.choice((0, 1, 2**16, 2**31, 2**32 - 1))
            )
        elif way == 2:
            del changed[place : place + rng.randrange(1, 40)]
        elif way == 3:
            changed[place:place] = changed[place : place + rng.randrange(1, 200)]
        else:
            changed[place : place + 2] = struct.pack(rng.choice("<>") + "H", rng.choice((0, 40_000, 65_535)))
    return bytes(changed)


def _outcome(read: Callable[[], bool], clear: type[Exception]) -> str:
    try:
        return "read" if read() else "wrong: another value"
    except clear as error:
        return f"refused: {error}"
    except Exception as error:
        return f"wrong: {type(error).__name__}: {error}"


if __name__ == "__main__":
    kind, count, seed, folder = sys.argv[1:]
    print(json.dumps(read_all(kind, int(count), int(seed), Path(folder))))
