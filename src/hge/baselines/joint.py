"""Joint training: keep every row, and train on all of them, shuffled, when the stream ends: the bound for one network.

A row that recurs, as in several epochs, is kept once. The network is trained for as many steps as the stream had.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hge.baselines.network import fit
from hge.baselines.rule import NetworkRule, RuleLearner
from hge.core.types import Batch
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    rule = Joint(setting)
    return RuleLearner(rule, setting, at_end=rule.fit)


class Joint(NetworkRule):
    """All rows, and a network that is trained on them at the end."""

    def __init__(self, setting: Setting) -> None:
        self.batch_size = setting.config.batch_size
        self.rows = DistinctRows(setting.device)
        super().__init__(setting, rows=self.rows)

    def learn(self, batch: Batch, step: int) -> float:
        """Keep the batch; there is no loss yet."""
        self.rows.add(batch)
        return 0.0

    def fit(self) -> None:
        """Train the network on all rows."""
        x, y = self.rows.x, self.rows.y
        fit(self.network, torch.stack(x), torch.tensor(y, device=x[0].device), self.batch_size, self.rows.batches)


class DistinctRows:
    """Every different row with its label.

    >>> rows = DistinctRows(torch.device("cpu"))
    >>> for _ in range(2):
    ...     rows.add(Batch(torch.tensor([[1.0], [2.0]]), torch.tensor([0, 1])))
    >>> rows.rows_kept, rows.batches
    (2, 2)
    """

    parameters = 0

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.batches = 0
        self.x: list[Tensor] = []
        self.y: list[int] = []
        self._known: set[int] = set()

    @property
    def rows_kept(self) -> int:
        """Number of rows."""
        return len(self.y)

    def add(self, batch: Batch) -> None:
        """Keep the rows that are new."""
        self.batches += 1
        for key, x, y in zip(_keys(batch), batch.x, batch.y.tolist(), strict=True):
            if key not in self._known:
                self._known.add(key)
                self.x.append(x)
                self.y.append(y)

    def state(self) -> dict[str, Tensor]:
        """Return copies of the rows, and the number of batches seen."""
        found = {"batches": torch.tensor(self.batches)}
        return found | ({"x": torch.stack(self.x).cpu(), "y": torch.tensor(self.y)} if self.y else {})

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        if "y" in tensors:
            self.add(Batch(tensors["x"].to(self.device), tensors["y"]))
        self.batches = int(tensors["batches"])


def _keys(batch: Batch) -> list[int]:
    """Return a 64-bit hash of each row and its label."""
    rows = batch.x.flatten(1).contiguous().cpu().numpy()
    return [hash((row.tobytes(), label)) for row, label in zip(rows, batch.y.tolist(), strict=True)]
