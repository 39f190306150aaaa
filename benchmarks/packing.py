"""How many concurrent runs make the best use of one device: batches per second of 1, 2, 4, … processes together.

    python benchmarks/packing.py [--device cuda] [--net mlp] [--processes 1,2,4,8] [--out results/bench/packing.json]

Every process learns a synthetic stream of its own, GE sticky with the sketch. With NVIDIA's MPS running
(`nvidia-cuda-mps-control -d`) and CUDA_MPS_PIPE_DIRECTORY set, the processes share a GPU instead of taking turns.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from hge.bench.population import Population, Subject
from hge.bench.suite import device_name
from hge.core.files import write_json
from hge.experiments.run_files import environment

WARM_UP = 400
"""Batches: enough to capture all CUDA graphs, including those of rarely called functions."""


def work(subject: Subject, batches: int) -> None:
    """Run one of the processes: warm up, print "ready", wait for a line on standard input, learn, print "done"."""
    torch.set_num_threads(1)
    population = Population(subject)
    population.grow(1)
    task = population.task(0, batches=128)
    for _ in population.learner.learn_all(task.batches(0, WARM_UP)):
        pass
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in population.learner.learn_all(task.batches(WARM_UP, batches)):
        pass
    if subject.device.startswith("cuda"):
        torch.cuda.synchronize()
    print("done", flush=True)


def measure(processes: int, arguments: list[str], batches: int) -> dict[str, Any]:
    """Return the throughput of this number of processes at once."""
    command = [sys.executable, __file__, "--worker", *arguments]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    pipes = [(worker.stdin, worker.stdout) for worker in workers]
    for _, out in pipes:
        assert out is not None
        assert out.readline() == "ready\n"
    started = time.perf_counter()
    for into, _ in pipes:
        assert into is not None
        into.write("\n")
        into.flush()
    for _, out in pipes:
        assert out is not None
        assert out.readline() == "done\n"
    seconds = time.perf_counter() - started
    for worker in workers:
        worker.communicate()
    return {"processes": processes, "batches_per_second": round(processes * batches / seconds, 1)}


def main() -> None:
    """Measure all numbers of processes and write the table."""
    parser = argparse.ArgumentParser(description="Measure how well runs share one device.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--net", choices=("mlp", "resnet18"), default="mlp")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--processes", default="1,2,4,8")
    parser.add_argument("--batches", type=int, default=5000, help="batches that each process learns")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    subject = Subject(
        options.net,
        "28x28" if options.net == "mlp" else "32x32x3",
        "sketch",
        options.device,
        precision=options.precision,
    )
    if options.worker:
        work(subject, options.batches)
        return
    arguments = [f"--{name}={getattr(options, name)}" for name in ("device", "net", "precision", "batches")]
    rows = []
    for processes in map(int, options.processes.split(",")):
        rows.append(measure(processes, arguments, options.batches))
        print(rows[-1], flush=True)
    if options.out is not None:
        protocol = {"device": device_name(options.device), "precision": options.precision, "net": options.net}
        protocol["mps"] = "CUDA_MPS_PIPE_DIRECTORY" in os.environ
        write_json(options.out, {"packing": rows, "protocol": protocol | environment()})


if __name__ == "__main__":
    main()
