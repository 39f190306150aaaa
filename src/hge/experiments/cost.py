"""Cost of a prediction: multiply-adds and milliseconds per row, for the gate alone and in total."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from torch import Tensor

from hge.experiments.metrics import Figures
from hge.experts.pool import Costs
from hge.learning.online import Answers, Routing

ROWS, REPEATS = 1024, 3
"""Maximum rows of a timed call, and number of timed calls."""


def costs(
    answers: Answers, costs: Costs, figures: Mapping[Routing, Figures], x: Tensor, classes: int, batch_size: int
) -> dict[str, Any]:
    """Return the cost of each routing on test rows; an expert-equivalent is one pass of one expert's network."""
    found: dict[str, Any] = {"expert_multiply_adds": round(costs.network)}
    for routing, figure in figures.items():
        rows = x[: batch_size if routing == "batch" else ROWS]
        gate = answers.gate_multiply_adds(figure.experts_queried, len(rows) if routing == "batch" else 1)
        routes = answers.route(rows, routing)
        gate_ms = _milliseconds(lambda rows=rows, routing=routing: answers.route(rows, routing))  # type: ignore[misc]
        answer_ms = _milliseconds(
            lambda rows=rows, routes=routes: answers.probabilities(rows, routes, classes)  # type: ignore[misc]
        )
        found[routing] = {
            "gate_multiply_adds": round(gate),
            "gate_expert_equivalents": float(f"{gate / costs.network:.4g}"),
            "answer_multiply_adds": round(gate + costs.network),
            "gate_ms_per_row": float(f"{gate_ms / len(rows):.4g}"),
            "answer_ms_per_row": float(f"{(gate_ms + answer_ms) / len(rows):.4g}"),
        }
    return found


def _milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call; it returns host data, so work on a device is included."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return 1e3 * median(seconds)
