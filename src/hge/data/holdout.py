"""The validation part, used to select settings (docs/protocol.md): a tenth of the training rows, chosen by content."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from hge.data.scenarios import Part, Scenario, Task

PARTS = 10


def validation_scenario(scenario: Scenario) -> Scenario:
    """Return the scenario with the validation part in place of the test part; it contains no test row."""
    return replace(scenario, tasks=tuple(_split(task) for task in scenario.tasks))


def content_part(x: Tensor) -> Tensor:
    """Return a number from 0 to 9 for each row, a hash of its content: the same for every epoch, seed and order.

    >>> rows = torch.arange(12, dtype=torch.uint8).reshape(4, 3)
    >>> bool((content_part(rows.flip(0)) == content_part(rows).flip(0)).all())
    True
    """
    values = x.flatten(1)
    values = values.long() if values.dtype == torch.uint8 else (255 * values.double()).round().long()
    generator = torch.Generator().manual_seed(12345)
    odd = torch.randint(-(2**62), 2**62, (values.shape[1],), generator=generator) | 1
    mixed = (values * odd.to(values.device)).sum(1)
    mixed = (mixed ^ (mixed >> 31)) * 0x9E3779B97F4A7C1
    return (((mixed ^ (mixed >> 29)) >> 8) & 0xFFFFFF) % PARTS


def _split(task: Task) -> Task:
    train = task.train
    held = torch.cat([content_part(train.source.x[rows]) for rows in torch.split(train.rows, 4096)]) == 0
    if not held.any() or held.all():
        raise ValueError(f"{task.name}: got {len(train)} training rows, expected enough to hold some out")
    return replace(task, train=_rows(train, ~held), test=_rows(train, held))


def _rows(part: Part, chosen: Tensor) -> Part:
    return replace(part, rows=part.rows[chosen])
