"""ROC of the novelty score for detecting rows of a task that was not learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor

from hge.experts.joint.calibration import Calibration
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.tree import FloatArray, IntArray
from hge.learning.novelty import surprise, unknown

ROWS_AT_ONCE = 512
POINTS = np.linspace(0, 1, 21)
"""False alarm rates at which the curve is recorded."""


def unknown_task_roc(
    pool: ExpertPool, experts: Sequence[Expert], x: Tensor, task: IntArray, groups: Mapping[int, IntArray]
) -> dict[str, Any]:
    """Leave out the last expert; return the ROC of separating its task's rows from those of all other tasks.

    `groups`: size -> [groups, size], rows of one task. A group's novelty is the mean over its rows.
    """
    calibration = Calibration(pool, experts[:-1])
    calibration.fit()
    usual = {expert.id: _on_replay(pool, expert) for expert in calibration.experts}
    novelty = np.concatenate([_unknown(pool, calibration, usual, part) for part in torch.split(x, ROWS_AT_ONCE)])
    is_novel = task == task.max()
    false_alarms, found, _ = roc_curve(is_novel, novelty)
    return {
        "area": _area(is_novel, novelty),
        "area_of_groups": {
            str(size): _area(is_novel[rows[:, 0]], novelty[rows].mean(axis=1)) for size, rows in groups.items()
        },
        "false_alarms": POINTS.round(2).tolist(),
        "found": np.interp(POINTS, false_alarms, found).round(4).tolist(),
    }


def _area(is_novel: npt.NDArray[np.bool_], novelty: FloatArray) -> float | None:
    """Return the area under the curve in percent; None if there are not both known and novel groups."""
    return round(100 * float(roc_auc_score(is_novel, novelty)), 3) if 0 < is_novel.sum() < len(is_novel) else None


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
