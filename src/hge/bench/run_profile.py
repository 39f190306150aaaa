"""Profile of a whole run: functions of the host and, on a GPU, kernels, launches and synchronisations per batch."""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from hge.bench.measure import now
from hge.bench.runs import ignore_step, learn_stream
from hge.core.config import RunConfig
from hge.core.files import write_atomically
from hge.learning.online import OnlineLearner, Step

LINES = 60
"""Functions listed, by cumulative and by own time."""
WINDOW = 60
"""Batches in the window in which a GPU is traced; it has thousands of events for each."""
CALLS = {
    "kernels and copies launched one by one": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel"),
    "copies": ("cudaMemcpyAsync",),
    "graphs launched": ("cudaGraphLaunch",),
    "values read by the host": ("aten::_local_scalar_dense",),
    "waits for a stream": ("cudaStreamSynchronize",),
    "waits for an event": ("cudaEventSynchronize",),
    "waits for the device": ("cudaDeviceSynchronize",),
}
"""Calls that are counted on a GPU."""


def profile_run(config: RunConfig, data: Path | None, file: Path, report: Callable[[str], None]) -> None:
    """Write a profile of a run; each profiler has a run of its own."""
    report("a profile of the host")
    text = _host_profile(config, data)
    if config.device.startswith("cuda"):
        report("a profile of the device")
        text = _device_profile(config, data) + text
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)


def _host_profile(config: RunConfig, data: Path | None) -> str:
    profile, out = cProfile.Profile(), io.StringIO()

    session, _ = learn_stream(config, data, ignore_step, lambda session: profile.enable())
    profile.disable()
    out.write(f"Functions of the host over {session.learner.steps} batches\n\n")
    statistics = pstats.Stats(profile, stream=out).strip_dirs()
    for order in ("cumulative", "tottime"):
        statistics.sort_stats(order).print_stats(LINES)
    return out.getvalue()


class DeviceWindow:
    """Traces the device during the last batches of a run."""

    def __init__(self, device: str, batches: int) -> None:
        self.device, self.batches = device, batches
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.profiler = torch.profiler.profile(activities=activities)
        self.seconds = 0.0

    def __call__(self, step: Step, total: int, learner: OnlineLearner) -> None:
        """Begin or end the trace after a batch."""
        if step.step == total - 1 - self.batches:
            self.seconds = -now(self.device)
            self.profiler.start()
        if step.step == total - 1:
            self.seconds += now(self.device)
            self.profiler.stop()


def _device_profile(config: RunConfig, data: Path | None) -> str:
    window = DeviceWindow(config.device, WINDOW)
    learn_stream(config, data, window)
    if window.seconds <= 0:
        return f"Device: the run ended before the last {WINDOW} batches of its stream\n\n"
    events = window.profiler.key_averages()
    lines = [f"Device, the last {WINDOW} batches, per batch", ""]
    lines += [f"{1e3 * window.seconds / WINDOW:10.3f} ms elapsed (traced: slower than without)"]
    lines += [f"{_device_milliseconds(events) / WINDOW:10.3f} ms of kernels, one after the other"]
    for about, names in CALLS.items():
        count = sum(event.count for event in events if event.key in names)
        lines.append(f"{count / WINDOW:10.2f} {about}")
    for order in ("self_device_time_total", "self_cpu_time_total"):
        lines += ["", order, str(events.table(sort_by=order, row_limit=LINES, max_name_column_width=90))]
    return "\n".join(lines) + "\n\n"


def _device_milliseconds(events: Sequence[Any]) -> float:
    """Return the time of all kernels and copies."""
    on_device = (event for event in events if "CUDA" in str(event.device_type))
    return float(sum(event.self_device_time_total for event in on_device)) / 1e3
