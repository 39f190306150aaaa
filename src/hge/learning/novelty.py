"""Novelty score: high for rows that are unlike everything learned so far."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from hge.experts.companions.companion import flat
from hge.gating.tree import FloatArray, IntArray
from hge.learning.routing import ROWS_AT_ONCE, Answerer, slices_of


class Novelty:
    """Novelty of rows, and that of the remembered ones, with which it is compared."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer, self._learner = answerer, answerer.learner
        self._usual: tuple[tuple[int, ...], FloatArray] | None = None
        """What `usual` returned last, and how far everything was trained then."""

    def usual(self) -> FloatArray:
        """Return the novelty of remembered rows, sorted; computed again only after further training."""
        experts, calibration = self._learner.experts, self._answerer.calibration
        fitted = () if calibration is None else calibration.batches_at_fit
        version = (self._learner.pool.space.fixed, *fitted, *(e.batches_trained for e in experts))
        if self._usual is None or self._usual[0] != version:
            self._usual = version, np.sort(self._of_remembered())
        return self._usual[1]

    def __call__(self, x: Tensor) -> FloatArray:
        """Return [rows]: novelty, higher for rows less like anything learned; requires a memory or the joint score."""
        memory = self._learner.memory
        if memory is not None:
            far = np.concatenate([memory.row_novelty(flat(x[part])) for part in slices_of(x)])
            return self._with_doubt(x, far)
        calibration = self._answerer.calibration
        if calibration is None or calibration.joint is None:
            raise ValueError(
                "unknown: got neither a memory nor a joint score, expected memory_rows above 0 or joint=True"
            )
        pool, routes = self._learner.pool, self._answerer.route(x, "sample")
        own, usual = np.full(len(x), np.nan), {}
        for e in np.unique(routes.expert).tolist():
            usual[e], rows = self._answerer.scores_on_replay(e, e), np.flatnonzero(routes.expert == e)
            for part in np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)):
                own[part] = pool.scores([e], x[torch.from_numpy(part)].to(pool.device))[0]
        doubt = routes.scores[routes.expert, np.arange(len(x))]
        return unknown(surprise(own, routes.expert, usual), doubt, calibration.joint.usual_doubt)

    def _of_remembered(self) -> FloatArray:
        """Return the novelty of remembered rows, each compared with the others."""
        memory, experts = self._learner.memory, self._learner.experts
        rows = torch.cat([kept.batch.x for expert in experts for kept in expert.replay.kept])
        if memory is None:
            return self(rows)
        remembered = memory.row_novelty
        if not len(remembered.usual):  # no two rows differ: nothing but a row like these is known
            return np.zeros(1)
        compared = torch.from_numpy(remembered.compared).view(-1, *rows.shape[1:])
        return self._with_doubt(compared.to(rows), remembered.usual)

    def _with_doubt(self, x: Tensor, far: FloatArray) -> FloatArray:
        """Return [rows]: novelty among the remembered rows, with the doubt of the joint score if there is one."""
        calibration = self._answerer.calibration
        if calibration is None or calibration.joint is None:
            return far
        routes = self._answerer.route(x, "sample")
        doubt = routes.scores[routes.expert, np.arange(len(x))]
        return far_or_doubtful(far, doubt, calibration.joint.usual_doubt)


def surprise(scores: FloatArray, chosen: IntArray, usual: Mapping[int, FloatArray]) -> FloatArray:
    """Return [rows]: excess of the chosen expert's score over its mean on the replay, in standard deviations.

    >>> surprise(np.array([3.0, 7.0]), np.array([0, 1]), {0: np.array([0.0, 2.0]), 1: np.array([4.0, 8.0])})
    array([2. , 0.5])
    """
    mean, spread = ({e: f(own) for e, own in usual.items()} for f in (np.mean, np.std))
    expected = np.array([mean[int(e)] for e in chosen])
    result: FloatArray = (scores - expected) / np.array([max(float(spread[int(e)]), 1e-12) for e in chosen])
    return result


def unknown(surprise: FloatArray, doubt: FloatArray, usual_doubt: float) -> FloatArray:
    """Return [rows]: novelty of each row; higher means less like anything learned.

    `surprise`: excess of the chosen expert's score over its mean on the replay, in standard deviations; detects rows
    of a new kind. `doubt`: -log P(chosen expert); detects rows between experts. Neither suffices alone
    (results/choices/joint_prototype.json). A negative surprise (a better fit than usual) does not lower the novelty.

    >>> unknown(np.array([-3.0, 0.0, 6.0]), np.array([0.0, 0.7, 0.0]), usual_doubt=0.7)
    array([0., 1., 6.])
    """
    return np.maximum(surprise, 0.0) + doubt / max(usual_doubt, 1e-9)


def far_or_doubtful(far: FloatArray, doubt: FloatArray, usual_doubt: float) -> FloatArray:
    """Return [rows]: novelty of each row if rows are remembered; `far` is that among the remembered rows.

    The doubt is fitted to remembered rows, and lower for them than for new ones. Only its order of magnitude counts, or
    a threshold set by remembered rows would be too low for new ones (results/choices/novelty.json).

    >>> far_or_doubtful(np.array([-1.0, 3.0]), np.array([0.0, 0.7]), usual_doubt=0.7).round(2)
    array([-1.  ,  3.69])
    """
    return far + np.log1p(doubt / max(usual_doubt, 1e-9))
