"""Where a run's time goes: each part of a run is timed on the host, without the parts that it calls."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from hge.experiments.batch_feed import Feed
from hge.experiments.runner import RunSession
from hge.learning.learner import Learner

METHODS: dict[str, tuple[tuple[str, str], ...]] = {
    "gate": (("", "_gate"), ("organisation", "route")),
    "loss check": (("pool", "loss"),),
    "expert step": (("pool", "train"), ("pool", "train_run")),
    "autoencoder step": (("pool.store.score", "compute_update"), ("pool.store.score", "apply_update")),
    "graph captures": (("pool.graphs", "_capture"),),
    "waiting for the device": (("pool.results", "_receive_block"),),
    "copies of experts": (
        ("pool.store", "activate"),
        ("pool.store", "load_eval_net"),
        ("pool.store", "sync_gate"),
        ("guard", "watch"),
        ("guard", "keep"),
    ),
    "review and promotion": (("", "_review"), ("organisation", "accepted")),
    "learner": (("", "learn_all"), ("", "learn")),
}
"""Methods of a learner that belong to each part. On a GPU a step in a graph holds gate, expert and autoencoder: then
the host launches it as "expert step", and the rest of its time is in "waiting for the device"."""


class PartTimes:
    """Seconds and calls of each part; a part that calls another is not charged for it.

    >>> ticks = iter([0.0, 1.0, 3.0, 7.0])  # begin outer, begin inner, end inner, end outer
    >>> times = PartTimes(lambda: next(ticks))
    >>> times.timed("outer", times.timed("inner", lambda: "result"))()
    'result'
    >>> dict(times.seconds)
    {'inner': 2.0, 'outer': 5.0}
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls = Counter[str]()
        self._in_others = [0.0]
        """For each part being timed, the seconds in the parts that it called."""

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the same function, which is timed as a part; if it returns an iterator, so are its steps."""

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[part] += 1
            result = self._spend(part, lambda: function(*arguments, **named))
            return self.steps(part, result) if isinstance(result, Iterator) else result

        return call

    def steps(self, part: str, items: Iterator[Any]) -> Iterator[Any]:
        """Yield the items; the time until each is there is the part's."""
        end = object()
        while (item := self._spend(part, lambda: next(items, end))) is not end:
            yield item

    def _spend(self, part: str, work: Callable[[], Any]) -> Any:
        started = self.clock()
        self._in_others.append(0.0)
        try:
            return work()
        finally:
            spent = self.clock() - started
            self.seconds[part] += spent - self._in_others.pop()
            self._in_others[-1] += spent


def time_parts(session: RunSession, times: PartTimes) -> None:
    """Time the parts of a run that has not started."""
    learner, build_feed = session.learner, session._feed
    if isinstance(learner, Learner):
        for part, methods in METHODS.items():
            for path, method in methods:
                _replace(learner, path, method, lambda own, part=part: times.timed(part, own))  # type: ignore[misc]

    def timed_feed() -> Feed:
        feed = build_feed()
        feed._stream = times.steps("data", feed._stream)
        return feed

    session._feed = timed_feed  # type: ignore[method-assign]


def _replace(owner: Any, path: str, method: str, change: Callable[[Any], Any]) -> None:
    """Replace a method of the owner, or of an object within it, unless it has none of that name."""
    for name in path.split(".") if path else ():
        owner = getattr(owner, name, None)
    if hasattr(owner, method):
        setattr(owner, method, change(getattr(owner, method)))
