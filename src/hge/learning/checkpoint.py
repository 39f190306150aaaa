"""Checkpoints on disk: safetensors and JSON, never pickle. A corrupt one is reported and the previous one used.

A folder of checkpoints holds one manifest per checkpoint (`checkpoint-STEPS.json`) and the files named in manifests. No
two manifests name the same file, so that none can damage both. An expert that is no longer trained has two files, which
the checkpoints name in turn and which are not written again. Every file is written under a temporary name, flushed to
disk and renamed: a manifest exists only if all its files do.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hge.core.files import sync_folder, write_atomically
from hge.core.own_folder import FolderKind, hold
from hge.learning.state import Snapshot

SCHEMA = 9
"""3: sketches instead of subspaces; 4: the state of each component stored separately; 6: no file in two checkpoints,
the parameters of the fitted model, the fingerprint of a run's data, merged experts (CHANGELOG.md)."""
MANIFEST_NAMES = {"sha256", "body"}
"""What a manifest consists of."""
MANIFEST = re.compile(r"checkpoint-(?P<steps>\d+)\.json")
TENSORS = re.compile(r"(state|expert-\d+)-(?P<digest>[0-9a-f]{16})(-copy)?\.safetensors")


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why."""


def _is_ours(path: Path) -> bool:
    """Return whether a file under the name of a manifest or of tensors was written by hge."""
    if tensors := TENSORS.fullmatch(path.name):
        with suppress(OSError):
            return _digest(path.read_bytes()).startswith(tensors["digest"])
        return False
    return _names_in(path) == MANIFEST_NAMES


FILES = re.compile(f"{MANIFEST.pattern}|{TENSORS.pattern}")
SAVED_MODEL = FolderKind("saved model", FILES, _is_ours)
RUN_CHECKPOINTS = FolderKind("run's checkpoints", FILES, _is_ours)


@dataclass
class Checkpoints:
    """Writes one learner's checkpoints into a folder and keeps two: the new one and the newest intact one before."""

    folder: Path
    kind: FolderKind = RUN_CHECKPOINTS
    _intact: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Name of a file -> its place, size and time when its checksum was right."""

    def write(self, snapshot: Snapshot, facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint and the extra state needed to resume (`facts`, JSON values); return its manifest."""
        with hold(self.folder, self.kind):
            path = self.folder / f"checkpoint-{snapshot.facts['steps']}.json"
            # A checkpoint with more steps than the newest belongs to an abandoned run.
            older = [manifest for manifest in _manifests(self.folder) if _steps(manifest) < _steps(path)]
            previous, taken = self._previous(older)
            files = {"state": self._write_tensors("state", snapshot.tensors, taken)}
            for number, tensors in enumerate(snapshot.experts):
                files[f"expert.{number}"] = self._write_tensors(f"expert-{number}", tensors, taken)
            body = {"schema": SCHEMA, "learner": snapshot.facts, "files": files, "facts": dict(facts)}
            write_atomically(path, json.dumps({"sha256": _digest(_canonical(body)), "body": body}))
            needed = {entry["file"] for entry in files.values()} | taken
            self._intact = {name: known for name, known in self._intact.items() if name in needed}
            _delete(self.folder, {path, previous}, needed)
        return path

    def _previous(self, older: Sequence[Path]) -> tuple[Path | None, set[str]]:
        """Return the checkpoint to keep beside the new one, and its files: the newest intact one, if there is any."""
        readable: list[tuple[Path, dict[str, str]]] = []
        for manifest in older:
            with suppress(CheckpointError, KeyError, TypeError, AttributeError):
                entries = _read_body(manifest)["files"].values()
                readable.append((manifest, {entry["file"]: entry["sha256"] for entry in entries}))
        for manifest, files in readable:
            if all(self._is_intact(name, digest) for name, digest in files.items()):
                return manifest, set(files)
        # None is intact, but what the newest has in common with the new one is about to be written again.
        return (readable[0][0], set(readable[0][1])) if readable else (None, set())

    def _write_tensors(self, stem: str, tensors: Mapping[str, Tensor], taken: Collection[str]) -> dict[str, Any]:
        """Write a file unless it is there and intact; the same content in `taken`, another checkpoint, is another file.

        The name is derived from the content, so that files named by older manifests never change.
        """
        content = save(dict(tensors))
        digest = _digest(content)
        names = [f"{stem}-{digest[:16]}{copy}.safetensors" for copy in ("", "-copy")]
        own = next((name for name in names if name not in taken), names[0])
        for name in names:
            if (name == own or name in taken) and not self._is_intact(name, digest):
                write_atomically(self.folder / name, content)
        return {"file": own, "sha256": digest, "bytes": len(content)}

    def _is_intact(self, name: str, digest: str) -> bool:
        """Return whether a file's checksum is right; what was not touched since the last look is not read again."""
        path = self.folder / name
        try:
            found = path.stat()
            known = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._intact.get(name) != known and _digest(path.read_bytes()) != digest:
                return False
        except OSError:
            return False
        self._intact[name] = known
        return True


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder holds a complete checkpoint."""
    return bool(_manifests(folder))


def checkpointed_batches(folder: Path) -> int:
    """Return the number of batches that had been learned at the newest checkpoint; 0 if there is none."""
    return max(map(_steps, _manifests(folder)), default=0)


def forget_checkpoints(folder: Path) -> None:
    """Delete all checkpoints of a run, and the folder if nothing else is in it."""
    if folder.is_dir():
        with hold(folder, RUN_CHECKPOINTS):
            _delete(folder, set(), set())
        with suppress(OSError):  # not empty: files that hge has not written
            folder.rmdir()


def read_checkpoint(folder: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Return the newest intact checkpoint, with a warning for every newer one that is corrupt."""
    manifests = _manifests(folder)
    if not manifests:
        raise CheckpointError(f"{folder}: no checkpoint here")
    problems = []
    for manifest in manifests:
        try:
            return _read(manifest)
        except CheckpointError as problem:
            problems.append(str(problem))
            warnings.warn(f"{problem}; trying the checkpoint before it", stacklevel=2)
    raise CheckpointError("; ".join(problems))


