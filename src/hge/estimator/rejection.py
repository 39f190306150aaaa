"""Rows unlike anything learned: how unlike they are, which they are, and predictions that leave them out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator

from hge.estimator.fair_lock import in_turn
from hge.estimator.validation import Labels, check_mark, check_share
from hge.gating.tree import FloatArray
from hge.learning.novelty import Novelty


class Rejection(BaseEstimator):  # type: ignore[misc]
    """The methods of a fitted `GatedExperts` that say what it does not know."""

    classes_: Labels
    _novelty: Novelty

    @in_turn
    def predict_unknown(self, X: Any) -> FloatArray:
        """Return the novelty of each row: higher means less like anything learned.

        It is the distance to the nearest remembered rows, compared with the usual distance among those of the same
        expert, in its units; with `joint=True` also the doubt which expert it belongs to. Requires one of `memory_rows`
        and `joint`.
        """
        return self._novelty(self._rows(X))

    @in_turn
    def is_unknown(self, X: Any, false_alarms: float = 0.05) -> npt.NDArray[np.bool_]:
        """Return whether each row is unlike anything learned: its novelty (`predict_unknown`) is unusual.

        `false_alarms` is the share of the remembered rows that would be above the threshold, each compared with the
        others; about as many new rows of the known classes of each task are, too. After a few hundred rows and with
        `joint=True` it is up to twice as many, since the doubt was fitted to the remembered rows, and with
        `memory_rows=0` three times (results/choices/novelty.json).
        """
        share = check_share("false_alarms", false_alarms)
        novelty = self._novelty(self._rows(X))
        unusual: npt.NDArray[np.bool_] = novelty > np.quantile(self._novelty.usual(), 1 - share)
        return unusual

    @in_turn
    def predict_or_reject(self, X: Any, false_alarms: float = 0.05, unknown: Any = None) -> Labels:
        """Return the most probable label of each row, and `unknown` for rows unlike anything learned (`is_unknown`).

        `unknown` is -1 by default or, if labels are texts, "unknown"; it must not be a label.

        >>> from sklearn.datasets import load_digits
        >>> from hge import GatedExperts
        >>> X, y = load_digits(return_X_y=True)
        >>> known = y < 8
        >>> model = GatedExperts().fit(X[known], y[known])
        >>> labels = model.predict_or_reject(X)
        >>> bool((labels[known] == -1).mean() < 0.05), bool((labels[~known] == -1).mean() > 0.8)
        (True, True)
        """
        self._check_started()
        mark = check_mark(unknown, self.classes_)
        labels: Labels = np.where(self.is_unknown(X, false_alarms), mark, self.predict(X))
        return labels
