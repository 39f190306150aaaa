"""One low-dimensional space for all experts of a pool: every input is projected once, whichever experts are queried.

The directions are the principal ones of the stream's first rows, and then fixed. The coordinates are complemented by
the logarithms of a row's length and of the length of its residual, which carry what the directions cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod

import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.experts.networks import Shape

MAX_DIRECTIONS, FEW_INPUTS = 64, 16
"""Up to `FEW_INPUTS` inputs all directions are kept, otherwise half: the rest is noise, captured by the lengths."""
DIRECTION_ROWS = 1024
"""Rows used to find the directions; fewer if another expert is created before (results/choices/sketch.json)."""
TAIL = 6.0
"""Unit of a coordinate in standard deviations; beyond it growth is logarithmic, so no row can move a mean far."""
MAX_COORDINATE = 10.0
"""Upper limit of the magnitude of any coordinate."""
MIN_LENGTH = 1e-3
"""Share of the usual length below which lengths are not distinguished and directions do not count as principal."""
MAX_DISTANCE = 10.0
"""Limit of a first row's distance from the median, in usual distances; a farther row would mask the others."""
SEVERAL_KINDS = log(5.0)
"""Inputs are of several kinds if the logarithms of their spreads have a standard deviation above this."""
COMPARED, CLEARLY = 512, 3.0
"""Rows by whose labels units are compared, and standard deviations from which the difference decides."""
SAME = 1e-5
"""Distance, relative to the lengths, up to which two rows are the same one: several passes bring rows back."""
FIXED = ("centre", "units", "directions", "spread", "length")
NO_OWNER = -1


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
        count = min(directions or min(max(self.inputs // 2, FEW_INPUTS), MAX_DIRECTIONS), self.inputs)
        self.device = device or torch.device("cpu")
        self.scaled = scaled
        """Inputs of several kinds are measured in their own standard deviations."""
        self.centre = torch.zeros(self.inputs, device=self.device)
        self.units = torch.ones(self.inputs, device=self.device)
        """Those standard deviations; 1 for inputs of one kind."""
        self.directions = torch.zeros(self.inputs, count, device=self.device)
        """[inputs, directions] orthogonal; each divided by the unit of its coordinate."""
        self.spread = torch.ones(count, device=self.device)
        """[directions] those units: standard deviations of the first rows along each direction, times `TAIL`."""
        self.length = torch.ones((), device=self.device)
        """Usual distance of the first rows from the centre."""
        rows, columns = torch.tril_indices(self.width, self.width, device=self.device)
        self.tril_rows, self.tril_columns = rows, columns
        """Index pairs of the products used: the lower triangle, row by row."""
        self.tril_flat = rows * self.width + columns
        """Their positions in the flattened square of all products."""
        self.fixed = False
        self.owner = NO_OWNER
        """The expert that the first rows belong to."""
        self.first_rows: list[tuple[Tensor, Tensor]] = []
        """The first rows and their labels, until the directions are fixed."""

    @property
    def width(self) -> int:
        """Numbers per projected row: 1, the lengths, the coordinates. With all directions there is no residual."""
        count = self.directions.shape[1]
        return 2 + count + (count < self.inputs)

    @property
    def has_enough_rows(self) -> bool:
        """Whether there are enough rows to find the directions."""
        return sum(len(x) for x, _ in self.first_rows) >= DIRECTION_ROWS

    def has_rows_of_another(self, expert: int) -> bool:
        """Return whether there are first rows that belong to another expert."""
        return bool(self.first_rows) and self.owner != expert

    def collect(self, x: Tensor, y: Tensor) -> None:
        """Add rows to the first ones."""
        self.first_rows.append((x.flatten(1).detach().clone(), y.clone()))

    @torch.no_grad()
    def fix(self) -> tuple[Tensor, Tensor]:
        """Compute the directions from the collected rows, fix them, and return the other rows.

        Rows vary more along directions fitted to them than new rows do, so half of each class's rows are used for
        fitting, and the other half, with its labels, for learning. If the rows span fewer directions than needed, the
        rest is random.
        """
        x, y = (torch.cat(part) for part in zip(*self.first_rows, strict=True))
        rank_in_class = (y[:, None] == y).tril(-1).sum(1)
        for_learning = rank_in_class % 2 == 0
        for_fitting = torch.ones_like(for_learning) if for_learning.all() else ~for_learning
        rows, others = x[for_fitting].double().cpu(), x[for_learning].double().cpu()
        labels = y[for_fitting].cpu()
        units = units_of(rows, labels) if self.scaled else torch.ones(self.inputs, dtype=torch.float64)
        rows, others = (limited(part / units) for part in (rows, others))
        centre = rows.mean(0)
        centred = rows - centre
        length = centred.square().sum(1).mean().sqrt()
        if not 0 < length < torch.inf:  # all rows are equal, or their distances overflow
            length = centre.square().sum().sqrt().clamp(1e-15, 1e15)
            centred = torch.zeros_like(centred)
        _, spread, directions = torch.linalg.svd(centred, full_matrices=False)
        spread = spread / len(rows) ** 0.5
        count = self.directions.shape[1]
        found = min(int((spread > MIN_LENGTH * length).sum()), count)
        principal = directions[:found].T
        random = torch.from_numpy(Keys(0).rng("directions", self.inputs).normal(size=(self.inputs, count - found)))
        random = torch.linalg.qr(torch.cat([principal, random], dim=1))[0][:, found:]
        usual = torch.full((count - found,), float(length) / self.inputs**0.5, dtype=torch.float64)
        observed = ((others - centre) @ principal).square().mean(0).sqrt().maximum(MIN_LENGTH * length)
        spread = TAIL * torch.cat([observed, usual])
        self.units.copy_(units)
        self.centre.copy_(centre * units)
        self.directions.copy_(torch.cat([principal, random], dim=1) / spread)
        self.spread.copy_(spread)
        self.length.copy_(length)
        self.fixed = True
        self.first_rows = []
        return x[for_learning], y[for_learning]

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        """Return [rows, width], in double precision: 1, the logarithms of lengths, the coordinates."""
        with torch.autocast(x.device.type, enabled=False):  # never in half precision: small differences matter
            centred = x.flatten(1).float() - self.centre
            if self.scaled:
                centred /= self.units
            coordinates = centred @ self.directions
            lengths = [torch.linalg.vector_norm(centred, dim=1, keepdim=True) / self.length]
            if self.directions.shape[1] < self.inputs:
                inside = (coordinates * (self.spread / self.length)).square_().sum(1, keepdim=True)
                lengths.append((lengths[0].square() - inside).clamp_min_(0).sqrt_())
            logarithms = torch.cat(lengths, dim=1).clamp_min_(MIN_LENGTH).log_()
            compressed = torch.copysign(coordinates.abs().log1p_(), coordinates)
        rows = compressed.new_ones(len(x), self.width, dtype=torch.float64)
        rows[:, 1:] = (
            torch.cat([logarithms, compressed], dim=1)
            .nan_to_num_(MAX_COORDINATE)
            .clamp_(-MAX_COORDINATE, MAX_COORDINATE)
        )
        return rows

    @torch.no_grad()
    def position(self, x: Tensor) -> Tensor:
        """Return [rows, directions]: where rows lie along the directions, in units common to all of these.

        >>> space = Space(shape=(2,))
        >>> space.collect(torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]), torch.tensor([0, 1, 2, 3]))
        >>> _ = space.fix()
        >>> torch.cdist(*space.position(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))[:, None]).round().item()
        5.0
        """
        return (x.flatten(1).float() - self.centre) / self.units @ (self.directions * self.spread)

    def products(self, rows: Tensor) -> Tensor:
        """Return [products, rows] of projected rows: in this order whole lines are copied, several times as fast."""
        lines = rows.T.contiguous()
        return lines.index_select(0, self.tril_columns).mul_(lines.index_select(0, self.tril_rows))

    def products_of_square(self, square: Tensor) -> Tensor:
        """Return [..., products] from all products [..., width²], which contain each pair twice."""
        return square.index_select(-1, self.tril_flat)

    def state(self) -> dict[str, Tensor]:
        """Return the state: the projection or, until it is fixed, the first rows."""
        if self.fixed:
            return {name: getattr(self, name) for name in FIXED}
        if not self.first_rows:
            return {}
        x, y = (torch.cat(part) for part in zip(*self.first_rows, strict=True))
        return {"x": x, "y": y, "owner": torch.tensor(self.owner)}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        fixed, first_rows = "directions" in tensors, []
        expected = {name: tuple(getattr(self, name).shape) for name in FIXED} if fixed else {}
        if "x" in tensors:
            rows = len(tensors["x"])
            expected = {"x": (rows, self.inputs), "y": (rows,), "owner": ()}
            first_rows = [(tensors["x"].to(self.device), tensors["y"].to(self.device))]
        for name, shape in expected.items():
            if tuple(tensors[name].shape) != shape:
                raise ValueError(f"projection: got {name} of {tuple(tensors[name].shape)}, expected {shape}")
        self.fixed, self.first_rows = fixed, first_rows
        self.owner = int(tensors["owner"]) if first_rows else NO_OWNER
        for name in FIXED if fixed else ():
            getattr(self, name).copy_(tensors[name])


def units_of(rows: Tensor, labels: Tensor, others: Tensor | None = None) -> Tensor:
    """Return the unit of each input: a robust standard deviation if the inputs are of several kinds, else 1.

    Pixels are of one kind: one that rarely changes should not count as much as one that varies a lot. Where one of the
    two tells the labels apart clearly better, that decides; otherwise the spreads of the inputs do. `others`: rows of
    other experts, which are to be told apart from these, too.

    >>> rows = torch.tensor([[1.0, 2e6, 5.0], [2.0, 1e6, 5.0], [3.0, 1e6, 5.0]]).double()
    >>> one_class = torch.zeros(3)
    >>> units_of(rows, one_class).tolist(), units_of(rows / torch.tensor([1.0, 1e6, 1.0]), one_class).tolist()
    ([0.8..., 577350.2..., 5.0], [1.0, 1.0, 1.0])
    """
    middle = rows.median(0).values
    apart = (rows - middle).abs()
    usual = torch.where(apart > 0, apart, torch.nan).nanmedian(0).values.nan_to_num(0.0)
    spread = apart.minimum(MAX_DISTANCE * usual).square().mean(0).sqrt()
    size = torch.where(middle != 0, middle.abs(), 1.0)
    varies = spread > MIN_LENGTH**2 * size
    common, own = torch.ones_like(spread), torch.where(varies, spread, size)
    if varies.sum() < 2:
        return common
    several = bool(spread[varies].log().std() >= SEVERAL_KINDS)
    if others is not None:
        rows, labels = torch.cat([rows, others]), torch.cat([labels, labels.new_full((len(others),), -1)])
    some = torch.from_numpy(Keys(0).rng("units", len(rows)).permutation(len(rows))[:COMPARED])
    centred, labels = (rows - middle)[some], labels[some]
    difference = nearest_is_alike(centred / own, labels).int() - nearest_is_alike(centred, labels).int()
    gain, scatter = float(difference.sum()), float(difference.abs().sum()) ** 0.5
    if abs(gain) > CLEARLY * scatter:  # as if each row that changes did so by chance
        several = gain > 0
    return own if several else common


def nearest_is_alike(rows: Tensor, labels: Tensor) -> Tensor:
    """Return, for each row, whether the nearest of the others has its label; its copies are left out.

    >>> nearest_is_alike(torch.tensor([[0.0], [0.0], [1.0], [9.0]]), torch.tensor([0, 0, 1, 1])).tolist()
    [False, False, False, True]
    """
    distances = torch.cdist(rows, rows)
    lengths = torch.linalg.vector_norm(rows, dim=1)
    distances.masked_fill_(distances <= SAME * (lengths[:, None] + lengths), torch.inf)
    return labels[distances.argmin(dim=1)] == labels


def limited(rows: Tensor) -> Tensor:
    """Return the rows with their distance from the median limited to `MAX_DISTANCE` times the usual.

    >>> limited(torch.tensor([[1.0], [2.0], [3.0], [4.0], [1e9]]).double()).flatten().tolist()
    [1.0, 2.0, 3.0, 4.0, 13.0]
    """
    rows = rows.nan_to_num()
    middle = rows.median(0).values
    distance = (rows - middle).square().sum(1, keepdim=True).sqrt()
    farthest = MAX_DISTANCE * distance[distance > 0].median() if (distance > 0).any() else torch.inf
    return torch.where(distance > farthest, middle + (rows - middle) * (farthest / distance), rows)
