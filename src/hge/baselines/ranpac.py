"""RanPAC's head: ridge regression of one-hot labels on random ReLU features.

Source: McDonnell et al. 2023, without the first task's tuning, which needs a boundary: h = relu(xR), (G + λI) W = Q
with G = Σ hhᵀ and Q = Σ h·onehot(y).

Departures: on pixels, not on a frozen network; 2 000 features instead of 10 000 (`baseline.features`). λ is
`baseline.shrinkage` times the mean of G's diagonal: the paper chooses it on a held-out part of each task.
"""

from __future__ import annotations

import torch

from hge.baselines.closed_form import LinearRule, RandomFeatures
from hge.baselines.rule import RuleLearner
from hge.experts.joint.discriminant import ClassSums, LinearScores
from hge.learning.online import Setting


def build(setting: Setting) -> RuleLearner:
    """Return an untrained learner."""
    shrinkage, features = setting.config.baseline.shrinkage, RandomFeatures(setting, fourier=False)
    return RuleLearner(LinearRule(setting, features, lambda sums: ridge(sums, shrinkage)), setting)


def ridge(sums: ClassSums, penalty: float) -> LinearScores:
    """Return the regression of one-hot labels: Q is the sum of each class's features."""
    products = sums.products
    size = len(products)
    scale = (products.trace() / size).clamp_min(1e-12)
    penalised = products + penalty * scale * torch.eye(size, dtype=products.dtype, device=products.device)
    weights = torch.linalg.solve(penalised, sums.sums.T).T
    return LinearScores(weights, weights.new_zeros(len(weights)))
