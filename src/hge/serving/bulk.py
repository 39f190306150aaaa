"""Predictions for many rows: chunk by chunk in this process, or by replicas of the model on a Ray cluster."""

from __future__ import annotations

import csv
import io
import logging
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
    """Answer on a Ray cluster by Ray Data, in order: every CPU gets a replica, loaded from a folder that all reach."""
    ray = import_ray()
    try:
        import ray.data
    except ImportError as error:
        raise ValueError(f"executor: ray needs {error.name}; install it with: pip install 'hge[cluster]'") from None

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    logging.getLogger("ray.data").setLevel(logging.ERROR)  # its own progress would be mixed with ours
    parts = list(chunks(rows))
    count = max(1, min(len(parts), int(ray.cluster_resources().get("CPU", 1))))
    data = ray.data.from_numpy(parts)  # a block per chunk
    data.context.execution_options.preserve_order = True
    data.context.enable_progress_bars = False
    replicas = ray.data.ActorPoolStrategy(size=count)
    answered = data.map_batches(
        Replica, fn_constructor_args=(str(folder.resolve()),), batch_size=None, compute=replicas, num_cpus=1
    )
    for part in answered.iter_batches(batch_size=None):
        label = part["label"]
        # Arrow's texts come back as objects
        yield Answers(label.astype(str) if label.dtype == object else label, part["confidence"], part["expert"])


class Replica:
    """A copy of the model in a worker's process."""

    def __init__(self, folder: str) -> None:
        self.model = GatedExperts.load(folder)

    def __call__(self, batch: dict[str, Rows]) -> dict[str, npt.NDArray[Any]]:
        """Answer a chunk, as columns."""
        return vars(answer(self.model, batch["data"]))


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
