"""Runs on a Ray cluster: a task each. A lost worker's run is tried again elsewhere, from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.worker import Outcome, Place, carry_out

RETRIES = 5
"""How often the run of a lost worker is tried again."""


@dataclass
class RayExecutor:
    """Carries out jobs as Ray tasks. All machines must have hge, and see the folders of `place`."""

    place: Place
    address: str | None = None
    """Of a running cluster; None: one on this machine."""
    per_gpu: int = 1
    """Runs that share a GPU."""
    _running: dict[Any, str] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Jobs that run at the same time, at the most: what the cluster now has room for."""
        resources = _ray().cluster_resources()
        return max(1, int(resources.get("GPU", 0) * self.per_gpu) or int(resources.get("CPU", 1)))

    def start(self, jobs: Iterable[Job]) -> None:
        """Hand all jobs to the cluster, which queues them."""
        ray = _ray()
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        for job in jobs:
            on_gpu = job.config.device.startswith("cuda")
            task = ray.remote(_task).options(
                name=job.name, num_cpus=1, num_gpus=1 / self.per_gpu if on_gpu else 0, max_retries=RETRIES
            )
            self._running[task.remote(job.as_json(), self.place)] = job.name

    def poll(self, seconds: float) -> list[Outcome]:
        """Wait for at most so long; return what has ended."""
        ray = _ray()
        ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=seconds)
        return [_outcome(ray, reference, self._running.pop(reference)) for reference in ready]

    def stop(self) -> None:
        """End what is running; its checkpoints stay."""
        ray = _ray()
        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running.clear()
        ray.shutdown()


def _task(document: dict[str, Any], place: Place) -> Outcome:
    """What a worker does. Whether it begins or goes on, the job's folder tells."""
    return carry_out(Job.from_json(document), place)


def _outcome(ray: Any, reference: Any, name: str) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:  # its workers were lost again and again
        return Outcome(name, None, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return outcome


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("executor: got ray, expected it to be installed: pip install 'hge[cluster]'") from None
    return ray
