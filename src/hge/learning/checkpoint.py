"""Checkpoints on disk: safetensors and JSON, never pickle. A corrupt one is reported and the previous one used.

A folder of checkpoints holds one manifest per checkpoint (`checkpoint-STEPS.json`) and the files named in manifests. An
expert not trained since the last checkpoint keeps its file, so two manifests may name the same one. Every file is
written under a temporary name, flushed to disk and renamed: a manifest exists only if all its files do.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hge.learning.state import Snapshot

SCHEMA = 5
"""3: sketches instead of subspaces; 4: the state of each component stored separately (CHANGELOG.md)."""
KEEP = 2
"""Number of checkpoints kept."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why."""


@dataclass
class Checkpoints:
    """Writes one learner's checkpoints into a folder, skipping experts that have not changed since the last one."""

    folder: Path
    keep: int = KEEP
    _written: dict[int, tuple[Any, dict[str, Any]]] = field(default_factory=dict)
    """expert -> number of batches it was trained on, and its file. Only files written by this object are trusted."""

    def write(self, snapshot: Snapshot, facts: Mapping[str, Any]) -> Path:
        """Write a checkpoint and the extra state needed to resume (`facts`, JSON values); return its manifest."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {"state": _write_tensors(self.folder, "state", snapshot.tensors)}
        for number, (tensors, fact) in enumerate(zip(snapshot.experts, snapshot.facts["experts"], strict=True)):
            batches, file = self._written.get(number, (-1, {}))
            if batches != fact["batches"]:
                file = _write_tensors(self.folder, f"expert-{number}", tensors)
                self._written[number] = fact["batches"], file
            files[f"expert.{number}"] = file
        body = {"schema": SCHEMA, "learner": snapshot.facts, "files": files, "facts": dict(facts)}
        path = self.folder / f"checkpoint-{snapshot.facts['steps']}.json"
        _write(path, json.dumps({"sha256": _digest(_canonical(body)), "body": body}).encode())
        _forget_older(self.folder, self.keep, path)
        return path


def has_checkpoint(folder: Path) -> bool:
    """Return whether the folder holds a complete checkpoint."""
    return bool(_manifests(folder))


def forget_checkpoints(folder: Path) -> None:
    """Delete all checkpoints, manifests first: if interrupted, no manifest with missing files remains."""
    for manifest in _manifests(folder):
        manifest.unlink()
    shutil.rmtree(folder, ignore_errors=True)


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
    body = _read_manifest(manifest)
    if body.get("schema") != SCHEMA:
        raise CheckpointError(
            f"{manifest}: got schema {body.get('schema')!r}, expected {SCHEMA}; another version wrote it"
        )
    try:
        files, learner, facts = body["files"], body["learner"], body["facts"]
        tensors = {name: _read_tensors(manifest.parent, entry) for name, entry in files.items()}
        experts = [tensors[f"expert.{number}"] for number in range(len(learner["experts"]))]
        return Snapshot(learner, tensors["state"], experts), facts
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{manifest}: {error!r} is missing or of the wrong kind") from None


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
        body, digest = document["body"], document["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a checkpoint ({type(error).__name__})") from None
    if not isinstance(body, dict) or _digest(_canonical(body)) != digest:
        raise CheckpointError(f"{path}: its checksum is wrong, it is torn or was changed")
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


def _write_tensors(folder: Path, stem: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write under a name derived from the content, so that files named by older manifests never change."""
    content = save(dict(tensors))
    digest = _digest(content)
    name = f"{stem}-{digest[:16]}.safetensors"
    _write(folder / name, content)
    return {"file": name, "sha256": digest, "bytes": len(content)}


def _write(path: Path, content: bytes) -> None:
    """Write atomically: after a crash the file is either complete or unchanged."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # free the space if the disk is full
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _forget_older(folder: Path, keep: int, newest: Path) -> None:
    """Delete older checkpoints, and files that no manifest names."""
    # A checkpoint with more steps than the newest belongs to an abandoned run.
    kept = [newest, *(path for path in _manifests(folder) if _steps(path) < _steps(newest))][:keep]
    for manifest in set(_manifests(folder)) - set(kept):
        manifest.unlink()
    needed = set()
    for manifest in kept:
        try:
            needed |= {entry["file"] for entry in _read_manifest(manifest)["files"].values()}
        except CheckpointError:
            return  # the files it names are unknown, so delete none
    for file in (*folder.glob("*.safetensors"), *folder.glob(".*.tmp")):
        if file.name not in needed:
            file.unlink()


def _manifests(folder: Path) -> list[Path]:
    """Return the manifests, newest first."""
    found = [path for path in folder.glob("checkpoint-*.json") if path.stem.rpartition("-")[2].isdecimal()]
    return sorted(found, key=_steps, reverse=True)


def _steps(manifest: Path) -> int:
    return int(manifest.stem.rpartition("-")[2])


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
