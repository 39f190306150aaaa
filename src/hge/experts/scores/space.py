"""One low-dimensional space for all experts of a pool: every input is projected once, whoever is asked about it.

The directions are the principal ones of the stream's first rows, then fixed. Beside the coordinates stand the
logarithms of a row's length and of that of its part outside the directions, which tell what the directions cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod

import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.experts.networks import Shape

MOST_DIRECTIONS, FEW_INPUTS = 64, 16
"""Of so few inputs all directions are kept, of more of them half: the last ones are noise, which the lengths hold."""
OPENING = 1024
"""Rows from which the directions are drawn; fewer, if another expert comes before (results/choices/sketch.json)."""
TAIL = 6.0
"""Spreads that make the unit of a coordinate, beyond which it grows like a logarithm: no row can move a mean far."""
FARTHEST = 10.0
"""No coordinate is larger than this, whatever the input."""
SHORTEST = 1e-3
"""Of a row's usual length; shorter ones are not told apart, nor is a direction with less spread a principal one."""
FAR = 10.0
"""Usual distances from the middle. A first row that is farther counts as if it were so far: it would hide others."""
SEVERAL_KINDS = log(5.0)
"""Standard deviation of the logarithms of the inputs' spreads from which on they are of several kinds."""
FIXED = ("centre", "units", "directions", "spread", "length")
NOBODY = -1


