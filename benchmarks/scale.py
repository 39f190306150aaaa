"""How the gate scales: experts queried and time per batch, tree against a vectorised flat gate, 10 to 1000 experts.

    python benchmarks/scale.py [--out results/scale.json]

The stream is synthetic. Domains are Gaussian clusters in 64 dimensions, about √K of them; an expert's data are a
Gaussian around a point near its cluster's centre, with a covariance of its own (16 directions, drawn per expert, and
isotropic noise). Every expert's score is the probabilistic PCA of its own data, estimated from 512 rows; batches of
128. The flat gate scores all experts in one batched product; the tree asks through the same code, one expert at a time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from hge.gate import FloatArray
from hge.pivots import build_tree
from hge.record import environment, write_json
from hge.settling import Scoreboard

INPUTS, DIRECTIONS, ROWS, PLACES = 64, 16, 128, 3
SIZES = (10, 30, 100, 300, 1000)


class Domains:
    """Gaussian data in clusters, and the stacked PPCA scores of their experts."""

    def __init__(self, experts: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        clusters = max(2, round(experts**0.5))
        centres = 3 * self._normal(clusters, INPUTS)
        self.centre = centres[torch.arange(experts) % clusters] + 0.7 * self._normal(experts, INPUTS)
        self.mixing = 0.6 * self._normal(experts, DIRECTIONS, INPUTS)
        self.mean, self.basis, self.variance, self.noise = (
            torch.stack(parts) for parts in zip(*(self._fit(e) for e in range(experts)), strict=True)
        )

    def rows(self, expert: int, count: int = ROWS) -> torch.Tensor:
        """Draw rows of an expert's domain."""
        return (
            self.centre[expert]
            + self._normal(count, DIRECTIONS) @ self.mixing[expert]
            + 0.3 * self._normal(count, INPUTS)
        )

    def scores(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return [ids, rows]: the negative log-likelihood, all experts in one batched product."""
        centred = x - self.mean[ids, None]
        inside = (centred @ self.basis[ids]).square()
        outside = centred.square().sum(2) - inside.sum(2)
        volume = self.variance[ids].log().sum(1) + (INPUTS - DIRECTIONS) * self.noise[ids].log()
        return (outside / self.noise[ids, None] + (inside / self.variance[ids, None]).sum(2) + volume[:, None]) / 2

    def _fit(self, expert: int) -> tuple[torch.Tensor, ...]:
        x = self.rows(expert, 512)
        values, vectors = torch.linalg.eigh(torch.cov(x.T))
        noise = values[:-DIRECTIONS].mean()
        return x.mean(0), vectors[:, -DIRECTIONS:], values[-DIRECTIONS:], noise

    def _normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)


def measure(experts: int, seed: int, repeats: int = 200) -> dict[str, float]:
    """Build the tree for so many experts; route fresh batches through it and through the flat gate."""
    domains, everyone = Domains(experts, seed), torch.arange(experts)
    board = filled_board(domains, experts)
    started = time.perf_counter()
    tree = build_tree(range(experts), board.batch, np.random.default_rng(seed))
    build_seconds = time.perf_counter() - started
    settle = board.margins(tree).settle(ROWS)
    owners = np.random.default_rng(seed).integers(experts, size=repeats)
    batches = [domains.rows(int(owner)) for owner in owners]
    flat_ms, tree_ms, flat_right, tree_right, queried = [], [], [], [], []
    for owner, x in zip(owners, batches, strict=True):
        started = time.perf_counter()
        flat = int(domains.scores(everyone, x).mean(1).argmin())
        flat_ms.append(1e3 * (time.perf_counter() - started))

        def score(ids: list[int], groups: object, x: torch.Tensor = x) -> FloatArray:
            return domains.scores(torch.tensor(ids), x).mean(1, keepdim=True).double().numpy()

        started = time.perf_counter()
        routes = tree.search(score, 1, settle)  # type: ignore[arg-type]
        tree_ms.append(1e3 * (time.perf_counter() - started))
        flat_right.append(flat == owner)
        tree_right.append(routes.expert[0] == owner)
        queried.append(int(routes.queried[0]))
    return {
        "experts": experts,
        "queried": float(np.mean(queried)),
        "flat_ms": float(np.median(flat_ms)),
        "tree_ms": float(np.median(tree_ms)),
        "flat_right": 100 * float(np.mean(flat_right)),
        "tree_right": 100 * float(np.mean(tree_right)),
        "build_seconds": build_seconds,
    }


def filled_board(domains: Domains, experts: int) -> Scoreboard:
    """Return the scoreboard of all experts on everybody's remembered batches, filled owner by owner."""
    board = Scoreboard(None, PLACES)  # type: ignore[arg-type]
    board.batch = np.empty((experts, experts, PLACES))
    board.low = np.empty((experts, experts, PLACES))
    board.batch_rows = ROWS
    for owner in range(experts):
        for place in range(PLACES):
            rows = domains.scores(torch.arange(experts), domains.rows(owner)).double().numpy()
            board.batch[:, owner, place] = rows.mean(axis=1)
            board.low[:, owner, place] = np.where(rows[owner] < rows, rows, np.inf).min(axis=1)
            board.own_rows[owner, place] = 0, rows[owner]
    return board


def main() -> None:
    """Measure all sizes, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/scale.json"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("experts  queried  flat ms  tree ms  right, flat  right, tree  build s")
    rows = []
    for experts in SIZES:
        row = measure(experts, options.seed)
        rows.append(row)
        print(
            f"{experts:7d}  {row['queried']:7.1f}  {row['flat_ms']:7.2f}  {row['tree_ms']:7.2f}  "
            f"{row['flat_right']:11.1f}  {row['tree_right']:11.1f}  {row['build_seconds']:7.2f}",
            flush=True,
        )
    protocol = {"seed": options.seed, "inputs": INPUTS, "directions": DIRECTIONS, "batch_size": ROWS} | environment()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(options.out, {"rows": rows, "protocol": protocol})


if __name__ == "__main__":
    main()
