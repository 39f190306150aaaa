"""Section 3.1: a persistently high loss means either another task or unstable training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from statistics import fmean, median

from hge.core.config import LearnerConfig
from hge.core.events import Emit, LossReviewed
from hge.core.types import Batch
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.mistakes import Suspicion
from hge.gating.switch_detection import RecentEntry, robust_z_score, z_score
from hge.learning.stream_memory import StreamMemory


@dataclass(frozen=True)
class Review:
    """The Z-test of an expert's losses on R against those on its replay; with a memory, also its wrong predictions."""

    pool: ExpertPool
    config: LearnerConfig
    emit: Emit
    memory: StreamMemory | None = None

    def if_same_task(
        self, expert: Expert, entries: Sequence[RecentEntry[Batch]], step: int, *, robust: bool
    ) -> Expert | None:
        """Return the expert if what it says of R does not differ from what it says of its own, else None."""
        replay, recent = (
            [self.pool.loss(expert.id, item.batch, item.step) for item in items]
            for items in (expert.replay.kept, entries)
        )
        test, middle = (robust_z_score, median) if robust else (z_score, fmean)
        z, threshold = test(replay, recent), self.config.review_threshold
        # The replay is empty if no batch could be trained on so far; that is no evidence of another task.
        usual = middle(replay) if replay else nan
        mistakes = Suspicion()
        if self.memory is not None:
            mistakes.add(sum(self.memory.evidence_of_change(expert, entry.batch) for entry in entries))
        new_task = z > threshold or mistakes.is_certain(self.config.error_rate)
        self.emit(LossReviewed(step, expert.id, z, threshold, usual, fmean(recent), new_task, mistakes.level))
        return None if new_task else expert


def front(accepted: Sequence[bool]) -> int:
    """Return the length of the longest prefix of R of which the expert accepts more than half.

    The expert's own batches precede those of a possible new task, where single batches may be accepted by chance.

    >>> front([True, True, False, True, False, False, False, False, True])
    5
    >>> front([True, False]), front([False, True])
    (1, 0)
    """
    return max((n for n in range(1, len(accepted) + 1) if 2 * sum(accepted[:n]) > n), default=0)
