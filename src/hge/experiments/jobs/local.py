"""Runs on this machine: one process per run, several at a time, so that a crash does not affect other runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any

import torch

from hge.experiments.jobs.plan import Job
from hge.experiments.jobs.worker import Outcome, Workspace, run_job

GRACE_SECONDS = 30.0
"""Seconds allowed for a run's last checkpoint."""
_SPAWN = multiprocessing.get_context("spawn")  # a forked process could not use a GPU


@dataclass
class LocalExecutor:
    """Runs jobs in up to `workers` processes, which share a GPU if there is one."""

    workspace: Workspace
    workers: int = 1
    _waiting: deque[Job] = field(default_factory=deque)
    _running: dict[Connection, SpawnProcess] = field(default_factory=dict)

    @property
    def at_once(self) -> int:
        """Maximum number of jobs that run at the same time."""
        return self.workers

    def start(self, jobs: Iterable[Job]) -> None:
        """Queue jobs and start as many as possible."""
        self._waiting.extend(jobs)
        self._start_waiting()

    def poll(self, seconds: float) -> list[Outcome]:
        """Wait for at most `seconds`; return the outcomes of jobs that have ended."""
        ended = [ready for ready in wait(self._running, seconds) if isinstance(ready, Connection)]
        outcomes = [read_outcome(ready, self._running.pop(ready)) for ready in ended]
        self._start_waiting()
        return outcomes

    def stop(self) -> None:
        """Stop running jobs after a last checkpoint."""
        self._waiting.clear()
        for process in self._running.values():
            process.terminate()
        for connection, process in self._running.items():
            process.join(GRACE_SECONDS)
            process.kill()
            process.join()
            connection.close()
        self._running.clear()

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self.workers:
            job = self._waiting.popleft()
            threads = max(1, torch.get_num_threads() // self.workers)
            receiver, sender = _SPAWN.Pipe(duplex=False)
            work = job.as_json(), self.workspace, threads, sender
            process = _SPAWN.Process(target=_work, name=job.name, args=work, daemon=True)
            process.start()
            sender.close()  # so that `receiver` sees EOF when the process dies
            self._running[receiver] = process


def read_outcome(connection: Connection, process: SpawnProcess) -> Outcome:
    """Receive the outcome from a job's process, which is named as the job; a process that died is an outcome, too."""
    try:
        outcome: Outcome = connection.recv()
    except (EOFError, OSError):  # it sent nothing, or died in the middle of it
        process.join()
        return Outcome(process.name, None, f"the process died with exit code {process.exitcode}")
    finally:
        connection.close()
    process.join()
    return outcome


def _work(document: dict[str, Any], workspace: Workspace, threads: int, connection: Connection) -> None:
    """Run one job in a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then ends this process
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with suppress(KeyboardInterrupt):
        connection.send(run_job(Job.from_json(document), workspace))


def _end_with_parent() -> None:
    """Exit when the parent was killed, since the result could not be delivered; checkpoints are kept."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
