"""A learnable stream that needs no data set: images around the prototypes of ten classes, task by task."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hge.core.types import Batch
from hge.data.scenarios import Part, Scenario, Source, Task
from hge.experts.networks import Shape

CLASSES = 10
BATCH_SIZE = 128
DOMAINS = 31
"""Tasks of the same domain are similar, so that a tree has structure to find."""
CONTRAST = 45.0
"""Standard deviation, in grey levels, of the contributions of domain, task and class, and of the noise of a row."""
WRONG_LABELS = 0.1
"""Share of labels that are drawn at random: the loss stays above zero and varies, as with real data."""


class SyntheticTask:
    """The images of one task, resident on the device as one uint8 tensor."""

    def __init__(self, number: int, shape: Shape, device: str, *, batches: int) -> None:
        generator = torch.Generator(device).manual_seed(number)

        def normal(*leading: int) -> Tensor:
            return CONTRAST * torch.randn(*leading, *shape, generator=generator, device=device)

        domain = torch.Generator(device).manual_seed(1_000_000 + number % DOMAINS)
        common = CONTRAST * torch.randn(shape, generator=domain, device=device) + normal()
        prototypes = 128 + common + normal(CLASSES)
        rows = batches * BATCH_SIZE
        classes = torch.randint(CLASSES, (rows,), generator=generator, device=device)
        others = torch.randint(CLASSES, (rows,), generator=generator, device=device)
        wrong = torch.rand(rows, generator=generator, device=device) < WRONG_LABELS
        self.labels = torch.where(wrong, others, classes)
        # Class by class: the single-precision noise of all rows would take four times the memory of the images.
        self.images = torch.empty(rows, *shape, dtype=torch.uint8, device=device)
        for c in range(CLASSES):
            own = (classes == c).nonzero()[:, 0]
            self.images[own] = (prototypes[c] + normal(len(own))).clamp_(0, 255).to(torch.uint8)
        self._order = -1, torch.empty(0)

    def batches(self, first: int, count: int) -> Iterator[Batch]:
        """Yield batches `first`, `first + 1`, ... of an endless stream that is the same for every caller."""
        per_epoch = len(self.labels) // BATCH_SIZE
        for number in range(first, first + count):
            epoch, position = divmod(number, per_epoch)
            rows = self._epoch(epoch)[position * BATCH_SIZE : (position + 1) * BATCH_SIZE]
            yield Batch(self.images.index_select(0, rows), self.labels.index_select(0, rows))

    def _epoch(self, epoch: int) -> Tensor:
        """Return the order of the rows in an epoch."""
        if self._order[0] != epoch:
            device = self.labels.device
            generator = torch.Generator(device).manual_seed(epoch)
            self._order = epoch, torch.randperm(len(self.labels), generator=generator, device=device)
        return self._order[1]


def synthetic_scenario(shape: Shape) -> Scenario:
    """Return a scenario of one row, from which a pool reads the shape and the number of classes."""
    source = Source(torch.zeros(1, *shape, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64))
    part = Part(source, torch.zeros(1, dtype=torch.int64), lambda x: x)
    return Scenario.in_order((Task(part, part, "synthetic"),), CLASSES)
