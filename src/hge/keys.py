"""Randomness by key: the same (seed, purpose, step, expert) gives the same numbers, whatever was drawn before.

No generator lives between two calls, so there is no random state to save, and delaying a batch or training experts
in another order changes nobody's numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

Purpose = Literal["weights", "noise", "dropout", "replay", "shuffle", "split", "permutation", "classes"]


@dataclass(frozen=True)
class Keys:
    """Draws random numbers by key.

    >>> Keys(seed=0).integer("replay", step=7, expert=1) == Keys(seed=0).integer("replay", step=7, expert=1)
    True
    >>> Keys(seed=0).integer("replay", step=7) == Keys(seed=0).integer("replay", step=8)
    False
    """

    seed: int

    def integer(self, purpose: Purpose, *, step: int = 0, expert: int = 0) -> int:
        """Return a uniform 63-bit integer."""
        key = f"{self.seed}/{purpose}/{step}/{expert}".encode()
        return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest()) >> 1

    def rng(self, purpose: Purpose, *, step: int = 0, expert: int = 0) -> np.random.Generator:
        """Return a fresh numpy generator."""
        return np.random.default_rng(self.integer(purpose, step=step, expert=expert))

    def generator(
        self, purpose: Purpose, *, step: int = 0, expert: int = 0, device: torch.device | str = "cpu"
    ) -> torch.Generator:
        """Return a fresh torch generator on `device`."""
        return torch.Generator(device).manual_seed(self.integer(purpose, step=step, expert=expert))

    @contextmanager
    def seeded(
        self, purpose: Purpose, *, step: int = 0, expert: int = 0, device: torch.device | None = None
    ) -> Iterator[None]:
        """Seed torch's global generators inside the block (for code that takes no generator), then restore them."""
        seed = self.integer(purpose, step=step, expert=expert)
        on_gpu = device is not None and device.type == "cuda"
        with torch.random.fork_rng(devices=[device] if on_gpu else []):
            # torch.manual_seed would also queue a call for every CUDA device, with a stack trace each time.
            torch.default_generator.manual_seed(seed)
            if on_gpu:
                torch.cuda.manual_seed(seed)
            yield
