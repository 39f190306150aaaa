"""RanDumb: streaming linear discriminant analysis of random Fourier features of the pixels.

Source: Prabhu et al. 2024. Departures: 2 000 features instead of 25 000 (`baseline.features`), no flipped copies, and a
kernel width from the first batch instead of one per data set.
"""

from __future__ import annotations

from hge.baselines.closed_form import LinearRule, RandomFeatures
from hge.baselines.rule import RuleLearner
from hge.experts.joint.discriminant import discriminant
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    shrinkage, features = setting.config.baseline.shrinkage, RandomFeatures(setting, fourier=True)
    return RuleLearner(LinearRule(setting, features, lambda sums: discriminant(sums, shrinkage)), setting)
