"""`GatedExperts`: a scikit-learn classifier that learns continually from a stream."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import validate_data

from hge.core.events import BatchSkipped
from hge.core.randomness import Keys
from hge.estimator.advice import Advice
from hge.estimator.build import assemble, check_any_time
from hge.estimator.fair_lock import in_turn, learning_in_turn, lock_of
from hge.estimator.feature_rows import FeatureMap, SeenRows
from hge.estimator.inspection import Inspection
from hge.estimator.memory_need import TooLargeError
from hge.estimator.parameters import Parameters
from hge.estimator.persistence import folder_named, read_model, save_model, saved_feature_map, waiting_rows
from hge.estimator.rejection import Rejection
from hge.estimator.row_buffer import WaitingRows
from hge.estimator.stream_record import StreamRecord
from hge.estimator.validation import (
    FloatRows,
    Labels,
    check_choice,
    check_count,
    check_labels,
    check_rows,
    check_shape,
    check_targets,
    pairs_of,
    read_classes,
    read_seed,
)
from hge.experts.extractor import Pause, no_pause
from hge.experts.networks import Shape
from hge.gating.tree import FloatArray, IntArray
from hge.learning.checkpoint import CheckpointError
from hge.learning.novelty import Novelty
from hge.learning.online import Routing
from hge.learning.routing import Answerer
from hge.learning.state import Snapshot, restore

Rows = Any
"""Anything scikit-learn accepts as X or y, or a torch tensor."""

BATCHES_PER_TURN = 16
"""Number of batches after which `partial_fit` yields its lock to waiting threads, between two batches."""


class GatedExperts(ClassifierMixin, Inspection, Rejection, Parameters):  # type: ignore[misc]
    """Task-free continual learning classifier: adds an expert when the data change, and keeps the old ones.

    Rows are learned in the given order, as a stream; task boundaries are not given. A gate selects the expert that
    predicts a row. Parameters changed after the first rows take effect at the next `fit`, except `routing`,
    `mixture`, `batch_size`, `on_bad_batch` and `on_event`, which take effect immediately. A model may be shared
    between threads: calls are served in turn, always between two batches.

    All parameters are keyword-only and have defaults; they are documented in `__init__`.

    Attributes
    ----------
    classes_ : the labels known so far, sorted; the columns of `predict_proba`.
    experts_, n_experts_ : summaries of the experts, promoted and on probation, and their number.
    tree_ : the gate's tree of promoted experts.
    events_ : the last 1000 decisions, oldest first.
    history_ : loss, bound and expert of the batches so far, in at most 1024 points; `plot` draws them.
    rows_seen_, n_switches_ : number of rows received, and of changes of the expert in use.
    learner_ : the learner that `partial_fit` drives; use it to inspect the experts, their replay and networks.
    rows_waiting_ : number of rows that wait for a full batch.
    batches_skipped_ : number of calls of `partial_fit` that were skipped (`on_bad_batch="skip"`).
    rows_limited_ : number of rows so far that were far beyond the others, and were clipped in training.
    n_features_in_ : number of features per row.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from hge import GatedExperts
    >>> X, y = load_digits(return_X_y=True)
    >>> low = y < 5  # first the small digits, then the large ones: two tasks
    >>> model = GatedExperts().partial_fit(X[low], y[low]).partial_fit(X[~low], y[~low])
    >>> model.n_experts_, bool(model.score(X, y) > 0.95)
    (2, True)
    """

    __metadata_request__partial_fit = {"sample_weight": UNUSED}  # noqa: RUF012 - scikit-learn's form
    classes_: Labels
    input_shape_: Shape
    _feature_map: FeatureMap
    _waiting: WaitingRows
    _outputs: dict[Any, int]
    _fitted_with: dict[str, Any]
    """The parameters of the learner; those of the estimator may have been changed since."""

    @learning_in_turn
    def fit(self, X: Rows, y: Rows) -> GatedExperts:
        """Reset the model, then learn the rows in order as one stream, `epochs` times."""
        feature_map = FeatureMap(self.features, self.device)
        x = check_rows(self, X, reset=True)
        labels = check_targets(y, x)
        epochs = check_count("epochs", self.epochs)
        capacity = check_count("class_capacity", self.class_capacity)
        classes = check_labels(labels, np.unique(labels), closed=False, capacity=capacity)
        seen = feature_map(X, x, lock_of(self).let_others_in)
        self._start(X, seen, classes, closed=False, events=StreamRecord())
        for _ in range(epochs):
            self._learn(seen.x, labels)
        self.flush()
        return self._advise(seen.x)

    @learning_in_turn
    def partial_fit(self, X: Rows, y: Rows, classes: Rows = None, sample_weight: None = None) -> GatedExperts:
        """Learn the rows as the next part of the stream.

        `classes`, the labels of the whole stream, is optional: it fixes the columns of `predict_proba`, and any other
        label is an error. It has no effect on what is learned. `sample_weight` is not supported.
        """
        if sample_weight is not None:
            raise ValueError("sample_weight: got weights, expected None; every row of the stream counts once")
        check_any_time(self)
        capacity = self._capacity if self._started else check_count("class_capacity", self.class_capacity)
        listed = None if classes is None else read_classes(classes, capacity)
        feature_map = self._current_feature_map()
        if self._started and listed is not None and not np.array_equal(listed, self.classes_):
            raise ValueError("classes: got others than those known so far, expected the same or None")
        try:
            seen, labels, known = self._read(X, y, listed, capacity, feature_map, lock_of(self).let_others_in)
        except (ValueError, TypeError) as error:
            return self._skip(error)
        if not self._started:
            try:
                self._start(X, seen, known, closed=listed is not None, events=self._events_so_far())
            except TooLargeError as error:
                return self._skip(error)
        self.classes_ = known
        self._learn(seen.x, labels)
        return self._advise(seen.x)

    @learning_in_turn
    def check_batch(self, X: Rows, y: Rows) -> None:
        """Raise the ValueError or TypeError that `partial_fit` would raise for these rows; change nothing."""
        check_any_time(self)
        capacity = self._capacity if self._started else check_count("class_capacity", self.class_capacity)
        seen, _, _ = self._read(X, y, None, capacity, self._current_feature_map(), lock_of(self).let_others_in)
        if not self._started:
            assemble(self, seen.x, capacity, Keys(0), lambda event: None)

    def fit_stream(self, stream: Iterable[tuple[Rows, Rows]]) -> GatedExperts:
        """Call `partial_fit` on each (X, y) of an iterable: a generator, a torch `DataLoader`, a message queue."""
        for X, y in pairs_of(stream):
            self.partial_fit(X, y)
        return self

    @learning_in_turn
    def flush(self) -> GatedExperts:
        """Learn the rows that do not fill a batch yet, as a smaller batch."""
        self._check_started()
        check_any_time(self)
        self._learn_waiting(least=1)
        self._learner.end_stream()
        self._events.deliver(self.on_event)
        return self

    @in_turn
    def save(self, path: str | Path) -> None:
        """Save the model to a folder, for `load`; the previously saved state is kept as well.

        The folder may hold other files, but none that `save` would have to replace. Parameters changed since the
        model was fitted are kept for the next `fit`.
        """
        self._check_started()
        check_any_time(self)  # such a model could not be loaded
        save_model(self, folder_named(path))

    @classmethod
    def load(cls, path: str | Path, **changed: Any) -> GatedExperts:
        """Load a model written by `save`; `partial_fit` continues exactly where it stopped.

        `changed` replaces saved parameters. Custom networks and classifiers are saved as weights only: pass them again
        (`net=…`, `autoencoder=…`, `expert=…`). An extractor of your own is not saved, either: pass it again, with the
        same weights (`features=…`). Nor is `on_event`; pass it again, or go without.
        """
        for name in changed:
            if name not in cls._get_param_names():
                raise ValueError(f"{name}: no parameter of {cls.__name__}")
        snapshot, facts = read_model(folder_named(path))
        try:
            for name in facts["factories"]:
                if name not in changed:
                    what = {"expert": "classifier", "features": "extractor"}.get(name, "factory")
                    raise ValueError(f"{name}: got nothing, expected the {what} of the model in {path}")
            model = cls(**facts["parameters"] | changed)
            model._become(snapshot, facts)
            model.set_params(**{name: value for name, value in facts["changed"].items() if name not in changed})
            check_any_time(model)
        except CheckpointError:
            raise
        except Exception as error:  # values of a stranger's file may raise almost any exception
            if isinstance(error, ValueError) and (changed or facts["factories"]):
                raise
            raise CheckpointError(f"{path}: {error!r} is missing or of the wrong kind") from error
        return model

    @in_turn
    def predict(self, X: Rows) -> Labels:
        """Return the most probable label of each row."""
        probabilities = self.predict_proba(X)
        labels: Labels = self.classes_[probabilities.argmax(axis=1)]
        return labels

    @in_turn
    def predict_proba(self, X: Rows) -> FloatArray:
        """Return [rows, classes_]: class probabilities; 0 for classes not seen yet.

        Those of the selected expert; of all experts, weighted by their probabilities, if rows are routed one by one
        by the joint score, and with the default `routing`.
        """
        x = self._rows(X)
        columns = np.searchsorted(self.classes_, np.array(list(self._outputs), dtype=self.classes_.dtype))
        result = np.zeros((len(x), len(self.classes_)))
        if self.mixture:
            result[:, columns] = self._answerer.mixture(x, len(columns))
        elif self.routing == "stream" and self._answerer.weighs_all_experts:
            result[:, columns] = self._answerer.stream_probabilities(x, len(columns))
        else:
            routes = self._answerer.route(x, self.routing)
            result[:, columns] = self._answerer.probabilities(x, routes, len(columns))
        return result

    @in_turn
    def predict_expert(self, X: Rows) -> tuple[IntArray, FloatArray]:
        """Return the selected expert of each row, and the gate's confidence in it (0 to 1)."""
        x = self._rows(X)
        routes = self._answerer.route(x, self.routing)
        confidence = self._answerer.confidence(routes, self.routing)
        return np.broadcast_to(routes.expert, len(x)).copy(), np.broadcast_to(confidence, len(x)).copy()

    def __getstate__(self) -> dict[str, Any]:
        locks = ("_lock", "_learning_lock")
        return {name: value for name, value in super().__getstate__().items() if name not in locks}

    def __sklearn_is_fitted__(self) -> bool:
        return self._started and self._learner.steps > 0

    def _become(self, snapshot: Snapshot, facts: dict[str, Any]) -> None:
        """Restore the state of a saved model."""
        kind, labels = facts["classes"]
        classes, shape = np.array(labels, dtype=np.dtype(kind)), tuple(facts["input_shape"])
        events = StreamRecord.of(facts["record"], snapshot.tensors["history"])
        waiting = waiting_rows(snapshot)
        row = np.zeros((1, *waiting.x.shape[1:]), dtype=np.float32)
        self._build(
            SeenRows(row, shape, saved_feature_map(self, facts)), facts["capacity"], Keys(facts["seed"]), events
        )
        restore(self._learner, snapshot)
        self._advice = Advice(**facts["advice"])
        self._outputs = {label: int(output) for label, output in facts["outputs"]}
        self._closed, self._waiting = facts["closed"], WaitingRows(waiting)
        self.classes_, self.n_features_in_ = classes, facts["features"]
        if facts["feature_names"]:
            self.feature_names_in_ = np.array(facts["feature_names"], dtype=object)

    def _read(
        self, X: Rows, y: Rows, listed: Labels | None, capacity: int, feature_map: FeatureMap, pause: Pause = no_pause
    ) -> tuple[SeenRows, Labels, Labels]:
        """Validate X and y; return what experts see of the rows, the labels and all classes known from now on."""
        x = check_rows(self, X, reset=not self._started)
        labels = check_targets(y, x)
        if self._started:
            check_shape(x, self.input_shape_)
            known, closed = self.classes_, self._closed
        else:
            known, closed = np.unique(labels) if listed is None else listed, listed is not None
        known = check_labels(labels, known, closed=closed, capacity=capacity)
        return self._see(feature_map, X, x, pause), labels, known

    def _current_feature_map(self) -> FeatureMap:
        """Return what makes features of rows: that of the fit or, before the first rows, that of the parameters."""
        return self._feature_map if self._started else FeatureMap(self.features, self.device)

    def _see(self, feature_map: FeatureMap, X: Rows, x: FloatRows, pause: Pause = no_pause) -> SeenRows:
        """Return what experts see of these rows; raise an error if it is not what they have learned."""
        seen = feature_map(X, x, pause)
        if self._started and seen.x.shape[1:] != (learned := self._waiting.rows.x.shape[1:]):
            raise ValueError(f"features: got {seen.x.shape[1]} for each row, expected {learned[0]} as in those learned")
        return seen

    def _skip(self, error: Exception) -> GatedExperts:
        """Skip a bad batch and record the event, or raise the error."""
        if self.on_bad_batch == "raise":
            raise error
        self._events = self._events_so_far()
        self._events(BatchSkipped(self._learner.steps if self._started else 0, str(error).partition("\n")[0]))
        self._events.deliver(self.on_event)
        return self

    def _advise(self, x: FloatRows) -> GatedExperts:
        """Warn of what is new after these rows were learned, and deliver the last events."""
        self._advice.give(x, self._learner, self._events)
        self._events.deliver(self.on_event)
        return self

    def _start(self, X: Rows, seen: SeenRows, classes: Labels, *, closed: bool, events: StreamRecord) -> None:
        """Build an untrained learner for rows of this shape; on failure the old state is unchanged."""
        capacity = check_count("class_capacity", self.class_capacity)
        self._build(seen, capacity, Keys(read_seed(self.random_state)), events)
        validate_data(self, X, reset=True, skip_check_array=True)  # sets n_features_in_ and feature_names_in_
        self._outputs = {}
        self._closed, self._waiting, self.classes_ = closed, WaitingRows.none(seen.x.shape[1:]), classes

    def _build(self, seen: SeenRows, capacity: int, keys: Keys, events: StreamRecord) -> None:
        """Build an untrained learner for rows of this shape, and only then replace the old one."""
        learner = assemble(self, seen.x, capacity, keys, events)
        self._fitted_with = self.get_params(deep=False)
        self._learner, self._answerer, self._events = learner, Answerer(learner), events
        self._novelty = Novelty(self._answerer)
        self._capacity, self.input_shape_, self._advice = capacity, seen.input_shape, Advice()
        self._feature_map = seen.feature_map

    def _learn(self, x: FloatRows, labels: Labels) -> None:
        """Learn all full batches; keep the remaining rows."""
        # By first appearance, so that passing `classes` has no effect on learning.
        outputs = [self._outputs.setdefault(label, len(self._outputs)) for label in labels.tolist()]
        self._waiting.add(x, torch.tensor(outputs))
        self._events.rows += len(x)
        self._learn_waiting(least=self.batch_size)

    def _learn_waiting(self, least: int) -> None:
        """Learn the waiting rows batch by batch, while there are at least `least` of them."""
        while len(self._waiting) >= least:
            batches = self._waiting.leave(self.batch_size, least)
            with torch.inference_mode(False), torch.enable_grad():
                for step in self._learner.learn_all(islice(batches, BATCHES_PER_TURN)):
                    self._events.add(step)
                    self._advice.count(step, self._learner)
            self._events.deliver(self.on_event)
            lock_of(self).let_others_in()
        self._waiting.let_go()

    def _rows(self, X: Rows) -> torch.Tensor:
        """Check that the model can predict these rows; return them as a tensor."""
        self._check_started()
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                f"Nothing has been learned yet: {len(self._waiting)} rows wait for a batch of {self.batch_size}. "
                "Give more rows to partial_fit, or call flush()."
            )
        routing = check_choice("routing", self.routing, get_args(Routing))
        fitted = self._fitted_with
        if self.mixture and not fitted["joint"]:
            raise ValueError("mixture: got True for a model that was fitted with joint=False, expected joint=True")
        if routing == "window" and fitted["gate_score"] == "autoencoder" and not fitted["joint"]:
            raise ValueError("routing: got window with gate_score autoencoder, no likelihood; expected joint, too")
        x = check_rows(self, X, reset=False)
        check_shape(x, self.input_shape_)
        return torch.from_numpy(self._see(self._feature_map, X, x).x)
