"""Corrupt checkpoint files: every change is detected, and the previous checkpoint is loaded."""

from __future__ import annotations

import json
import random
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hge import GatedExperts
from hge.learning.checkpoint import CheckpointError
from torture.digest import state_digest

Log = Callable[[str], None]


def torture_flips(folder: Path, flips: int, seed: int, log: Log) -> dict[str, Any]:
    """Save a model twice, then load it with one corrupted file at a time; return the outcomes."""
    newest, before = _save_twice(folder)
    contents = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    manifest = max(folder.glob("checkpoint-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    named = {entry["file"] for entry in json.loads(manifest.read_text())["body"]["files"].values()} | {manifest.name}
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    moments = random.Random(seed)
    for number in range(flips):
        path = moments.choice(list(contents))
        outcome = _load_changed(folder, path, contents[path], moments)
        outcomes[outcome.partition(":")[0]] += 1
        if outcome != (f"before: {before}" if path.name in named else f"newest: {newest}"):
            wrong.append(f"flip {number} in {path.name}: {outcome}")
        if number % 500 == 499:
            log(f"flips: {number + 1}, {dict(outcomes)}, {len(wrong)} wrong")
    return {"flips": flips, "seed": seed, "outcomes": dict(outcomes), "wrong": wrong}


def _save_twice(folder: Path) -> tuple[str, str]:
    """Save a model with an idle expert twice, with training in between; return the digests, the newest first."""
    rng = np.random.default_rng(0)
    X, y = rng.random((200, 6), dtype=np.float32), rng.integers(0, 2, 200)
    model = GatedExperts(class_capacity=4, batch_size=10)
    for shift in (0, 5):
        for _ in range(4):
            model.partial_fit(X + shift, y + shift // 5)
    digests = []
    for _ in range(2):
        model.partial_fit(X + 5, y + 1)
        model.save(folder)
        digests.append(state_digest(model.learner_))
    return digests[1], digests[0]


def _load_changed(folder: Path, path: Path, content: bytes, moments: random.Random) -> str:
    """Flip a bit of the file or truncate it; return the outcome of loading."""
    changed = bytearray(content)
    place = moments.randrange(len(content))
    if moments.random() < 0.9:
        changed[place] ^= 1 << moments.randrange(8)
    else:
        del changed[place:]
    path.write_bytes(changed)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = GatedExperts.load(folder)
        return f"{'before' if caught else 'newest'}: {state_digest(model.learner_)}"
    except CheckpointError:
        return "refused"
    except Exception as error:
        return f"crash: {error!r}"
    finally:
        path.write_bytes(content)
