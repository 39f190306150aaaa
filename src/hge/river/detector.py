"""Section 3.1 as a drift detector of river: the loss bound, the recent buffer and the Z-test, on any losses."""

from __future__ import annotations

from collections import deque
from math import inf, isfinite

import numpy as np
from river.base import DriftDetector

from hge.gating.switch_detection import LossStats, robust_z_score


class LossSwitchDetector(DriftDetector):
    """Detects that a loss, or an error rate, has risen and stays high.

    Values are averaged over batches. A batch above the bound μ + εσ is set aside. When the last `recent` batches were
    all set aside, they are compared with a sample of the batches before (Z-test). If they differ, drift is detected,
    and the detector starts anew; if not, they are taken for the same concept. Falling losses are no drift: the model
    is still learning.

    Parameters
    ----------
    batch
        Number of values that are averaged; 1 if they are losses of batches already.
    epsilon
        ε: how many deviations a loss may be above the mean.
    alpha
        Smoothing factor of the mean and the deviation.
    recent
        Batches in a row of high loss after which they are tested.
    replay
        Batches kept for the test (a random sample of those accepted); there is no alarm before so many.
    threshold
        Z-score above which drift is detected.
    seed
        Seed of the sample.

    Examples
    --------
    >>> import random
    >>> from hge.river import LossSwitchDetector
    >>> rng, detector = random.Random(1), LossSwitchDetector()
    >>> for step in range(4000):
    ...     detector.update(rng.random() < (0.1 if step < 2000 else 0.5))
    ...     if detector.drift_detected:
    ...         print(step)
    2175
    """

    def __init__(
        self,
        batch: int = 64,
        epsilon: float = 2.5,
        alpha: float = 0.9,
        recent: int = 3,
        replay: int = 10,
        threshold: float = 5.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value, least in (("batch", batch, 1), ("recent", recent, 1), ("replay", replay, 2)):
            if value < least:
                raise ValueError(f"{name}: got {value}, expected at least {least}")
        if not 0 < alpha < 1:
            raise ValueError(f"alpha: got {alpha}, expected a number between 0 and 1")
        self.batch, self.epsilon, self.alpha = batch, epsilon, alpha
        self.recent, self.replay, self.threshold, self.seed = recent, replay, threshold, seed
        self._reset()

    def update(self, x: float) -> None:
        """Add a loss; `drift_detected` then says whether this one completed the evidence."""
        if not isfinite(x):
            raise ValueError(f"x: got {x}, expected a finite loss")
        if self.drift_detected:
            self._reset()
        self._values.append(float(x))
        if len(self._values) == self.batch:
            loss = float(np.mean(self._values))
            self._values.clear()
            self._judge(loss)

    @property
    def bound(self) -> float:
        """μ + εσ: the highest loss that is expected; infinite until there are batches to compare with."""
        return self._stats.bound(self.epsilon) if len(self._kept) == self.replay else inf

    def _reset(self) -> None:
        super()._reset()
        self._values: list[float] = []
        self._stats = LossStats(self.alpha)
        self._recent: deque[tuple[float, bool]] = deque()
        self._kept: list[float] = []
        self._random = np.random.default_rng(self.seed)

    def _judge(self, loss: float) -> None:
        high = loss > self.bound
        if not high:
            self._accept(loss)
        self._recent.append((loss, high))
        if len(self._recent) < self.recent:
            return
        if all(high for _, high in self._recent):
            self._review()
        else:
            oldest, was_high = self._recent.popleft()
            if was_high:  # an outlier
                self._accept(oldest)

    def _review(self) -> None:
        losses = [loss for loss, _ in self._recent]
        if robust_z_score(self._kept, losses) > self.threshold:
            self._drift_detected = True
            return
        for loss in losses:
            self._accept(loss)
        self._recent.clear()

    def _accept(self, loss: float) -> None:
        """Count a loss as one of this concept, and keep it with equal chances for all (a reservoir)."""
        self._stats.update(loss)
        if len(self._kept) < self.replay:
            self._kept.append(loss)
        elif (place := int(self._random.integers(self._stats.count))) < self.replay:
            self._kept[place] = loss
