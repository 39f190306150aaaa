"""Predictions for many rows: chunk by chunk in this process, or by replicas of the model on a Ray cluster."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hge.core.files import write_atomically
from hge.data.input_file import Inputs, Rows
from hge.estimator.classifier import GatedExperts
from hge.experiments.jobs.ray import import_ray

CHUNK = 1024
OUT_FORMATS = (".csv", ".parquet", ".npz")


@dataclass(frozen=True, eq=False)
class Answers:
    """Labels, their probabilities, and the experts that the gate selects."""

    label: npt.NDArray[Any]
    confidence: npt.NDArray[np.float64]
    expert: npt.NDArray[Any]


def answer(model: GatedExperts, rows: Rows) -> Answers:
    """Answer rows with a model that does not learn meanwhile."""
    probabilities = model.predict_proba(rows)
    labels = model.classes_[probabilities.argmax(axis=1)]
    return Answers(labels, probabilities.max(axis=1), model.predict_expert(rows)[0])


def chunks(rows: Rows) -> Iterator[Rows]:
    """Yield the rows, some at a time."""
    yield from (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))


def answer_here(model: GatedExperts, rows: Rows) -> Iterator[Answers]:
    """Answer chunk by chunk in this process."""
    yield from (answer(model, some) for some in chunks(rows))


def answer_on_ray(folder: Path, rows: Rows, address: str | None = None) -> Iterator[Answers]:
    """Answer on a Ray cluster, in order: every CPU gets a replica, loaded from a folder that all machines reach."""
    ray = import_ray()
    from ray.util import ActorPool

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    parts = list(chunks(rows))
    count = max(1, min(len(parts), int(ray.cluster_resources().get("CPU", 1))))
    replicas = [ray.remote(Replica).options(num_cpus=1).remote(folder.resolve()) for _ in range(count)]
    try:
        yield from ActorPool(replicas).map(lambda replica, part: replica.answer.remote(part), parts)
    finally:
        for replica in replicas:
            ray.kill(replica)


class Replica:
    """A copy of the model in a worker's process."""

    def __init__(self, folder: Path) -> None:
        self.model = GatedExperts.load(folder)

    def answer(self, rows: Rows) -> Answers:
        """Answer a chunk."""
        return answer(self.model, rows)


def check_out(path: Path) -> None:
    """Raise an error for a file that `write_answers` could not write, before anything is computed."""
    if path.suffix not in OUT_FORMATS:
        raise ValueError(f"out: got {path}, expected a file {', '.join(OUT_FORMATS)}")
    if path.suffix == ".parquet":
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise ValueError("out: writing Parquet needs pyarrow; install it with: pip install pyarrow") from None


def write_answers(path: Path, inputs: Inputs, parts: list[Answers]) -> None:
    """Write a line, or an entry of each array, per row: its name, label, confidence and expert."""
    columns: dict[str, Any] = {"row": np.array(inputs.names)}
    columns |= {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("label", "confidence", "expert")
    }
    if path.suffix == ".csv":
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        write_atomically(path, text.getvalue())
        return
    binary = io.BytesIO()
    if path.suffix == ".npz":
        np.savez_compressed(binary, **columns)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table({name: column.tolist() for name, column in columns.items()}), binary)
    write_atomically(path, binary.getvalue())
