"""Builder of GE and HGE for the runner; `LearnerConfig.organisation` selects between them."""

from __future__ import annotations

from hge.learning.learner import Learner
from hge.learning.online import Setting


def build(setting: Setting) -> Learner:
    """Return an untrained learner."""
    return Learner(setting.config.learner, setting.pool(), setting.keys, setting.emit)
