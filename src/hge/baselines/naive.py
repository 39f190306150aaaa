"""Naive: one network trained on the whole stream as if it were one task; it shows the extent of forgetting.

Needs: no boundaries, no task ids, no stored rows, one pass over each batch.
"""

from __future__ import annotations

from hge.baselines.separate import Separate
from hge.learning.online import Setting


def build(setting: Setting) -> Separate:
    """Return a learner with one expert, trained on every batch."""
    return Separate(setting.pool(), setting.emit, current_task=lambda: 0)
