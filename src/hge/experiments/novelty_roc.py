"""ROC of the novelty score for detecting rows of a task that was not learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from hge.experts.joint.calibration import Calibration
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.tree import FloatArray
from hge.learning.novelty import surprise, unknown

ROWS_AT_ONCE = 512
POINTS = np.linspace(0, 1, 21)
"""False alarm rates at which the curve is recorded."""


def unknown_task_roc(pool: ExpertPool, experts: Sequence[Expert], known: Tensor, novel: Tensor) -> dict[str, Any]:
    """Leave out the last expert; return the ROC of separating its task's rows from those of all other tasks."""
    calibration = Calibration(pool, experts[:-1])
    calibration.fit()
    usual = {expert.id: _on_replay(pool, expert) for expert in calibration.experts}
    novelty = [
        np.concatenate([_unknown(pool, calibration, usual, part) for part in torch.split(rows, ROWS_AT_ONCE)])
        for rows in (known, novel)
    ]
    is_novel = np.repeat([0, 1], [len(rows) for rows in novelty])
    scores = np.concatenate(novelty)
    false_alarms, found, _ = roc_curve(is_novel, scores)
    return {
        "area": round(100 * float(roc_auc_score(is_novel, scores)), 3),
        "false_alarms": POINTS.round(2).tolist(),
        "found": np.interp(POINTS, false_alarms, found).round(4).tolist(),
    }


def _unknown(pool: ExpertPool, calibration: Calibration, usual: Mapping[int, FloatArray], x: Tensor) -> FloatArray:
    """Compute `Answerer.unknown` for experts outside a learner."""
    joint = calibration.joint
    assert joint is not None
    logs = joint.experts(joint.pairs(calibration.evidence(x)))
    chosen, rows = logs.argmax(axis=0), np.arange(len(x))
    own = pool.scores(range(len(logs)), x)[chosen, rows]
    return unknown(surprise(own, chosen, usual), -logs[chosen, rows], joint.usual_doubt)


def _on_replay(pool: ExpertPool, expert: Expert) -> FloatArray:
    """Return an expert's scores for the rows of its replay."""
    rows = [pool.scores([expert.id], kept.batch.x)[0] for kept in expert.replay.kept]
    return np.concatenate(rows)
