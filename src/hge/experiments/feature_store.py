"""Features of rows that were computed before: a row's features depend on that row alone, so no row is computed twice.

They are kept beside the data sets, in files of some megabytes that are found by the rows' content. Runs with another
seed, method or scenario of the same images use them, and an interrupted computation loses its last file at most.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from hge.core.files import write_atomically
from hge.experts.extractor import CHUNK, Extractor

OnRows = Callable[[int, int], object]
"""Called with the number of rows whose features are known, and the number of all."""
ROWS_PER_FILE = 2048
KEY_BYTES = 16


class FeatureStore:
    """Computes the features of rows, and keeps them in a folder if that exists.

    >>> store = FeatureStore(Extractor(torch.nn.Flatten()), Path("no such folder"))
    >>> store(torch.tensor([[[0, 51], [102, 255]]], dtype=torch.uint8))
    tensor([[0.0000, 0.2000, 0.4000, 1.0000]])
    """

    def __init__(self, extractor: Extractor, folder: Path) -> None:
        self.extractor, self.folder = extractor, folder
        self._known: dict[bytes, Tensor] = {}
        self._read: set[Path] = set()

    def __call__(self, x: Tensor, on_rows: OnRows = lambda done, total: None) -> Tensor:
        """Return the features [rows, features] as float32, on the host."""
        keys = _keys(x)
        own = self._own_folder(x) if self.folder.is_dir() else None
        if own is not None:
            self._read_files(own)
        missing = [row for row, key in enumerate(keys) if key not in self._known]
        done = len(keys) - len(missing)

        def advance() -> None:
            nonlocal done
            done = min(done + CHUNK, len(keys))
            on_rows(done, len(keys))

        for start in range(0, len(missing), ROWS_PER_FILE):
            rows = missing[start : start + ROWS_PER_FILE]
            found, new = self.extractor(x[rows], advance), [keys[row] for row in rows]
            self._known |= zip(new, found, strict=True)
            if own is not None and not self._write(own, new, found):
                own = None
        return torch.stack([self._known[key] for key in keys])

    def _own_folder(self, x: Tensor) -> Path:
        """Return the folder of this extractor, named by its weights and by what it makes of a fixed input.

        So features of the same weights in another form of the network, or of another device, are not confused.
        """
        probe = torch.linspace(0, 1, x[0].numel()).reshape(1, *x.shape[1:])
        made = self.extractor(probe).round(decimals=2)[0].tolist()
        content = f"{self.extractor.digest} {self.extractor.device.type} {made}"
        return self.folder / "features" / hashlib.sha256(content.encode()).hexdigest()[:16]

    def _read_files(self, own: Path) -> None:
        for file in sorted(set(own.glob("*.safetensors")) - self._read):
            self._read.add(file)
            try:
                found = load_file(file)
                keys: npt.NDArray[np.uint8] = found["keys"].numpy()
                self._known |= zip(map(bytes, keys), found["features"], strict=True)
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                warnings.warn(f"{file} is not used: {error}. Delete it.", stacklevel=2)

    def _write(self, own: Path, keys: list[bytes], features: Tensor) -> bool:
        """Write a file; if that fails, say so and return False: the features are not kept."""
        stacked = torch.from_numpy(np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY_BYTES).copy())
        file = own / f"{keys[0].hex()}.safetensors"
        try:
            write_atomically(file, save({"keys": stacked, "features": features.contiguous()}))
        except OSError as error:
            warnings.warn(f"Features are not kept: {error}", stacklevel=2)
            return False
        self._read.add(file)
        return True


def _keys(x: Tensor) -> list[bytes]:
    """Return a checksum of the content of each row."""
    rows, kind = np.ascontiguousarray(x.cpu().numpy()), f"{x.dtype} {tuple(x.shape[1:])}".encode()
    return [hashlib.blake2b(row.data, digest_size=KEY_BYTES, key=kind[:64]).digest() for row in rows]
