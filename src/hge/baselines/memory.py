"""What replay methods share: a reservoir of rows, and the set of classes seen so far."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.experts.pool_spec import copy_tensors

CPU = torch.device("cpu")


class Reservoir:
    """Rows of the stream, each kept with the same probability (Vitter's algorithm R), and what is stored beside them.

    Over several epochs the same row is offered again, and may be kept more than once.

    >>> memory = Reservoir(capacity=2, keys=Keys(seed=0))
    >>> for step in range(100):
    ...     memory.add(step, x=torch.full((3, 1), float(step)), y=torch.zeros(3))
    >>> memory.rows_kept, memory.seen, memory.draw(5, step=7)["y"].tolist()
    (2, 300, [0.0, 0.0])
    """

    parameters = 0

    def __init__(self, capacity: int, keys: Keys, device: torch.device = CPU) -> None:
        self.capacity, self.keys, self.device = capacity, keys, device
        self.seen = 0
        self.columns: dict[str, Tensor] = {}
        """Name -> the kept rows of that column, in no particular order."""

    @property
    def rows_kept(self) -> int:
        """Number of rows in it."""
        return min(self.seen, self.capacity)

    def add(self, step: int, **columns: Tensor) -> None:
        """Offer rows: the n-th of the stream, counted from 0, goes to place n, or to a random one of 0 to n if full."""
        rows = len(next(iter(columns.values())))
        numbers = range(self.seen, self.seen + rows)
        drawn = self.keys.rng("replay", step).integers(0, [n + 1 for n in numbers])
        places = [n if n < self.capacity else int(place) for n, place in zip(numbers, drawn, strict=True)]
        last = {place: row for row, place in enumerate(places) if place < self.capacity}
        self.seen += rows
        for name, values in columns.items():
            if name not in self.columns:
                self.columns[name] = values.new_zeros((0, *values.shape[1:]))
            grown = self.rows_kept - len(self.columns[name])
            self.columns[name] = torch.cat([self.columns[name], values.new_zeros((grown, *values.shape[1:]))])
            self.columns[name][list(last)] = values[list(last.values())]

    def draw(self, rows: int, step: int, number: int = 0) -> dict[str, Tensor]:
        """Return different rows, uniformly, or all if there are fewer; `number` distinguishes the draws of a step."""
        kept = self.rows_kept
        chosen = self.keys.rng("rehearsal", step, number).choice(kept, min(rows, kept), replace=False)
        return {name: values[torch.from_numpy(chosen).to(values.device)] for name, values in self.columns.items()}

    def state(self) -> dict[str, Tensor]:
        """Return copies of the rows, and the number of rows seen."""
        rows = {f"rows.{name}": values for name, values in self.columns.items()}
        return copy_tensors({"seen": torch.tensor(self.seen)} | rows, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.seen = int(tensors["seen"])
        rows = {name.removeprefix("rows."): t for name, t in tensors.items() if name != "seen"}
        self.columns = {name: t.to(self.device, copy=True) for name, t in rows.items()}


class SeenClasses:
    """Which classes have been in the stream."""

    rows_kept = 0
    parameters = 0

    def __init__(self, outputs: int, device: torch.device) -> None:
        self.seen = torch.zeros(outputs, dtype=torch.bool, device=device)

    def add(self, y: Tensor) -> None:
        """Add the classes of a batch."""
        self.seen[y] = True

    def state(self) -> dict[str, Tensor]:
        """Return a copy of the mask."""
        return copy_tensors({"seen": self.seen}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.seen.copy_(tensors["seen"])
