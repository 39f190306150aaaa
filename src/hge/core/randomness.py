"""Randomness by key: the same (seed, purpose, numbers) gives the same random numbers, whatever was drawn before.

No generator is kept between calls, so there is no random state to save, and delaying a batch or training experts in
another order does not change the numbers drawn elsewhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

Purpose = Literal[
    "weights",
    "noise",
    "latent",
    "dropout",
    "augment",
    "replay",
    "calibration",
    "shuffle",
    "split",
    "permutation",
    "classes",
    "directions",
    "units",
    "tree",
    "blend",
    "rehearsal",
]


@dataclass(frozen=True)
class Keys:
    """Draws random numbers by key.

    >>> Keys(seed=0).integer("replay", 7, 1) == Keys(seed=0).integer("replay", 7, 1)
    True
    >>> Keys(seed=0).integer("replay", 7, 1) == Keys(seed=0).integer("replay", 8, 1)
    False
    """

    seed: int

    def integer(self, purpose: Purpose, *numbers: int) -> int:
        """Return a uniform 63-bit integer."""
        return int.from_bytes(hashlib.blake2b(self._key(purpose, numbers), digest_size=8).digest()) >> 1

    def integers(self, below: int, count: int, purpose: Purpose, *numbers: int) -> npt.NDArray[np.int64]:
        """Return uniform integers from 0 to below - 1; making a generator would take longer.

        >>> Keys(seed=0).integers(10, 5, "rehearsal", 7).tolist()
        [9, 6, 8, 9, 9]
        """
        digest = hashlib.shake_128(self._key(purpose, numbers)).digest(8 * count)
        return (np.frombuffer(digest, np.uint64) % np.uint64(below)).astype(np.int64)

    def rng(self, purpose: Purpose, *numbers: int) -> np.random.Generator:
        """Return a fresh numpy generator."""
        return np.random.default_rng(self.integer(purpose, *numbers))

    def generator(self, purpose: Purpose, *numbers: int, device: torch.device) -> torch.Generator:
        """Return a fresh torch generator on `device`."""
        return torch.Generator(device).manual_seed(self.integer(purpose, *numbers))

    @contextmanager
    def seeded(self, purpose: Purpose, *numbers: int, device: torch.device) -> Iterator[None]:
        """Seed torch's global generators inside the block (for code that takes no generator), then restore them."""
        seed = self.integer(purpose, *numbers)
        on_gpu = device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            # torch.manual_seed would also queue a call for every CUDA device, with a stack trace each time.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield

    def _key(self, purpose: Purpose, numbers: tuple[int, ...]) -> bytes:
        return "/".join(map(str, (self.seed, purpose, *numbers))).encode()