def _read(manifest: Path) -> tuple[Snapshot, dict[str, Any]]:
    body = _read_body(manifest)
    try:
        files, learner, facts = body["files"], body["learner"], body["facts"]
        tensors = {name: _read_tensors(manifest.parent, entry) for name, entry in files.items()}
        experts = [tensors[f"expert.{number}"] for number in range(len(learner["experts"]))]
        return Snapshot(learner, tensors["state"], experts), facts
    except (KeyError, TypeError, AttributeError, ValueError, MemoryError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{manifest}: {error!r} is missing or of the wrong kind") from None


def _read_body(path: Path) -> dict[str, Any]:
    """Return the content of a manifest, after checking its checksum and its schema."""
    try:
        document = json.loads(path.read_bytes())
        body, digest = document["body"], document["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a checkpoint ({type(error).__name__})") from None
    if not isinstance(body, dict) or not isinstance(digest, str) or _digest(_canonical(body)) != digest:
        raise CheckpointError(f"{path}: its checksum is wrong, it is torn or was changed")
    if body.get("schema") != SCHEMA:
        raise CheckpointError(f"{path}: got schema {body.get('schema')!r}, expected {SCHEMA}; another version wrote it")
    return body


def _read_tensors(folder: Path, entry: Mapping[str, Any]) -> dict[str, Tensor]:
    name = entry["file"]
    if Path(name).name != name:
        raise CheckpointError(f"{folder}: got the file name {name!r}, expected one without a folder")
    path = folder / name
    try:
        content = path.read_bytes()
        if _digest(content) != entry["sha256"]:
            raise CheckpointError(f"{path}: its checksum is wrong, it is torn or was changed")
        return load(content)
    except OSError as error:
        raise CheckpointError(f"{path}: {error.strerror}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _delete(folder: Path, kept: Collection[Path | None], needed: Collection[str]) -> None:
    """Delete all manifests but those kept, then the files that are not needed; other files are not touched.

    If interrupted, no manifest with missing files remains.
    """
    for manifest in _manifests(folder):
        if manifest not in kept and _names_in(manifest) in (MANIFEST_NAMES, None):
            manifest.unlink()
    sync_folder(folder)
    for path in folder.iterdir():
        if TENSORS.fullmatch(path.name) and path.name not in needed:
            path.unlink()


def _manifests(folder: Path) -> list[Path]:
    """Return the manifests, newest first."""
    found = [path for path in folder.glob("checkpoint-*.json") if MANIFEST.fullmatch(path.name)]
    return sorted(found, key=_steps, reverse=True)


def _names_in(path: Path) -> set[str] | None:
    """Return the names in a JSON file; none if it is not an object, None if it is torn."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return set(document) if isinstance(document, dict) else set()


def _steps(manifest: Path) -> int:
    return int(manifest.stem.rpartition("-")[2])


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
