"""Scores of the experts' replay, as an organisation uses them (`promotion.Replays`, `shortlist.Remembered`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.tree import FloatArray


@dataclass(frozen=True)
class ScoredReplays:
    """Scores each expert's replay by a pool's experts, and counts the evaluations."""

    pool: ExpertPool
    experts: Sequence[Expert]
    evaluations: Counter[str] = field(default_factory=Counter)

    @property
    def batches_trained(self) -> int:
        """Total number of batches that experts were trained on."""
        return sum(expert.batches_trained for expert in self.experts)

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""
        return len(self.experts[owner].replay.kept)

    def batch_score(self, expert: int, owner: int, place: int) -> float:
        """Return the expert's score for a batch in the owner's replay, scored as one group."""
        self.evaluations["replay"] += 1
        return float(self.pool.batch_scores([expert], self._rows(owner, place))[0])

    def sketches(self, experts: int, owner: int, place: int) -> tuple[FloatArray, FloatArray]:
        """Return the first experts' sketch scores of a replay batch: [experts] as one group, [experts, rows] by row."""
        self.evaluations["sketches"] += experts
        rows, ids = self._rows(owner, place), range(experts)
        return self.pool.sketches(ids, rows, together=True), self.pool.sketches(ids, rows, together=False)

    def _rows(self, owner: int, place: int) -> Tensor:
        return self.experts[owner].replay.kept[place].batch.x
