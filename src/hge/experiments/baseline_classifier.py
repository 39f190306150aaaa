"""Any baseline as a scikit-learn classifier: one adapter for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from hge.core.config import BaselineConfig, OptimiserConfig, RunConfig
from hge.core.events import Event
from hge.core.randomness import Keys
from hge.estimator.row_buffer import WaitingRows
from hge.estimator.validation import (
    Labels,
    check_choice,
    check_count,
    check_labels,
    check_rows,
    check_shape,
    check_targets,
    pick_factory,
    read_classes,
    read_seed,
)
from hge.experiments.build import no_task
from hge.experiments.methods import METHODS
from hge.experts.eager import EagerPool
from hge.experts.networks import AUTOENCODERS, NETS, NetFactory, Shape
from hge.experts.optim import resolve_device
from hge.experts.pool_spec import PoolSpec
from hge.gating.tree import FloatArray
from hge.learning.online import OnlineLearner, Setting


class BaselineClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A method of comparison that learns rows in the given order, as a stream."""

    method = ""
    """Name in `METHODS`; set by `classifier`."""
    classes_: Labels
    _learner: OnlineLearner

    def __init__(
        self,
        *,
        net: str | NetFactory = "mlp",
        memory_rows: int = 1000,
        settings: Mapping[str, Any] | None = None,
        batch_size: int = 32,
        epochs: int = 10,
        class_capacity: int = 64,
        optimiser: str = "adam",
        lr: float = 0.003,
        device: str = "auto",
        random_state: int | None = 0,
    ) -> None:
        """Store the parameters; they are validated at the first call of `fit` or `partial_fit`.

        `memory_rows` is what a replay method may store; `settings` are fields of `hge.core.config.BaselineConfig`, such
        as `{"logit_weight": 0.1}` or `{"consolidate": "detected"}`. The others are those of `GatedExperts`.
        """
        self.net = net
        self.memory_rows = memory_rows
        self.settings = settings
        self.batch_size = batch_size
        self.epochs = epochs
        self.class_capacity = class_capacity
        self.optimiser = optimiser
        self.lr = lr
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Reset the model, then learn the rows in order as one stream, `epochs` times, and end it."""
        epochs, before = check_count("epochs", self.epochs), dict(self.__dict__)
        self.__dict__.pop("_learner", None)
        try:
            for _ in range(epochs):
                self.partial_fit(X, y)
            return self.flush()
        except BaseException:
            self.__dict__ = before  # the model as it was
            raise

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn the rows as the next part of the stream; rows that do not fill a batch wait for the next call."""
        size, started = check_count("batch_size", self.batch_size), hasattr(self, "_learner")
        capacity = self._capacity if started else check_count("class_capacity", self.class_capacity)
        x = check_rows(self, X, reset=not started)
        labels = check_targets(y, x)
        listed = None if classes is None else read_classes(classes, capacity)
        if started:
            check_shape(x, self._shape)
            if listed is not None and not np.array_equal(listed, self.classes_):
                raise ValueError("classes: got others than those known so far, expected the same or None")
            known = check_labels(labels, self.classes_, closed=self._closed, capacity=capacity)
        else:
            first = np.unique(labels) if listed is None else listed
            known = check_labels(labels, first, closed=listed is not None, capacity=capacity)
            self._start(X, x.shape[1:], capacity, closed=listed is not None)
        self.classes_ = known
        outputs = [self._outputs.setdefault(label, len(self._outputs)) for label in labels.tolist()]
        self._waiting.add(x, torch.tensor(outputs))
        self._learn_waiting(size, least=size)
        return self

    def boundary(self) -> Self:
        """Tell a method that needs it that the next rows are of another task than the last ones."""
        self._check_started()
        told = getattr(self._learner, "boundary", None)
        if told is None:
            raise ValueError(f"boundary: got a {type(self).__name__}, expected a method that is told boundaries")
        self._learn_waiting(self.batch_size, least=1)
        told()
        return self

    def flush(self) -> Self:
        """Learn the rows that wait, as a smaller batch; a method that needs the end of the stream is trained now."""
        self._check_started()
        self._learn_waiting(self.batch_size, least=1)
        self._learner.end_stream()
        self._ended = True
        return self

    def predict(self, X: Any) -> Labels:
        """Return the most probable label of each row."""
        probabilities = self.predict_proba(X)
        labels: Labels = self.classes_[probabilities.argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> FloatArray:
        """Return [rows, classes_]: probabilities; 0 for classes not seen yet."""
        self._check_started()
        if not self._learner.steps or (METHODS[self.method].needs.end_of_stream and not self._ended):
            raise NotFittedError(f"{type(self).__name__} cannot predict yet: call flush() at the end of the stream.")
        x = check_rows(self, X, reset=False)
        check_shape(x, self._shape)
        answers, rows = self._learner.answers(), torch.from_numpy(x)
        found = answers.probabilities(rows, answers.route(rows, "sample"), len(self._outputs))
        result = np.zeros((len(x), len(self.classes_)))
        result[:, np.searchsorted(self.classes_, np.array(list(self._outputs), dtype=self.classes_.dtype))] = found
        return result

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_learner")

    def __getstate__(self) -> dict[str, Any]:
        """Replace the learner by its snapshot."""
        state: dict[str, Any] = super().__getstate__()
        if "_learner" in state:
            state = state | {"_learner": self._learner.snapshot()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build the learner again, and load its snapshot."""
        super().__setstate__({name: value for name, value in state.items() if name != "_learner"})
        if "_learner" in state:
            self._learner = self._build(self._shape, self._capacity)
            self._learner.restore(state["_learner"])

    def _check_started(self) -> None:
        if not hasattr(self, "_learner"):
            raise NotFittedError(f"This {type(self).__name__} is not fitted yet: call fit or partial_fit first.")

    def _start(self, X: Any, shape: Shape, capacity: int, *, closed: bool) -> None:
        """Build an untrained learner for rows of this shape; nothing is changed if a parameter is wrong."""
        self._seed = read_seed(self.random_state)
        self._learner = self._build(shape, capacity)
        validate_data(self, X, reset=True, skip_check_array=True)  # sets n_features_in_ and feature_names_in_
        self._shape, self._capacity, self._closed, self._ended = shape, capacity, closed, False
        self._outputs: dict[Any, int] = {}
        self._waiting = WaitingRows.none(shape)

    def _build(self, shape: Shape, capacity: int) -> OnlineLearner:
        config, keys = self._config(), Keys(self._seed)
        autoencoder = AUTOENCODERS["mlp" if len(shape) == 1 else "conv"]
        net = pick_factory("net", self.net, NETS)
        spec = PoolSpec(shape, capacity, net, autoencoder, config.score, config.optimiser, "fp32", scaled=True)

        def pool(outputs: int) -> EagerPool:
            return EagerPool(replace(spec, outputs=outputs), keys, torch.device(config.device))

        return METHODS[self.method].build(Setting(config, keys, ignore, spec, pool, no_task))

    def _config(self) -> RunConfig:
        config = RunConfig(
            "a stream",
            self.method,
            batch_size=check_count("batch_size", self.batch_size),
            device=resolve_device(self.device),
            optimiser=OptimiserConfig(check_choice("optimiser", self.optimiser, ("sgd", "adam")), self.lr),
        )
        config = METHODS[self.method].configure(config, 0.5)
        known = [field.name for field in fields(BaselineConfig) if field.name != "memory"]
        for name in self.settings or {}:
            if name not in known:
                raise ValueError(f"settings: got {name!r}, expected some of {', '.join(known)}")
        own = {"memory": check_count("memory_rows", self.memory_rows), **(self.settings or {})}
        return replace(config, baseline=replace(config.baseline, **own))

    def _learn_waiting(self, size: int, least: int) -> None:
        batches = list(self._waiting.leave(size, least))
        self._waiting.let_go()
        if batches:
            self._ended = False
        with torch.inference_mode(False), torch.enable_grad():
            for _ in self._learner.learn_all(batches):
                pass


def ignore(event: Event) -> None:
    """Drop an event: nobody listens."""


def classifier(name: str, method: str) -> type[BaselineClassifier]:
    """Return the classifier of a method, as a class of `hge.baselines`."""
    needs = METHODS[method].needs
    doc = f"{METHODS[method].summary}; is told: {needs.told}; rows of the stream that it stores: {needs.rows}."
    return type(name, (BaselineClassifier,), {"method": method, "__doc__": doc, "__module__": "hge.baselines"})
