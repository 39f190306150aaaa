"""Expert Gate: an expert and an autoencoder per task, with given task boundaries; what Gated Experts extend.

Source: Aljundi et al. 2017. In training, a boundary starts a new expert and a new autoencoder. A test row goes to the
expert whose autoencoder reconstructs it best; the softmax of the paper does not change which one that is.

Departures: the autoencoders reconstruct the inputs, as in GE, instead of AlexNet's features, and are trained by GE's
optimiser. An expert starts from scratch, not from the most related one. A task that recurs has a new expert: a boundary
does not say which task begins. Batch testing is ours.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hge.baselines.separate import Separate
from hge.experts.pool import count_parameters, scorer
from hge.gating.tree import FloatArray, Routes
from hge.learning.online import Answers, Routing, Setting
from hge.learning.routing import ask
from hge.learning.state import Snapshot


def build(setting: Setting) -> ExpertGate:
    """Return an untrained learner."""
    return ExpertGate(setting)


class ExpertGate(Separate):
    """Separate experts, whose tasks are numbered by the boundaries; at test time their autoencoders choose."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.pool(), setting.emit, current_task=lambda: self.boundaries)
        self.boundaries = 0

    @property
    def parameters(self) -> int:
        """Number of weights of all experts and autoencoders."""
        return count_parameters(self.pool, len(self.experts))

    def boundary(self) -> None:
        """Let the next batch start an expert."""
        self.boundaries += 1

    def answers(self) -> Answers:
        """Return an object that predicts test rows; no task is given."""
        return ExpertGateAnswers(self)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        super().restore(snapshot)
        self.boundaries = max(self.expert_of, default=0)


@dataclass(frozen=True)
class ExpertGateAnswers:
    """Routes each row, or a batch, to the expert with the lowest reconstruction error."""

    learner: ExpertGate

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose an expert per row, independently of the other rows, or one for all rows."""
        learner, together = self.learner, routing == "batch"
        score = scorer(learner.pool, len(learner.experts), x.to(learner.pool.device), one_group=together)
        return learner.tree.select(score, groups=1 if together else len(x))

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the chosen expert's softmax."""
        return ask(self.learner.pool, x, routes, outputs)

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return the cost of the autoencoders."""
        return self.learner.pool.costs().score.per_row(asked, rows)
