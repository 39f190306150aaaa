"""Is an expert wrong more often than usual? Evidence of a switch where tasks are hard or labels noisy. No tensors.

The losses of such a task vary so much that those of another stay within the bound, and the expert learns both. The
share of rows that it predicts wrongly varies less, and several batches in a row say more than each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi, sqrt

from hge.gating.switch_detection import LossStats

YOUNG = 8
"""Batches after which an expert's usual share is known, roughly."""
KEPT = 0.98
"""Weight of the past in the usual share. It reaches far back: bursts of errors are usual in many streams."""
MEAN_DISTANCE = sqrt(2 / pi)
"""Mean distance from the mean, in standard deviations, of a normal distribution."""
SUSPICIOUS = 2.0
"""Evidence from which on batches are set aside."""


def usual_mistakes() -> LossStats:
    """Return statistics, of no batch yet, of the shares of rows that an expert predicts wrongly."""
    return LossStats(alpha=KEPT)


def evidence_of_change(usual: LossStats, share: float, guessing: float, rows: int) -> float:
    """Return the log-likelihood ratio of a batch: the task has changed, or it has not.

    `usual`: shares of wrong rows so far; `share`: that of the batch; `guessing`: that of guesses by the frequencies of
    the labels. A changed task is expected half way between the first and the last, and to vary as much as its own.

    >>> usual = LossStats(count=20, mean=0.2, deviation=0.06)
    >>> [round(evidence_of_change(usual, share, guessing=0.5, rows=32), 1) for share in (0.2, 0.35, 0.5)]
    [-2.0, 2.0, 6.0]
    """
    if usual.count < YOUNG:
        return 0.0
    likely = min(max(usual.mean, 1 / rows), 1 - 1 / rows)
    spread = max(usual.deviation / MEAN_DISTANCE, sqrt(likely * (1 - likely) / rows))
    change = (guessing - usual.mean) / 2 / spread
    if change < 1:
        return 0.0  # the expert is hardly better than guessing, so that no batch says anything
    return change * ((share - usual.mean) / spread - change / 2)


@dataclass
class Suspicion:
    """The evidence that the task of the expert in use has changed: its sum over batches, started anew below 0 (CUSUM).

    >>> suspicion = Suspicion()
    >>> for evidence in (-4.0, 3.0):
    ...     suspicion.add(evidence)
    >>> suspicion.level, suspicion.refuses(-2.5), suspicion.refuses(-3.5), suspicion.is_certain(error_rate=0.01)
    (3.0, True, False, False)
    """

    level: float = 0.0

    def refuses(self, evidence: float) -> bool:
        """Return whether a batch is to be set aside: what has become suspicious stays so until it is refuted."""
        return self.level + evidence > (0.0 if self.level > SUSPICIOUS else SUSPICIOUS)

    def add(self, evidence: float) -> None:
        """Add the evidence of a batch."""
        self.level = max(0.0, self.level + evidence)

    def is_certain(self, error_rate: float) -> bool:
        """Return whether so much evidence is less probable than the error rate, if the task has not changed."""
        return error_rate > 0 and self.level >= -log(error_rate)
