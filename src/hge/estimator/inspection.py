"""What can be read of a `GatedExperts`: its experts, decisions and history; in a notebook, a figure, a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_html_repr

from hge.core.events import Event
from hge.estimator.fair_lock import in_turn
from hge.estimator.row_buffer import WaitingRows
from hge.estimator.stream_record import Columns, StreamRecord
from hge.estimator.summaries import ExpertSummary, notebook_view, summary
from hge.gating.tree import Tree
from hge.learning.learner import Learner

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Inspection(BaseEstimator):  # type: ignore[misc]
    """The public properties of a fitted `GatedExperts`, and its views."""

    _learner: Learner
    _events: StreamRecord
    _waiting: WaitingRows

    @property
    @in_turn
    def experts_(self) -> list[ExpertSummary]:
        """Summaries of the experts, in order of creation."""
        self._check_started()
        new, epsilon = self._learner.newcomers, self._learner.config.epsilon
        return [
            ExpertSummary(e.id, e.id not in new, e.batches_trained, e.losses.mean, e.losses.bound(epsilon))
            for e in self._learner.active
        ]

    @property
    def n_experts_(self) -> int:
        """Number of experts."""
        return len(self.experts_)

    @property
    @in_turn
    def tree_(self) -> Tree:
        """The gate's tree of promoted experts."""
        self._check_started()
        return self._learner.tree

    @property
    @in_turn
    def events_(self) -> list[Event]:
        """The last 1000 decisions, oldest first."""
        self._check_started()
        return list(self._events.kept)

    @property
    @in_turn
    def learner_(self) -> Learner:
        """The learner that `partial_fit` drives: its experts, their replay, their networks. Not locked, not a copy."""
        self._check_started()
        return self._learner

    @property
    @in_turn
    def rows_waiting_(self) -> int:
        """Number of rows that wait for a full batch; `flush` learns them as a smaller one."""
        self._check_started()
        return len(self._waiting)

    @property
    @in_turn
    def rows_limited_(self) -> int:
        """Number of rows that were far beyond the others, and were clipped in training."""
        self._check_started()
        return self._learner.rows_limited

    @property
    @in_turn
    def rows_seen_(self) -> int:
        """Number of rows received so far, in every pass; some may wait for a full batch."""
        self._check_started()
        return self._events.rows

    @property
    @in_turn
    def n_switches_(self) -> int:
        """How often the expert in use has changed, to a new or a known one."""
        self._check_started()
        return self._events.switched

    @property
    @in_turn
    def history_(self) -> Columns:
        """Step, expert, loss, bound and set_aside of the batches so far: all, or a sample of 512 to 1024 of them."""
        self._check_started()
        return self._events.columns()

    @in_turn
    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the losses, bounds and experts of the stream so far, on matplotlib's axes; return the axes."""
        self._check_started()
        from hge.estimator.model_report import plot_history  # imports matplotlib, which takes time

        return plot_history(self._events, ax)

    @in_turn
    def report(self, path: str | Path) -> Path:
        """Write a page about the model: its stream, its experts and its last decisions. Return its path."""
        self._check_started()
        from hge.estimator.model_report import write_model_report

        return write_model_report(self, Path(path))

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        text: str = super().__repr__(N_CHAR_MAX)
        return f"{text}: {summary(self)}" if self._started else text

    def _html_repr(self) -> str:
        """Return scikit-learn's diagram and, if fitted, a summary; `_repr_html_`, of scikit-learn, calls this."""
        diagram: str = estimator_html_repr(self)
        return diagram + notebook_view(self) if self._started else diagram

    @property
    def batches_skipped_(self) -> int:
        """Number of calls of `partial_fit` that were skipped."""
        return self._events_so_far().skipped

    @property
    def _started(self) -> bool:
        return hasattr(self, "_learner")

    def _check_started(self) -> None:
        if not self._started:
            raise NotFittedError("This GatedExperts has seen no rows yet. Call fit or partial_fit first.")

    def _events_so_far(self) -> StreamRecord:
        """Return the events, which may exist before the learner does: bad batches may come first."""
        return self._events if hasattr(self, "_events") else StreamRecord()
