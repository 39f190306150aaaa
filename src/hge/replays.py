"""The experts' replay as an organisation may see it: as scores (`promotion.Replays`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hge.expert import Expert
from hge.gate import FloatArray
from hge.pool import ExpertPool


@dataclass(frozen=True)
class ScoredReplays:
    """Asks a pool's experts about what each of them remembers, and counts how often."""

    pool: ExpertPool
    experts: Sequence[Expert]
    evaluations: Counter[str] = field(default_factory=Counter)

    def size(self, owner: int) -> int:
        """Return the number of batches in the owner's replay."""
        return len(self.experts[owner].replay.kept)

    def arrived(self, owner: int, place: int) -> int:
        """Return the step at which a batch of the replay had arrived."""
        return self.experts[owner].replay.kept[place].step

    def trained(self, expert: int) -> int:
        """Return the number of batches on which the expert was trained."""
        return self.experts[expert].batches_trained

    @property
    def batch_is_mean_of_rows(self) -> bool:
        """No network of a score has batch statistics."""
        return not self.pool.uses_batch_statistics

    def batch_score(self, expert: int, owner: int, place: int) -> float:
        """Return the expert's score of a batch in the owner's replay, as of one group."""
        self.evaluations["replay"] += 1
        return float(self.pool.batch_scores([expert], self._rows(owner, place))[0])

    def row_scores(self, expert: int, owner: int, place: int) -> FloatArray:
        """Return the expert's scores of the rows of a batch in the owner's replay."""
        self.evaluations["replay"] += 1
        scores: FloatArray = self.pool.scores([expert], self._rows(owner, place))[0]
        return scores

    def _rows(self, owner: int, place: int) -> Tensor:
        return self.experts[owner].replay.kept[place].batch.x
