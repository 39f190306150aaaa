"""Memory: bytes per expert, and the peak while experts are trained and queried."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hge.bench.measure import Plan
from hge.bench.population import Population, Subject
from hge.learning.routing import Answerer


@dataclass(frozen=True)
class MemoryRow:
    """Memory in bytes, for a given number of experts."""

    subject: Subject
    experts: int
    bytes_per_expert: int
    device_bytes: int
    """Held by the pool on the device."""
    host_bytes: int
    """Held by the pool in host memory."""
    peak_bytes: int
    """Peak while batches were learned and routed: on the GPU or, without one, by the process so far."""


def measure_memory(population: Population, plan: Plan) -> Iterator[MemoryRow]:
    """Yield the memory of the experts. Trains the last expert on a few more batches."""
    subject, learner = population.subject, population.learner
    on_gpu = subject.device.startswith("cuda")
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(subject.device)
    batches = list(population.task(population.size - 1, batches=plan.warm_up).batches(0, plan.warm_up))
    for _ in learner.learn_all(batches):
        pass
    Answerer(learner).route(batches[0].x, "batch")
    peak = torch.cuda.max_memory_allocated(subject.device) if on_gpu else process_peak()
    held = learner.pool.memory()
    yield MemoryRow(subject, population.size, held["bytes_per_expert"], held["device_bytes"], held["host_bytes"], peak)


def process_peak() -> int:
    """Return the peak memory of the process so far, in bytes."""
    import resource  # not available on Windows, where only this figure is missing

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts in KiB
