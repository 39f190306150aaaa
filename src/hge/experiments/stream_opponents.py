"""The methods that `hge evaluate` compares, as plain objects with `learn(X, y)` and `predict(X)`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import SGDClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier

from hge.core.events import Event, ExpertChanged, ExpertCreated
from hge.estimator.classifier import GatedExperts
from hge.experiments.replay_mlp import ReplayMLP
from hge.experiments.stream_evaluation import Labels, Rows, StreamMethod

WINDOW = 1000
"""Rows in the window of the nearest-neighbour method."""
NEIGHBOURS = 5
SCALED_BY = 0.05
"""Share of the stream whose mean and standard deviation scale the inputs of all methods but `GatedExperts`."""


class GatedExpertsMethod:
    """A `GatedExperts`, and the switches that it finds."""

    def __init__(self, model: GatedExperts) -> None:
        self.model = model
        self.switches: list[dict[str, Any]] = []
        self._last_label: Any = None
        self._last_event: Event | None = None

    def learn(self, X: Rows, y: Labels) -> None:
        """Call `partial_fit`, and record changes of the expert in use."""
        self.model.partial_fit(X, y)
        self._last_label = y[-1]
        self._record()

    def predict(self, X: Rows) -> Labels:
        """Call `predict`; before the first full batch of the model, return the last label."""
        try:
            return self.model.predict(X)
        except NotFittedError:
            return np.full(len(X), self._last_label)

    def finish(self) -> dict[str, Any]:
        """Learn the rows that do not fill a batch; return the number of experts, and the switches."""
        self.model.flush()
        self._record()
        return {"experts": self.model.n_experts_, "switches": self.switches}

    @property
    def rows_kept(self) -> int:
        """Rows in memory."""
        return self.model.learner_.rows_kept

    def _record(self) -> None:
        new = list(takewhile(lambda event: event is not self._last_event, reversed(self.model.events_)))[::-1]
        created = {(event.step, event.expert) for event in new if isinstance(event, ExpertCreated)}
        for event in new:
            if isinstance(event, ExpertChanged):
                learned, is_new = event.step * self.model.batch_size, (event.step, event.expert) in created
                self.switches.append({"learned": learned, "expert": event.expert, "new": is_new})
        self._last_event = new[-1] if new else self._last_event


class NoChange:
    """Predicts the last label of the preceding batch."""

    def learn(self, X: Rows, y: Labels) -> None:
        """Keep the last label."""
        self.last = y[-1]

    def predict(self, X: Rows) -> Labels:
        """Return the last label for every row."""
        return np.full(len(X), self.last)


class MajorityClass:
    """Predicts the most frequent label so far."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()

    def learn(self, X: Rows, y: Labels) -> None:
        """Count the labels."""
        self.counts.update(y.tolist())

    def predict(self, X: Rows) -> Labels:
        """Return the most frequent label for every row."""
        return np.full(len(X), self.counts.most_common(1)[0][0])


class PartialFit:
    """A scikit-learn classifier with `partial_fit`."""

    def __init__(self, model: Any, classes: Labels) -> None:
        self.model, self.classes = model, classes

    def learn(self, X: Rows, y: Labels) -> None:
        """Call `partial_fit`."""
        self.model.partial_fit(X, y, classes=self.classes)

    def predict(self, X: Rows) -> Labels:
        """Call `predict`."""
        labels: Labels = self.model.predict(X)
        return labels


class WindowNeighbours:
    """k nearest neighbours among the last rows."""

    def __init__(self, window: int = WINDOW, neighbours: int = NEIGHBOURS) -> None:
        self.neighbours = neighbours
        self.rows: deque[tuple[Rows, Any]] = deque(maxlen=window)
        self._model: KNeighborsClassifier | None = None

    def learn(self, X: Rows, y: Labels) -> None:
        """Add the rows to the window."""
        self.rows.extend(zip(X, y.tolist(), strict=True))
        self._model = None

    def predict(self, X: Rows) -> Labels:
        """Return the most frequent label among the nearest rows of the window."""
        if self._model is None:
            rows, labels = zip(*self.rows, strict=True)
            model = KNeighborsClassifier(min(self.neighbours, len(rows)))
            self._model = model.fit(np.stack(rows), np.array(labels))
        found: Labels = self._model.predict(X)
        return found

    @property
    def rows_kept(self) -> int:
        """Rows in the window."""
        return len(self.rows)


