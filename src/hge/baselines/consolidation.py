"""When a method protects what it learned so far: at told boundaries, every N batches, or at detected switches.

A rule consolidates: it takes its weights as worth keeping. Most such methods were made for told boundaries; on a stream
without them, van de Ven's code consolidates at regular intervals. Detected switches are those of Section 3.1: batches
whose loss is above μ + εσ are set aside; if as many come in a row as R holds, it is another task, and they are learned
after the consolidation. There is no review, which would need a replay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from typing import Protocol

import torch
from torch import Tensor

from hge.baselines.rule import Part, Rule, RuleLearner, ToldLearner
from hge.core.config import LearnerConfig
from hge.core.types import Batch
from hge.experts.pool_spec import copy_tensors
from hge.gating.switch_detection import LossStats
from hge.learning.online import Setting


class ConsolidatingRule(Rule, Protocol):
    """A rule that can protect its weights."""

    def probe(self, batch: Batch) -> float:
        """Return the loss of a batch, without learning it."""

    def consolidate(self) -> None:
        """Protect what was learned so far."""


def consolidating(rule: ConsolidatingRule, setting: Setting) -> RuleLearner:
    """Return a learner that consolidates as `baseline.consolidate` says."""
    config = setting.config.baseline
    if config.consolidate == "told":
        return ToldLearner(rule, setting, at_boundary=rule.consolidate)
    if config.consolidate == "every":
        return RuleLearner(EveryN(rule, config.consolidate_every), setting)
    detecting = AtDetectedSwitches(rule, setting.config.learner, setting.device)
    return RuleLearner(detecting, setting, at_end=detecting.learn_waiting)


class EveryN:
    """Consolidates after every N batches."""

    def __init__(self, rule: ConsolidatingRule, batches: int) -> None:
        self.rule, self.batches = rule, batches
        self.parts = rule.parts
        self.multiply_adds = rule.multiply_adds
        self.logits = rule.logits

    def learn(self, batch: Batch, step: int) -> float:
        """Learn a batch; consolidate if it is the N-th."""
        loss = self.rule.learn(batch, step)
        if (step + 1) % self.batches == 0:
            self.rule.consolidate()
        return loss


class AtDetectedSwitches:
    """Consolidates where the loss stays high."""

    def __init__(self, rule: ConsolidatingRule, config: LearnerConfig, device: torch.device) -> None:
        self.rule, self.config = rule, config
        self.detector = Detector(config.alpha, device)
        self.parts: dict[str, Part] = {**rule.parts, "detector": self.detector}
        self.multiply_adds = rule.multiply_adds
        self.logits = rule.logits

    def learn(self, batch: Batch, step: int) -> float:
        """Learn a batch, or set it aside; batches that were set aside are learned before the next one."""
        detector, loss = self.detector, self.rule.probe(batch)
        if not isfinite(loss):
            return nan
        if loss > detector.losses.bound(self.config.epsilon):
            detector.waiting.append((step, batch))
            if len(detector.waiting) == self.config.recent_capacity - 1:
                self.rule.consolidate()
                detector.losses = LossStats(self.config.alpha)
                self.learn_waiting()
            return loss
        self.learn_waiting()
        return self._learn(batch, step)

    def learn_waiting(self) -> None:
        """Learn the batches that were set aside, in order."""
        for step, batch in self.detector.waiting:
            self._learn(batch, step)
        self.detector.waiting.clear()

    def _learn(self, batch: Batch, step: int) -> float:
        loss = self.rule.learn(batch, step)
        if isfinite(loss):
            self.detector.losses.update(loss)
        return loss


class Detector:
    """Statistics of the training loss, and the batches that were set aside."""

    parameters = 0

    def __init__(self, alpha: float, device: torch.device) -> None:
        self.losses, self.device = LossStats(alpha), device
        self.waiting: list[tuple[int, Batch]] = []
        """(step, batch)."""

    @property
    def rows_kept(self) -> int:
        """Number of rows that were set aside."""
        return sum(len(batch) for _, batch in self.waiting)

    def state(self) -> dict[str, Tensor]:
        """Return copies of the statistics and batches."""
        own = self.losses
        found = {"losses": torch.tensor([own.count, own.mean, own.deviation], dtype=torch.float64)}
        for place, (step, batch) in enumerate(self.waiting):
            x, y = batch.x.cpu().contiguous(), batch.y.cpu().contiguous()
            found |= {f"{place}.step": torch.tensor(step), f"{place}.x": x, f"{place}.y": y}
        return found

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        count, mean, deviation = tensors["losses"].tolist()
        self.losses = LossStats(self.losses.alpha, count=int(count), mean=mean, deviation=deviation)
        self.waiting = [
            (int(tensors[f"{place}.step"]), Batch(tensors[f"{place}.x"], tensors[f"{place}.y"]).to(self.device))
            for place in range((len(tensors) - 1) // 3)
        ]


class QuadraticPenalty:
    """Σ Ω (θ - θ*)²: weights that mattered are pulled back to where they were at the last consolidation.

    Ω grows with every consolidation. Steps along the penalty's gradient diverge once its curvature exceeds 2 / lr, with
    momentum β 2 (1 + β) / lr: each leads further beyond θ* than the weight was away from it. Proximal steps take the
    loss as linear and the penalty as it is; they are stable for any Ω, and come to rest at the same weights.

    >>> weight, lr = torch.tensor([3.0]), 0.5
    >>> penalty = QuadraticPenalty([weight], lr)
    >>> penalty.consolidate([torch.tensor([3.0])])
    >>> weight += 1
    >>> (weight - lr * penalty.direction([torch.zeros(1)], factor=1.0)[0]).tolist()  # the plain step ends at 1
    [3.25]
    """

    rows_kept = 0
    parameters = 0

    def __init__(self, weights: Sequence[Tensor], lr: float) -> None:
        self.weights, self.lr = weights, lr
        self.anchor = [weight.detach().clone() for weight in weights]
        """θ*."""
        self.importance = [torch.zeros_like(weight) for weight in self.anchor]
        """Ω."""

    @torch.no_grad()
    def direction(self, gradients: Sequence[Tensor], factor: float) -> list[Tensor]:
        """Return the direction d of a proximal step, for a loss of these gradients g and `factor` times the penalty.

        θ - lr d minimises g·θ' + factor Σ Ω (θ' - θ*)² + |θ' - θ|² / (2 lr) over θ'.
        """
        own = zip(gradients, self.weights, self.anchor, self.importance, strict=True)
        found = ((g, weight - anchor, 2 * factor * omega) for g, weight, anchor, omega in own)
        return [(g + curvature * moved) / (1 + self.lr * curvature) for g, moved, curvature in found]

    @torch.no_grad()
    def consolidate(self, importance: Sequence[Tensor], keep: float = 1.0) -> None:
        """Set the anchor to the present weights, and add their importance to `keep` times that of earlier ones."""
        for weight, anchor, omega, new in zip(self.weights, self.anchor, self.importance, importance, strict=True):
            anchor.copy_(weight)
            omega.mul_(keep).add_(new)

    def state(self) -> dict[str, Tensor]:
        """Return copies of anchor and importance."""
        own = {"anchor": self.anchor, "importance": self.importance}
        return copy_tensors({f"{name}.{n}": t for name, ts in own.items() for n, t in enumerate(ts)}, on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for number, (anchor, omega) in enumerate(zip(self.anchor, self.importance, strict=True)):
            anchor.copy_(tensors[f"anchor.{number}"])
            omega.copy_(tensors[f"importance.{number}"])
