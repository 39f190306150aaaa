"""Naive: one network, trained on whatever comes, as if the stream were one task. It forgets; how much is the point.

Needs: no boundaries, no task ids, no stored rows, one pass over each batch.
"""

from __future__ import annotations

from hge.baselines.separate import Separate
from hge.learning.online import Setting


def build(setting: Setting) -> Separate:
    """Return a learner with one expert, to which every batch belongs."""
    return Separate(setting.pool(), setting.emit, current_task=lambda: 0)
