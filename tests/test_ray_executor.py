"""Runs on a cluster of two nodes, of which one is killed in the middle of its run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hge.experiments import build_jobs
from hge.jobs import Outcome, Place, read_progress
from hge.ray_executor import RayExecutor
from hge.reproduce import SUBFOLDER, reproduce
from hge.run import CHECKPOINTS, run

ray = pytest.importorskip("ray")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # A dead node is to be noticed within seconds; and workers are not to give way to all else on a busy machine.
    noticing = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": noticing | {"worker_niceness": 0}}
    made = Cluster(initialize_head=True, head_node_args=head)
    yield made
    ray.shutdown()
    made.shutdown()


def figures(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("samples_per_second", "protocol")}


@pytest.mark.slow
def test_a_lost_nodes_run_goes_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    """The head has room for the first run; a second node comes, takes the second run, and is killed."""
    first, second = build_jobs([("split-digits", "ge")], recipe="paper", seeds=2, epochs_scale=0.4, device="cpu")
    place = Place(tmp_path / "work", checkpoint_every=20)
    nodes: list[Any] = []
    killed: list[int] = []

    def come_and_go(ended: list[Outcome]) -> None:
        if not nodes and place.folder(first.name).is_dir():
            nodes.append(cluster.add_node(num_cpus=1))
        elif nodes and not killed and list(place.folder(second.name).glob(f"{CHECKPOINTS}/*.json")):
            cluster.remove_node(nodes[0], allow_graceful=False)
            killed.append(len(ended))

    outcomes = reproduce([first, second], RayExecutor(place, cluster.address), tmp_path / "results", come_and_go)
    assert killed
    assert sorted(outcome.name for outcome in outcomes) == sorted((first.name, second.name)), "each arrives once"
    began = [progress.began_at for job in (first, second) if (progress := read_progress(place.folder(job.name)))]
    assert began[0] == 0
    assert began[1] >= 20, "the lost run went on from its checkpoint"
    for job in (first, second):
        result = json.loads((tmp_path / "results" / SUBFOLDER / f"{job.name}.json").read_text())
        assert figures(result) == figures(run(job.config, tmp_path / "whole"))


def test_without_ray_it_says_what_to_install(tmp_path: Path) -> None:
    code = "import sys; sys.modules['ray'] = None; sys.argv = ['hge', *sys.argv[1:]]; from hge.cli import main; main()"
    options = ["--scenario", "split-digits", "--method", "ge", "--executor", "ray"]
    done = subprocess.run(
        [sys.executable, "-c", code, "reproduce", *options], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "executor: got ray, expected it to be installed: pip install 'hge[cluster]'" in done.stderr
