"""The whole benchmark: the default subjects and numbers of experts, and the resulting document."""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hge.bench.gates import GateRow, measure_gates
from hge.bench.inference import InferenceRow, measure_inference
from hge.bench.measure import FULL, SHORT, Plan
from hge.bench.memory import MemoryRow, measure_memory
from hge.bench.plain_training import Precision, ScoreName
from hge.bench.population import Images, LeftOut, Measure, PoolName, Population, Subject, measure_sizes
from hge.bench.steps import StepRow, measure_steps
from hge.bench.stream import BATCH_SIZE
from hge.bench.switches import SwitchRow, measure_switches
from hge.experiments.run_files import environment

SECTIONS: dict[type, str] = {
    StepRow: "steps",
    GateRow: "gates",
    SwitchRow: "switches",
    InferenceRow: "inference",
    MemoryRow: "memory",
    LeftOut: "left_out",
}
"""Section of the document for each kind of row."""
PARTS = ("steps", "gates", "switches", "inference", "memory")


@dataclass(frozen=True)
class BenchOptions:
    """Options of the caller; None: the default for the device."""

    device: str
    net: str | None = None
    score: ScoreName | None = None
    experts: tuple[int, ...] | None = None
    pool: PoolName = "auto"
    precision: Precision = "fp32"
    short: bool = False
    literal: bool = True
    """steps: also Algorithm 1 exactly as written, which needs a second population of experts."""

    @property
    def plan(self) -> Plan:
        """Durations of the measurements."""
        return SHORT if self.short else FULL["cuda" if self.on_gpu else "cpu"]

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")

    @property
    def nets(self) -> tuple[str, ...]:
        """Networks to measure; ResNet-18 takes a second per step on a CPU, so there only on request."""
        return (self.net,) if self.net else ("mlp", "resnet18") if self.on_gpu else ("mlp",)

    @property
    def scores(self) -> tuple[ScoreName, ...]:
        """Scores to measure."""
        return (self.score,) if self.score else ("sketch", "autoencoder")


def bench(
    parts: Sequence[str], options: BenchOptions, report: Callable[[str], None], save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Measure some of `PARTS`; return the document for the JSON file, which is also saved after every row."""
    # The pools that "auto" chose.
    pools = {str(subject): type(Population(subject).learner.pool).__name__ for subject in _subjects(options)}
    settings = asdict(options) | {"plan": asdict(options.plan), "batch_size": BATCH_SIZE, "pools": pools}
    document: dict[str, Any] = {section: [] for section in (*parts, "left_out")}
    document |= {"settings": settings, "protocol": {"device": device_name(options.device)} | environment()}
    for row in _rows(parts, options, report):
        document[SECTIONS[type(row)]].append(asdict(row))
        save(document)
    return document


def device_name(device: str) -> str:
    """Return the name of the processor or the GPU."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _rows(parts: Sequence[str], options: BenchOptions, report: Callable[[str], None]) -> Iterator[Any]:
    """Measure one subject after the other, and free its memory before the next."""
    plan = options.plan
    for subject in _subjects(options):
        if "steps" in parts:
            numbers = options.experts or _default_sizes("steps", subject, options)
            yield from measure_steps(subject, numbers, plan, report, literal=options.literal)
            _free_memory(options)
        for member, measures in _measurements(subject):
            requested = {part: measure for part, measure in measures.items() if part in parts}
            if requested:
                numbers = options.experts or _default_sizes(min(requested), member, options)
                yield from measure_sizes(member, numbers, list(requested.values()), plan, report)
                _free_memory(options)
        for number in options.experts or _default_sizes("switches", subject, options) if "switches" in parts else ():
            if number > 1:
                yield from measure_sizes(subject, (number,), (measure_switches,), plan, report)
                _free_memory(options)


def _subjects(options: BenchOptions) -> Iterator[Subject]:
    for net in options.nets:
        images: Images = "28x28" if net == "mlp" else "32x32x3"
        for score in options.scores:
            yield Subject(net, images, score, options.device, options.pool, options.precision)


def _measurements(subject: Subject) -> list[tuple[Subject, Mapping[str, Measure]]]:
    """Return the measurements that can share a population."""
    gates: dict[str, Measure] = {"gates": measure_gates}
    others: dict[str, Measure] = {"inference": measure_inference, "memory": measure_memory}
    if subject.net == "mlp":
        return [(subject, gates | others)]
    # A thousand large networks would not fit; the gate does not evaluate them, so small ones are used instead.
    return [(replace(subject, net="mlp"), gates), (subject, others)]


def _default_sizes(part: str, subject: Subject, options: BenchOptions) -> tuple[int, ...]:
    """Return the default numbers of experts."""
    autoencoder = subject.score == "autoencoder"
    if options.short:
        return (5,) if part == "switches" else (1, 5) if autoencoder else (1, 20)
    if part == "switches":
        return (20,)
    if subject.net != "mlp":
        return (1, 20)
    if part == "steps":
        return (1, 20) if autoencoder and not options.on_gpu else (1, 5, 20, 100)
    if autoencoder and subject.images == "32x32x3":
        return (1, 5, 20)
    return (1, 5, 20, 100, 1000)


def _free_memory(options: BenchOptions) -> None:
    gc.collect()  # a learner and its organisation refer to each other
    if options.on_gpu:
        torch.cuda.empty_cache()
