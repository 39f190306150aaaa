"""Remaining time of a set of runs, estimated from the speed of those in progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

from hge.experiments.jobs.worker import Progress

MOST_OF_A_RUN = 0.9
"""A run first observed after this share gives no estimate of a whole run: the final evaluation dominates."""


@dataclass
class Forecast:
    """Tracks runs; a run not started yet is assumed to take as long as runs of its kind, or else as the others.

    >>> forecast = Forecast(["a", "b"], [("smnist", "ge"), ("smnist", "ge")])
    >>> forecast.update("a", Progress(100, 400, 0), now=0.0)
    >>> forecast.update("a", Progress(200, 400, 0), now=60.0)
    >>> forecast.seconds_left(at_once=1)
    360.0
    """

    names: Sequence[str]
    kinds: Sequence[tuple[str, str]]
    """(scenario, method) of each."""
    _first: dict[str, tuple[float, float]] = field(default_factory=dict)
    """name -> time and share done at the first progress report."""
    _share: dict[str, float] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    """name -> estimated duration of the whole run."""

    @property
    def unfinished(self) -> list[str]:
        """The runs that have not ended."""
        return [name for name in self.names if self._share.get(name, 0.0) < 1.0]

    @property
    def share(self) -> float:
        """Share of all work that is done."""
        lengths = self._lengths()
        done = sum(self._share.get(name, 0.0) * length for name, length in lengths.items())
        return done / sum(lengths.values())

    def update(self, name: str, progress: Progress, now: float) -> None:
        """Record the progress of a run."""
        share = min(progress.done / progress.total, 0.999)
        since, begun = self._first.setdefault(name, (now, share))
        self._share[name] = share
        if share > begun and begun < MOST_OF_A_RUN:
            self._seconds[name] = (now - since) / (share - begun)

    def ended(self, name: str, now: float, *, whole: bool = True) -> None:
        """Record that a run has ended; one that failed or was stopped early is not used to estimate others."""
        since, begun = self._first.get(name, (now, 0.0))
        self._share[name] = 1.0
        if not whole:
            self._seconds.pop(name, None)
        elif begun < MOST_OF_A_RUN:
            self._seconds[name] = (now - since) / (1.0 - begun)

    def seconds_left(self, at_once: int) -> float | None:
        """Return the estimated remaining time; None if nothing is known yet."""
        if not any(self._seconds.values()):
            return None
        left = {n: (1.0 - self._share.get(n, 0.0)) * length for n, length in self._lengths().items()}
        return max(sum(left.values()) / at_once, max(left.values()))

    def status(self, at_once: int) -> str:
        """Return a status line: runs ended and time left.

        >>> Forecast(["a"], [("smnist", "ge")]).status(1)
        '0 of 1 ended'
        """
        ended, seconds = len(self.names) - len(self.unfinished), self.seconds_left(at_once)
        text = f"{ended} of {len(self.names)} ended"
        return text if seconds is None else f"{text}, {_duration(seconds)} left"

    def _lengths(self) -> dict[str, float]:
        known = {name: s for name, s in self._seconds.items() if s > 0}
        by_kind: dict[tuple[str, str], list[float]] = {}
        for name, kind in zip(self.names, self.kinds, strict=True):
            if name in known:
                by_kind.setdefault(kind, []).append(known[name])
        usual = mean(known.values()) if known else 1.0
        return {
            name: known.get(name) or mean(by_kind.get(kind, [usual]))
            for name, kind in zip(self.names, self.kinds, strict=True)
        }


def _duration(seconds: float) -> str:
    """Format a duration.

    >>> _duration(42.3), _duration(754), _duration(98_000)
    ('42 s', '12:34 min', '27:13 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"
