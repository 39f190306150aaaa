"""Checkpoints on disk: safetensors and JSON, never pickle. A torn or tampered one is told, and the one before used.

A folder of checkpoints holds a manifest for each (`checkpoint-STEPS.json`) and the files that manifests name. An expert
that was not trained since the last checkpoint keeps its file; two manifests then name the same one. Everything is
written under a temporary name, flushed to the disk and renamed: a manifest is there only when all its files are.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from hge.snapshot import Snapshot

SCHEMA = 1
KEEP = 2
"""Checkpoints that are kept."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why."""


def write_checkpoint(folder: Path, snapshot: Snapshot, facts: Mapping[str, Any], keep: int = KEEP) -> Path:
    """Write a checkpoint and what else must be known to go on (`facts`, JSON values); return its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = snapshot.facts["steps"]
    files = {"state": _write_tensors(folder, f"state-{steps}", snapshot.tensors)}
    known = _newest_files(folder)
    for number, (tensors, fact) in enumerate(zip(snapshot.experts, snapshot.facts["experts"], strict=True)):
        stem = f"expert-{number}-{fact['batches']}"
        unchanged = known.get(f"expert.{number}")
        if unchanged is None or unchanged["file"] != f"{stem}.safetensors":
            unchanged = _write_tensors(folder, stem, tensors)
        files[f"expert.{number}"] = unchanged
    body = {"schema": SCHEMA, "learner": snapshot.facts, "files": files, "facts": dict(facts)}
    path = folder / f"checkpoint-{steps}.json"
    _write(path, json.dumps({"sha256": _digest(_canonical(body)), "body": body}).encode())
    _forget_older(folder, keep)
    return path


def read_checkpoint(folder: Path) -> tuple[Snapshot, dict[str, Any]]:
    """Return the newest checkpoint that is whole, with a warning for every newer one that is not."""
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
    content = save(dict(tensors))
    _write(folder / f"{stem}.safetensors", content)
    return {"file": f"{stem}.safetensors", "sha256": _digest(content), "bytes": len(content)}


def _write(path: Path, content: bytes) -> None:
    """Write all or nothing, whatever happens meanwhile."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _newest_files(folder: Path) -> dict[str, Any]:
    """Return what the newest whole manifest names: these files need not be written again."""
    for manifest in _manifests(folder):
        try:
            return dict(_read_manifest(manifest)["files"])
        except (CheckpointError, KeyError, TypeError):
            continue
    return {}


def _forget_older(folder: Path, keep: int) -> None:
    """Delete older checkpoints, and files that no manifest names."""
    manifests = _manifests(folder)
    for manifest in manifests[keep:]:
        manifest.unlink()
    needed = set()
    for manifest in manifests[:keep]:
        try:
            needed |= {entry["file"] for entry in _read_manifest(manifest)["files"].values()}
        except CheckpointError:
            return  # who knows what it names
    for file in (*folder.glob("*.safetensors"), *folder.glob(".*.tmp")):
        if file.name not in needed:
            file.unlink()


def _manifests(folder: Path) -> list[Path]:
    """Return the manifests, the newest first."""
    found = [(path.stem.removeprefix("checkpoint-"), path) for path in folder.glob("checkpoint-*.json")]
    return [path for steps, path in sorted(((int(s), p) for s, p in found if s.isdecimal()), reverse=True)]


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