class Space:
    """The projection that all experts of a pool share.

    >>> space = Space(shape=(3,))
    >>> space.collect(torch.tensor([[1.0, 0.0, 5.0], [-1.0, 0.0, 5.0]]), torch.tensor([0, 1]))
    >>> _ = space.fix()
    >>> space.project(torch.tensor([[1.0, 0.0, 5.0]])).round(decimals=2).abs().tolist()  # 1, log length, coordinates
    [[1.0, 0.0, 0.15, 0.0, 0.0]]
    """

    def __init__(
        self, shape: Shape, directions: int = 0, device: torch.device | None = None, *, scaled: bool = False
    ) -> None:
        self.inputs = prod(shape)
        count = min(directions or min(max(self.inputs // 2, FEW_INPUTS), MOST_DIRECTIONS), self.inputs)
        self.device = device or torch.device("cpu")
        self.scaled = scaled
        """Every input is measured in its own standard deviation, else all in one unit."""
        self.centre = torch.zeros(self.inputs, device=self.device)
        self.units = torch.ones(self.inputs, device=self.device)
        """The standard deviations of the first rows, if scaled."""
        self.directions = torch.zeros(self.inputs, count, device=self.device)
        """[inputs, directions] orthogonal; each over the unit of its coordinate."""
        self.spread = torch.ones(count, device=self.device)
        """Those units: standard deviations of the first rows along each direction, times `TAIL`."""
        self.length = torch.ones((), device=self.device)
        """Usual distance of the first rows from the centre."""
        later, earlier = torch.tril_indices(self.width, self.width, device=self.device)
        self.later, self.earlier = later, earlier
        """The pairs of numbers of a row whose products are looked at, by the later of the two."""
        self.lower = later * self.width + earlier
        """Their places in a square of all products."""
        self.fixed = False
        self.owner = NOBODY
        """The expert whose rows the first ones are."""
        self.opening: list[tuple[Tensor, Tensor]] = []
        """The first rows and their labels, until the directions are fixed."""

    @property
    def width(self) -> int:
        """Numbers that stand for a row: 1, the lengths, the coordinates. Nothing is left outside all directions."""
        count = self.directions.shape[1]
        return 2 + count + (count < self.inputs)

    @property
    def full(self) -> bool:
        """There are rows enough to draw the directions from."""
        return sum(len(x) for x, _ in self.opening) >= OPENING

    def open_to_others(self, expert: int) -> bool:
        """There are first rows, which are another expert's."""
        return bool(self.opening) and self.owner != expert

    def collect(self, x: Tensor, y: Tensor) -> None:
        """Keep some of the first rows."""
        self.opening.append((x.flatten(1).detach().clone(), y.clone()))

    @torch.no_grad()
    def fix(self) -> tuple[Tensor, Tensor]:
        """Draw the directions from the rows that were collected, keep them for ever, and return the other rows.

        Rows vary more along directions that were drawn from them than any others do, so half of each class's rows are
        for drawing, and the other half, with its labels, for learning. Where the rows show fewer directions than there
        is room for, the rest is drawn at random.
        """
        x, y = (torch.cat(part) for part in zip(*self.opening, strict=True))
        earlier_of_class = (y[:, None] == y).tril(-1).sum(1)
        learned = earlier_of_class % 2 == 0
        drawn = torch.ones_like(learned) if learned.all() else ~learned
        rows, others = x[drawn].double().cpu(), x[learned].double().cpu()
        units = units_of(rows) if self.scaled else torch.ones(self.inputs, dtype=torch.float64)
        rows, others = (limited(part / units) for part in (rows, others))
        centre = rows.mean(0)
        centred = rows - centre
        length = centred.square().sum(1).mean().sqrt()
        if not 0 < length < torch.inf:  # the rows are all the same, or too far apart for numbers
            length = centre.square().sum().sqrt().clamp(1e-15, 1e15)
            centred = torch.zeros_like(centred)
        _, spread, directions = torch.linalg.svd(centred, full_matrices=False)
        spread = spread / len(rows) ** 0.5
        count = self.directions.shape[1]
        found = min(int((spread > SHORTEST * length).sum()), count)
        principal = directions[:found].T
        random = torch.from_numpy(Keys(0).rng("directions", self.inputs).normal(size=(self.inputs, count - found)))
        random = torch.linalg.qr(torch.cat([principal, random], dim=1))[0][:, found:]
        usual = torch.full((count - found,), float(length) / self.inputs**0.5, dtype=torch.float64)
        shown = ((others - centre) @ principal).square().mean(0).sqrt().maximum(SHORTEST * length)
        spread = TAIL * torch.cat([shown, usual])
        self.units.copy_(units)
        self.centre.copy_(centre * units)
        self.directions.copy_(torch.cat([principal, random], dim=1) / spread)
        self.spread.copy_(spread)
        self.length.copy_(length)
        self.fixed = True
        self.opening = []
        return x[learned], y[learned]

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        """Return [rows, width], in double: 1, the logarithms of lengths, the coordinates."""
        with torch.autocast(x.device.type, enabled=False):  # never in half precision: it is about small differences
            centred = x.flatten(1).float() - self.centre
            if self.scaled:
                centred /= self.units
            coordinates = centred @ self.directions
            lengths = [torch.linalg.vector_norm(centred, dim=1, keepdim=True) / self.length]
            if self.directions.shape[1] < self.inputs:
                inside = (coordinates * (self.spread / self.length)).square_().sum(1, keepdim=True)
                lengths.append((lengths[0].square() - inside).clamp_min_(0).sqrt_())
            logarithms = torch.cat(lengths, dim=1).clamp_min_(SHORTEST).log_()
            drawn_in = torch.copysign(coordinates.abs().log1p_(), coordinates)
        rows = drawn_in.new_ones(len(x), self.width, dtype=torch.float64)
        rows[:, 1:] = torch.cat([logarithms, drawn_in], dim=1).nan_to_num_(FARTHEST).clamp_(-FARTHEST, FARTHEST)
        return rows

    def products(self, rows: Tensor) -> Tensor:
        """Return [rows, products] of projected rows."""
        return rows.index_select(1, self.earlier) * rows.index_select(1, self.later)

    def of_square(self, square: Tensor) -> Tensor:
        """Return [..., products] out of all products [..., width²], where each pair stands twice."""
        return square.index_select(-1, self.lower)

    def state(self) -> dict[str, Tensor]:
        """Return what must be kept: the projection or, until it is fixed, the first rows."""
        if self.fixed:
            return {name: getattr(self, name) for name in FIXED}
        if not self.opening:
            return {}
        x, y = (torch.cat(part) for part in zip(*self.opening, strict=True))
        return {"x": x, "y": y, "owner": torch.tensor(self.owner)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Become what `state` returned."""
        fixed, opening = "directions" in tensors, []
        expected = {name: tuple(getattr(self, name).shape) for name in FIXED} if fixed else {}
        if "x" in tensors:
            rows = len(tensors["x"])
            expected = {"x": (rows, self.inputs), "y": (rows,), "owner": ()}
            opening = [(tensors["x"].to(self.device), tensors["y"].to(self.device))]
        for name, shape in expected.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(f"projection: got {name} of {tuple(tensors[name].shape)}, expected {shape}")
        self.fixed, self.opening = fixed, opening
        self.owner = int(tensors["owner"]) if opening else NOBODY
        for name in FIXED if fixed else ():
            getattr(self, name).copy_(tensors[name])


def units_of(rows: Tensor) -> Tensor:
    """Return a unit for each input: its standard deviation, robustly, if the inputs are of several kinds; else 1.

    Pixels are of one kind: a rare one should not count as much as one that varies a lot. Inputs of one kind have
    spreads that differ by less than a factor of 5, as one standard deviation of their logarithms.

    >>> rows = torch.tensor([[1.0, 2e6, 5.0], [2.0, 1e6, 5.0], [3.0, 1e6, 5.0]]).double()
    >>> units_of(rows).tolist(), units_of(rows / torch.tensor([1.0, 1e6, 1.0])).tolist()
    ([0.8..., 577350.2..., 5.0], [1.0, 1.0, 1.0])
    """
    middle = rows.median(0).values
    apart = (rows - middle).abs()
    usual = torch.where(apart > 0, apart, torch.nan).nanmedian(0).values.nan_to_num(0.0)
    spread = apart.minimum(FAR * usual).square().mean(0).sqrt()
    size = torch.where(middle != 0, middle.abs(), 1.0)
    varies = spread > SHORTEST**2 * size
    if varies.sum() < 2 or spread[varies].log().std() < SEVERAL_KINDS:
        return torch.ones_like(spread)
    return torch.where(varies, spread, size)


def limited(rows: Tensor) -> Tensor:
    """Return rows of which none is many times as far from their middle as is usual.

    >>> limited(torch.tensor([[1.0], [2.0], [3.0], [4.0], [1e9]]).double()).flatten().tolist()
    [1.0, 2.0, 3.0, 4.0, 13.0]
    """
    rows = rows.nan_to_num()
    middle = rows.median(0).values
    distance = (rows - middle).square().sum(1, keepdim=True).sqrt()
    farthest = FAR * distance[distance > 0].median() if (distance > 0).any() else torch.inf
    return torch.where(distance > farthest, middle + (rows - middle) * (farthest / distance), rows)
