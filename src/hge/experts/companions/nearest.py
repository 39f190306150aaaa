"""Rows that an expert was trained on, with their labels, and class probabilities from the nearest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hge.experts.companions.class_places import ClassPlaces
from hge.experts.scores.space import units_of

FloatRows = npt.NDArray[np.float32]
FloatArray = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

NEIGHBOURS = 5
CLOSE = 0.1
"""Distance, relative to the mean distance of the neighbours, at which a neighbour's weight stops growing."""
ROWS_FOR_SCALE = 128
"""Rows from which the middle and the units of the inputs are determined, once."""
FARTHEST = 1e15
"""Limit of the inputs, in units of the scale, so that squares are finite."""
ENOUGH = 50
"""Rows from which on inputs that were the same in all of them count as constant."""


class LabelledRows:
    """Rows with labels, and class probabilities from the nearest of them.

    >>> rows = LabelledRows(np.array([[0.0], [0.1], [5.0]], np.float32), np.array([0, 0, 1]))
    >>> int(rows.probabilities(np.array([[4.9]], np.float32), classes=2).argmax())
    1
    """

    def __init__(self, x: FloatRows, y: Labels, scale: FloatRows | None = None) -> None:
        self.x, self.y, self.scale = x, y, scale
        """[2, inputs] The scale is what is subtracted from inputs, and what they are then multiplied by: units of their
        own if inputs differ in kind. Without one, it is determined from the rows."""
        self._measured: tuple[FloatRows, FloatRows] | None = None
        """The scale in use, and the rows in its units with the sums of their squares."""

    def __len__(self) -> int:
        return len(self.y)

    def probabilities(self, x: FloatRows, classes: int, places: Labels | None = None) -> FloatArray:
        """Return [rows, classes]: the shares of the classes among the nearest rows, the nearer ones counting more.

        `places`: where these rows are among those remembered; each is left out for itself.
        """
        if self._measured is None:
            scale = self.usual_scale() if self.scale is None else self.scale
            self._measured = scale, measured(self.x, scale)
        scale, known = self._measured
        rows = measured(x, scale)
        squares = rows[:, -1:].copy()
        rows[:, :-1] *= -2
        rows[:, -1] = 1
        products, others = rows @ known.T, len(self)
        if places is not None:
            products[np.arange(len(x)), places], others = np.inf, others - 1
        nearest, apart = _smallest(products, min(NEIGHBOURS, others))
        distance = np.sqrt(np.maximum(apart + squares, 0.0), dtype=np.float64)
        weight = 1 / (distance / np.maximum(distance.mean(axis=1, keepdims=True), 1e-30) + CLOSE)
        votes = np.zeros((len(x), classes))
        np.add.at(votes, (np.arange(len(x))[:, None], self.y[nearest]), weight)
        shares: FloatArray = votes / votes.sum(axis=1, keepdims=True)
        return shares

    def usual_scale(self, others: FloatRows | None = None) -> FloatRows:
        """Return the scale of these rows: their medians, and the units of their inputs; `others`: rows of others."""
        rows = torch.from_numpy(self.x).double()  # distances of rows far from 0 would be lost to rounding
        beside = None if others is None else torch.from_numpy(others).double()
        units = units_of(rows, torch.from_numpy(self.y), beside)
        scale: FloatRows = torch.stack([rows.median(0).values, 1 / units]).float().numpy()
        return scale


