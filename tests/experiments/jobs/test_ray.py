"""Runs on a cluster of two nodes, of which one is killed in the middle of its run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.command import hge
from helpers.lasting import lasting
from hge.experiments.jobs.plan import build_jobs
from hge.experiments.jobs.ray import RayExecutor
from hge.experiments.jobs.scheduler import SUBFOLDER, reproduce
from hge.experiments.jobs.worker import Outcome, Workspace, read_progress
from hge.experiments.run_files import CHECKPOINTS
from hge.experiments.runner import run

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A dead node is to be noticed within seconds; and workers are not to give way to all else on a busy machine.
    noticing = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": noticing | {"worker_niceness": 0}}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_lost_nodes_run_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    """Two nodes take a run each; one is killed, and its run goes on where the other has ended."""
    _, lost = [cluster.add_node(num_cpus=1) for _ in range(2)]
    jobs = build_jobs([("split-digits", "ge")], recipe="paper", seeds=2, epochs_scale=0.3, device="cpu")
    workspace = Workspace(tmp_path / "work", checkpoint_every=20)
    killed: list[int] = []

    def kill_in_the_middle(ended: list[Outcome]) -> None:
        under_way = [job for job in jobs if list(workspace.folder(job.name).glob(f"{CHECKPOINTS}/*.json"))]
        if not killed and len(under_way) == len(jobs):
            cluster.remove_node(lost, allow_graceful=False)
            killed.append(len(ended))

    outcomes = reproduce(jobs, RayExecutor(workspace, cluster.address), tmp_path / "results", kill_in_the_middle)
    assert killed
    assert sorted(outcome.name for outcome in outcomes) == [job.name for job in jobs], "each arrives once"
    began = [progress.began_at for job in jobs if (progress := read_progress(workspace.folder(job.name)))]
    assert min(began) == 0
    assert max(began) >= 20, "the lost run went on from its checkpoint"
    for job in jobs:
        result = json.loads((tmp_path / "results" / SUBFOLDER / f"{job.name}.json").read_text())
        assert lasting(result) == lasting(run(job.config, tmp_path / "whole"))


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    options = ["--scenario", "split-digits", "--method", "ge", "--executor", "ray"]
    done = hge("reproduce", *options, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "executor: got ray, expected it to be installed: pip install 'hge[cluster]'" in done.stderr