class RiverMethod:
    """A river classifier, row by row. The rows of a batch are predicted before the first of them is learned."""

    def __init__(self, model: Any, classes: Labels) -> None:
        self.model, self.classes = model, classes

    def learn(self, X: Rows, y: Labels) -> None:
        """Call `learn_one` on each row."""
        for row, label in zip(X.tolist(), y.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(row)), label)

    def predict(self, X: Rows) -> Labels:
        """Call `predict_one` on each row; without an answer, return the first class."""
        labels = [self.model.predict_one(dict(enumerate(row))) for row in X.tolist()]
        return np.array([self.classes[0] if label is None else label for label in labels])


class Standardised:
    """A method whose inputs are standardised by the mean and standard deviation of the given rows."""

    def __init__(self, method: StreamMethod, rows: Rows) -> None:
        self.method, self.mean = method, rows.mean(axis=0)
        deviation = rows.std(axis=0)
        self.deviation = np.where(deviation > 0, deviation, 1.0)

    def learn(self, X: Rows, y: Labels) -> None:
        """Learn the standardised rows."""
        self.method.learn(self._scaled(X), y)

    def predict(self, X: Rows) -> Labels:
        """Predict the standardised rows."""
        return self.method.predict(self._scaled(X))

    @property
    def rows_kept(self) -> int:
        """Rows that the method keeps in memory."""
        return rows_kept(self.method)

    def _scaled(self, X: Rows) -> Rows:
        scaled: npt.NDArray[np.floating[Any]] = (X - self.mean) / self.deviation
        return scaled


@dataclass(frozen=True)
class Setting:
    """What a method may be built from."""

    features: int
    classes: Labels
    seed: int


@dataclass(frozen=True)
class Entry:
    """A method that can be compared."""

    about: str
    build: Callable[[Setting], StreamMethod]
    raw: bool = False
    """Whether it receives the inputs in their own units."""
    needs: str = ""
    """Package that must be installed."""


def _gated(setting: Setting) -> StreamMethod:
    model = GatedExperts(random_state=setting.seed)
    return GatedExpertsMethod(model.set_params(class_capacity=max(model.class_capacity, len(setting.classes))))


def _forest(setting: Setting) -> StreamMethod:
    from river.forest import ARFClassifier

    return RiverMethod(ARFClassifier(seed=setting.seed), setting.classes)


def _tree(setting: Setting) -> StreamMethod:
    from river.tree import HoeffdingTreeClassifier

    return RiverMethod(HoeffdingTreeClassifier(), setting.classes)


STREAM_METHODS = {
    "GatedExperts": Entry("hge, default parameters", _gated, raw=True),
    "no-change": Entry("the last label of the preceding batch", lambda _: NoChange()),
    "majority": Entry("the most frequent label so far", lambda _: MajorityClass()),
    "SGDClassifier": Entry(
        "scikit-learn, logistic loss",
        lambda s: PartialFit(SGDClassifier(loss="log_loss", random_state=s.seed), s.classes),
    ),
    "GaussianNB": Entry("scikit-learn", lambda s: PartialFit(GaussianNB(), s.classes)),
    "window-kNN": Entry(
        f"scikit-learn, {NEIGHBOURS} neighbours among the last {WINDOW} rows", lambda _: WindowNeighbours()
    ),
    "replay-MLP": Entry(
        "one network with Adam and a reservoir of 1000 rows", lambda s: ReplayMLP(s.features, s.classes, s.seed)
    ),
    "HoeffdingTree": Entry("river, defaults", _tree, needs="river"),
    "ARF": Entry("river, adaptive random forest, defaults", _forest, needs="river"),
}
"""The methods by name. The order, apart from the first, is that of their cost."""


def available_methods() -> list[str]:
    """Return the names of the methods whose packages are installed."""
    return [name for name, entry in STREAM_METHODS.items() if not entry.needs or find_spec(entry.needs)]


def rows_kept(method: StreamMethod) -> int:
    """Return the number of rows of the stream that a method keeps in memory; 0 if it does not say."""
    return int(getattr(method, "rows_kept", 0))


def build_methods(names: Sequence[str], X: Rows, y: Labels, seed: int = 0) -> dict[str, StreamMethod]:
    """Return new methods for a stream, by name; all but `GatedExperts` standardise their inputs."""
    known = available_methods()
    for name in names:
        if name not in STREAM_METHODS:
            raise ValueError(f"methods: got {name!r}, expected some of {', '.join(STREAM_METHODS)}")
        if name not in known:
            package = STREAM_METHODS[name].needs
            raise ValueError(f"methods: got {name!r}, which needs {package}; install it with: pip install {package}")
    setting, first = Setting(X.shape[1], np.unique(y), seed), X[: max(2, int(SCALED_BY * len(X)))]
    built = {name: STREAM_METHODS[name].build(setting) for name in names}
    return {name: m if STREAM_METHODS[name].raw else Standardised(m, first) for name, m in built.items()}