class NearestRows(LabelledRows):
    """A memory of rows of each class: its latest, and a sample of those before them (`ClassPlaces`).

    Their scale is determined once, when there are enough rows.

    Classes share the capacity equally, so that one that no longer comes is not forgotten for the others.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(np.empty((0, 0), np.float32), np.empty(0, np.int64))
        self.capacity = capacity
        self.arrival: Labels = np.empty(0, np.int64)
        """[rows] The row that came first has the lowest number."""
        self._places: list[ClassPlaces] = []
        """Of each class: where its rows are."""
        self._constant: tuple[npt.NDArray[np.bool_], FloatRows] | None = None
        """Which inputs are the same in all rows, and their values, until other rows come."""

    def add(self, x: FloatRows, y: Labels, others: FloatRows | None = None) -> None:
        """Remember flat rows; beyond the capacity, each replaces an older row of the most frequent class.

        `others`: rows of other experts, if there is no scale yet.
        """
        if not len(self):
            self.x = np.empty((0, x.shape[1]), np.float32)
        self._constant = None
        room = self.capacity - len(self)
        if room > 0:
            self._append(x[:room], y[:room])
            x, y = x[room:], y[room:]
        if len(y):
            self._replace(x, y)
        if self.scale is None and len(self) >= ROWS_FOR_SCALE:
            self.scale, self._measured = self.usual_scale(others), None

    def contradictions(self, x: FloatRows) -> FloatArray:
        """Return [rows]: how much speaks against rows that differ in inputs which were always the same.

        By the rule of succession, what was the same n times changes with probability 1 / (n + 2).

        >>> memory = NearestRows(100)
        >>> memory.add(np.array([[7.0, n] for n in range(98)], np.float32), np.zeros(98, np.int64))
        >>> memory.contradictions(np.array([[7.0, -1.0], [8.0, 5.0]], np.float32)).round(2).tolist()
        [0.0, 4.61]
        """
        if len(self) < ENOUGH:
            return np.zeros(len(x))
        if self._constant is None:
            self._constant = (self.x == self.x[0]).all(axis=0), self.x[0]
        constant, value = self._constant
        differs: FloatArray = (x[:, constant] != value[constant]).sum(axis=1) * np.log(len(self) + 2)
        return differs

    def state(self) -> dict[str, Tensor]:
        """Return the rows, their labels and order, and the scale."""
        found = {name: torch.from_numpy(getattr(self, name).copy()) for name in ("x", "y", "arrival")}
        return found if self.scale is None else found | {"scale": torch.from_numpy(self.scale.copy())}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.x, self.y, self.arrival = (tensors[name].numpy().copy() for name in ("x", "y", "arrival"))
        self.scale = tensors["scale"].numpy().copy() if "scale" in tensors else None
        self._places, self._measured, self._constant = [], None, None
        for place in self.arrival.argsort().tolist():
            self._places_of(int(self.y[place])).add(place, int(self.arrival[place]))

    def _append(self, x: FloatRows, y: Labels) -> None:
        arrival = self._next_arrival
        for number, label in enumerate(y.tolist()):
            self._places_of(label).add(len(self) + number, arrival + number)
        self.arrival = np.concatenate([self.arrival, arrival + np.arange(len(y))])
        self.x, self.y = np.concatenate([self.x, x]), np.concatenate([self.y, y])
        self._measured = None

    def _replace(self, x: FloatRows, y: Labels) -> None:
        places, arrival = [], self._next_arrival
        self._places_of(int(y.max()))
        sizes = [len(own) for own in self._places]
        most = max(sizes)
        for number, label in enumerate(y.tolist()):
            crowded = label  # with the new row, its class may be the most frequent one
            if sizes[label] < most:
                crowded = sizes.index(most)
                sizes[crowded] -= 1
                sizes[label] += 1
                most = max(sizes)
            places.append(self._places[crowded].leave())
            self._places[label].add(places[-1], arrival + number)
        self.arrival[places] = arrival + np.arange(len(y))
        self.x[places], self.y[places] = x, y
        if self.scale is None:
            self._measured = None
        elif self._measured is not None:
            self._measured[1][places] = measured(x, self.scale)

    def _places_of(self, label: int) -> ClassPlaces:
        self._places += (ClassPlaces() for _ in range(label + 1 - len(self._places)))
        return self._places[label]

    @property
    def _next_arrival(self) -> int:
        return int(self.arrival.max(initial=-1)) + 1


def measured(x: FloatRows, scale: FloatRows) -> FloatRows:
    """Return [rows, inputs + 1]: the rows in the units of a scale, and the sum of the squares of each."""
    rows = np.empty((len(x), x.shape[1] + 1), np.float32)
    inside = rows[:, :-1]
    with np.errstate(over="ignore"):
        np.multiply(np.subtract(x, scale[0], out=inside), scale[1], out=inside)
    np.clip(inside, -FARTHEST, FARTHEST, out=inside)
    np.einsum("ij,ij->i", inside, inside, out=rows[:, -1])
    return rows


def _smallest(values: FloatRows, count: int) -> tuple[Labels, FloatRows]:
    """Return [rows, count]: the places of the smallest values of each row, and these values; changes `values`."""
    rows, places = np.arange(len(values)), np.empty((len(values), count), np.int64)
    found = np.empty((len(values), count), np.float32)
    for number in range(count):  # for a few, faster than a partition
        places[:, number] = place = values.argmin(axis=1)
        found[:, number] = values[rows, place]
        values[rows, place] = np.inf
    return places, found


def common_scale(memories: Sequence[NearestRows]) -> FloatRows | None:
    """Return a scale for the rows of several memories together; None if none of them has one yet."""
    scales = [memory.scale for memory in memories if memory.scale is not None]
    if not scales:
        return None
    middles, factors = np.stack(scales, axis=1).astype(np.float64)
    own = factors[(factors != 1).any(axis=1)]  # the other memories have common units, and so say nothing of spreads
    if not len(own):
        return np.stack([middles.mean(axis=0), factors[0]]).astype(np.float32)
    spread = np.sqrt((1 / own**2).mean(axis=0) + middles.var(axis=0))
    return np.stack([middles.mean(axis=0), 1 / spread]).astype(np.float32)
