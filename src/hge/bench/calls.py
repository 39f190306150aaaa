"""The cost of the front door: `predict` then `partial_fit` in small calls, against a loop over the same network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import process_time
from typing import Any

import numpy as np
import torch

from hge.data.drift_streams import random_rbf
from hge.estimator.classifier import GatedExperts
from hge.experts.networks import NETS

ROWS = 32
"""Rows of a call."""
YOUNG, LATER = 64, 256
"""Calls in which an expert is young, and rehearses most; calls measured after these."""


def measure_calls(inputs: int = 10, young: int = YOUNG, later: int = LATER, single: int = 300) -> dict[str, float]:
    """Return CPU seconds per 1 000 rows of both loops, in turns on the same rows, and milliseconds of single rows."""
    x, y = random_rbf(seed=0, inputs=inputs)(ROWS * (young + later) + single, np.random.default_rng(0))
    model, plain = GatedExperts(device="cpu"), _plain_loop(inputs)
    seconds = {"young": [0.0, 0.0], "later": [0.0, 0.0]}
    for number in range(young + later):
        part = slice(ROWS * number, ROWS * (number + 1))
        spent = seconds["young" if number < young else "later"]
        for place, learn in enumerate((lambda a, b: _front_door(model, a, b), plain)):
            spent[place] += _timed(lambda learn=learn, part=part: learn(x[part], y[part]))  # type: ignore[misc]
    rows = {"young": ROWS * young, "later": ROWS * later}
    one = iter(range(len(y) - single, len(y)))
    return (
        {
            f"{phase}_{name}": 1000 * spent[place] / rows[phase]
            for phase, spent in seconds.items()
            for place, name in enumerate(("seconds_per_1000_rows", "plain_seconds_per_1000_rows"))
        }
        | {f"{phase}_ratio": spent[0] / spent[1] for phase, spent in seconds.items()}
        | {"single_row_milliseconds": 1000 * _timed(lambda: _single_rows(model, x, y, one)) / single}
        | _milliseconds_of_parts(x, y, young, young + later)
    )


def _milliseconds_of_parts(x: Any, y: Any, young: int, calls: int) -> dict[str, float]:
    """Return the CPU time of a later call's parts, in milliseconds, of another model on the same rows."""
    model, spent = GatedExperts(device="cpu"), defaultdict[str, float](float)
    for number in range(calls):
        if number == young:
            learner = model.learner_
            for part, owner, method in (
                ("loss", learner.pool, "loss"),
                ("network_and_score", learner.pool, "train"),
                ("score", learner.pool, "_train_score"),
                ("companions", learner.memory, "learn"),
                ("rehearsal", learner.memory, "rehearse"),
                ("predict", model, "predict"),
                ("partial_fit", model, "partial_fit"),
            ):
                setattr(owner, method, _counted(getattr(owner, method), part, spent))
        part_of = slice(ROWS * number, ROWS * (number + 1))
        _front_door(model, x[part_of], y[part_of])
    spent["network"] = spent.pop("network_and_score") - spent["score"]
    learning = sum(spent[part] for part in ("loss", "network", "score", "companions", "rehearsal"))
    spent["other"] = spent.pop("partial_fit") - learning
    return {f"later_{part}_milliseconds": 1000 * seconds / (calls - young) for part, seconds in spent.items()}


def _counted(method: Callable[..., Any], part: str, spent: defaultdict[str, float]) -> Callable[..., Any]:
    """Return the same method, which adds its CPU seconds to a part."""

    def timed(*arguments: Any, **named: Any) -> Any:
        start = process_time()
        try:
            return method(*arguments, **named)
        finally:
            spent[part] += process_time() - start

    return timed


def _front_door(model: GatedExperts, x: Any, y: Any) -> None:
    if hasattr(model, "classes_"):
        model.predict(x)
    model.partial_fit(x, y)


def _single_rows(model: GatedExperts, x: Any, y: Any, rows: Iterator[int]) -> None:
    for row in rows:
        model.predict(x[row : row + 1])
        model.partial_fit(x[row : row + 1], y[row : row + 1])


def _plain_loop(inputs: int) -> Callable[[Any, Any], None]:
    """Return a step of prediction and training with the network and optimiser of the estimator's defaults."""
    net = NETS["mlp"]((inputs,), 64)
    optimiser = torch.optim.Adam(net.parameters(), lr=3e-3, fused=True)

    def step(x: Any, y: Any) -> None:
        rows, labels = torch.from_numpy(x), torch.from_numpy(y)
        with torch.no_grad():
            net(rows).argmax(1).numpy()
        loss = torch.nn.functional.cross_entropy(net(rows), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def _timed(call: Callable[[], None]) -> float:
    start = process_time()
    call()
    return process_time() - start
