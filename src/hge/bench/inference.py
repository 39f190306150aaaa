"""Inference: images per second through gate and expert, compared with one plain network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hge.bench.measure import Plan, Spread, time_calls
from hge.bench.population import Population, Subject
from hge.bench.stream import BATCH_SIZE, CLASSES
from hge.core.types import as_float
from hge.experts.networks import NETS
from hge.learning.online import Routing
from hge.learning.routing import Answerer

ROWS = 1024
"""Images per call, in batches of one task each; at most as many tasks as experts."""


@dataclass(frozen=True)
class InferenceRow:
    """Speed of inference for a given number of experts. The rows are in host memory, as `predict` receives them."""

    subject: Subject
    experts: int
    routing: str
    """sample: each row by itself. batch: a batch of 128 at once. one row: a call for a single row."""
    images_per_second: Spread
    milliseconds: Spread
    """Per call: of 1024 rows, of 128, of 1."""
    ratio_to_plain: Spread
    """Relative to one plain network, without a gate, on the same rows."""


def measure_inference(population: Population, plan: Plan) -> Iterator[InferenceRow]:
    """Yield the speed of each routing."""
    subject = population.subject
    owners = np.linspace(0, population.size - 1, ROWS // BATCH_SIZE).astype(int).tolist()
    rows = torch.cat([next(population.task(owner, batches=1).batches(0, 1)).x for owner in owners])
    mixed = as_float(rows.cpu())
    for routing, x in (("sample", mixed), ("batch", mixed[:BATCH_SIZE]), ("one row", mixed[:1])):
        calls = {
            "plain": _plain(subject, x),
            "gated": _gated(population, x, "batch" if routing == "batch" else "sample"),
        }
        seconds = time_calls(calls, plan, subject.device)
        yield InferenceRow(
            subject,
            population.size,
            routing,
            Spread.of(len(x) / s for s in seconds["gated"]),
            Spread.of(1e3 * s for s in seconds["gated"]),
            Spread.of(p / s for p, s in zip(seconds["plain"], seconds["gated"], strict=True)),
        )


def _gated(population: Population, x: Tensor, routing: Routing) -> Callable[[], object]:
    answerer = Answerer(population.learner)
    return lambda: answerer.probabilities(x, answerer.route(x, routing), CLASSES)


def _plain(subject: Subject, x: Tensor) -> Callable[[], object]:
    net = NETS[subject.net](subject.shape, CLASSES).to(subject.device).eval()
    kind, half = torch.device(subject.device).type, subject.precision == "bf16"

    @torch.inference_mode()
    def answer() -> object:
        with torch.autocast(kind, torch.bfloat16, enabled=half):
            return net(x.to(subject.device)).float().softmax(dim=1).cpu()

    return answer
