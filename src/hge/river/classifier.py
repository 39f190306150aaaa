"""`GatedExperts` as a classifier of river."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from river.base import MiniBatchClassifier
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from hge.estimator.classifier import GatedExperts
from hge.river.features import FeatureSlots, FloatRows
from hge.river.pickling import pickled

Features = Mapping[Hashable, Any]
Label = bool | int | str


class GatedExpertsClassifier(MiniBatchClassifier):
    """Task-free continual learning: adds an expert when the data change, and keeps the old ones.

    Rows are dictionaries of numbers. Features may appear and vanish: a new one gets one of `features` columns, and one
    that is missing is replaced by the mean of its values so far. Rows are learned in batches of the model's
    `batch_size`; until the first batch is complete, predictions are the frequencies of the labels.

    Parameters
    ----------
    model
        An unfitted `hge.GatedExperts` with the parameters to use; None for the defaults.
    features
        Most different features over the whole stream.

    Attributes
    ----------
    estimator
        The fitted `hge.GatedExperts`: its experts, decisions, plots and reports; `save` is safer than pickle.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from hge.river import GatedExpertsClassifier
    >>> evaluate.progressive_val_score(datasets.Phishing(), GatedExpertsClassifier(), metrics.Accuracy()).get() > 0.85
    True
    """

    def __init__(self, model: GatedExperts | None = None, features: int = 64) -> None:
        self.model = model
        self.features = features
        self.estimator = GatedExperts() if model is None else clone(model)
        self._slots = FeatureSlots(features)
        self._labels: Counter[Label] = Counter()

    @property
    def _multiclass(self) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"estimator": pickled(self.estimator)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state | {"estimator": pickle.loads(state["estimator"])})

    def learn_one(self, x: Features, y: Label) -> None:
        """Learn a row; it waits until a batch is complete."""
        self._learn([x], [y])

    def learn_many(self, X: Any, y: Any) -> None:
        """Learn the rows of a data frame; missing values are missing features."""
        self._learn(list(_records(X)), list(y))

    def predict_proba_one(self, x: Features, **kwargs: Any) -> dict[Label, float]:
        """Return the probability of each label seen so far; nothing before the first."""
        [row] = self._probabilities(self._slots.rows([x]))
        return dict(zip(self._known(), row.tolist(), strict=True))

    def predict_proba_many(self, X: Any) -> Any:
        """Return a data frame of probabilities, one column per label."""
        table = self._probabilities(self._slots.rows(list(_records(X))))
        return type(X)(table, columns=self._known(), index=X.index)

    def _learn(self, rows: Sequence[Features], labels: Sequence[Any]) -> None:
        plain = [label.item() if isinstance(label, np.generic) else label for label in labels]
        slots = deepcopy(self._slots)  # rows that are refused must leave no trace
        self.estimator.partial_fit(slots.learn(rows), np.asarray(plain))
        self._slots = slots
        self._labels.update(plain)

    def _known(self) -> list[Label]:
        """Return the labels seen so far, sorted."""
        known: list[Label] = self.estimator.classes_.tolist() if self._labels else []
        return known

    def _probabilities(self, rows: FloatRows) -> FloatRows:
        try:
            found = self.estimator.predict_proba(rows)
        except NotFittedError:
            found = np.tile([float(self._labels[label]) for label in self._known()], (len(rows), 1))
        total = found.sum(axis=1, keepdims=True)  # a float32 sum is 1 but for the last bits
        return found / np.where(total > 0, total, 1)


def _records(X: Any) -> Iterator[dict[Hashable, Any]]:
    for row in X.to_dict("records"):
        yield {name: value for name, value in row.items() if value == value}
