"""Streaming linear discriminant analysis of the inputs: class means, and one covariance for all classes.

Source: Hayes and Kanan 2020 (Deep SLDA). Departures: on pixels, not on a frozen network; the covariance is exact for
batches of any size, where the reference is right only for one row a call; the shrinkage is relative to the mean
variance.
"""

from __future__ import annotations

from hge.baselines.closed_form import LinearRule, Pixels
from hge.baselines.rule import RuleLearner
from hge.experts.joint.discriminant import discriminant
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    shrinkage = setting.config.baseline.shrinkage
    return RuleLearner(LinearRule(setting, Pixels(setting), lambda sums: discriminant(sums, shrinkage)), setting)
