"""Runs on a Ray cluster: one task per run. If a worker is lost, its run is retried from its checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.worker import Outcome, Workspace, run_job

RETRIES = 5
"""Maximum number of retries after a worker is lost."""


@dataclass
class RayExecutor:
    """Runs jobs as Ray tasks. All machines must have hge installed and access to the folders of `workspace`."""

    workspace: Workspace
    address: str | None = None
    """Address of a running cluster; None starts one on this machine."""
    per_gpu: int = 1
    """Number of runs that share a GPU."""
    _running: dict[Any, str] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Maximum number of jobs that run at the same time, from the cluster's current resources."""
        resources = import_ray().cluster_resources()
        return max(1, int(resources.get("GPU", 0) * self.per_gpu) or int(resources.get("CPU", 1)))

    def start(self, jobs: Iterable[Job]) -> None:
        """Submit all jobs to the cluster, which queues them."""
        ray = import_ray()
        if not ray.is_initialized():
            ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        for job in jobs:
            on_gpu = job.config.device.startswith("cuda")
            task = ray.remote(_task).options(
                name=job.name, num_cpus=1, num_gpus=1 / self.per_gpu if on_gpu else 0, max_retries=RETRIES
            )
            self._running[task.remote(job.as_json(), self.workspace)] = job.name

    def poll(self, seconds: float) -> list[Outcome]:
        """Wait for at most `seconds`; return the outcomes of jobs that have ended."""
        ray = import_ray()
        ready, _ = ray.wait(list(self._running), num_returns=len(self._running), timeout=seconds)
        return [_outcome(ray, reference, self._running.pop(reference)) for reference in ready]

    def stop(self) -> None:
        """Stop running jobs; their checkpoints are kept."""
        ray = import_ray()
        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running.clear()
        ray.shutdown()


def _task(document: dict[str, Any], workspace: Workspace) -> Outcome:
    """Run one job in a worker; it resumes if the job's folder holds a checkpoint."""
    return run_job(Job.from_json(document), workspace)


def _outcome(ray: Any, reference: Any, name: str) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:  # more workers were lost than `RETRIES` allows
        return Outcome(name, None, f"{type(error).__name__}: {' '.join(str(error).split())}")
    return outcome


def import_ray() -> Any:
    """Return the package, or raise an error that says how to install it."""
    try:
        import ray
    except ImportError:
        raise ValueError("executor: got ray, expected it to be installed: pip install 'hge[cluster]'") from None
    return ray
