"""Nearest class mean of the inputs: the class whose mean is nearest wins.

Source: Mensink et al. 2013; Janson et al. 2022 use it on a frozen network. ‖x - μ‖² is smallest where x·μ - ½ ‖μ‖² is
largest. Departure: on pixels.
"""

from __future__ import annotations

from hge.baselines.closed_form import LinearRule, Pixels
from hge.baselines.rule import RuleLearner
from hge.experts.joint.discriminant import ClassSums, LinearScores
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    return RuleLearner(LinearRule(setting, Pixels(setting), nearest_mean), setting)


def nearest_mean(sums: ClassSums) -> LinearScores:
    """Return the scores x·μ - ½ ‖μ‖²."""
    means = sums.means
    return LinearScores(means, -0.5 * means.square().sum(1))
