"""Registry of the methods that can be run, and what each requires; each is implemented in its own module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from hge.core.config import RunConfig, ScoreConfig

if TYPE_CHECKING:
    from hge.learning.online import OnlineLearner, Setting

Configure = Callable[[RunConfig, float], RunConfig]
"""(a recipe's settings, the paper's promotion rate for the scenario) -> the method's settings."""


@dataclass(frozen=True)
class Method:
    """Description of a method; its module is imported only when it is built."""

    summary: str
    module: str
    """Module with a function `build` that returns an untrained learner (`hge.learning.online.OnlineLearner`)."""
    configure: Configure = lambda config, promotion_rate: config
    given_tasks: bool = False
    """Whether task boundaries are given in training, and task ids in testing."""
    answers_any_time: bool = False
    """Whether it can be tested in the middle of a stream."""
    learns_a_stream: bool = True
    """False for a separate experiment, which `runner.run` cannot run."""

    def build(self, setting: Setting) -> OnlineLearner:
        """Return an untrained learner."""
        if not self.learns_a_stream:
            raise ValueError(f"method: got {setting.config.method}, expected one that learns a stream")
        learner: OnlineLearner = import_module(self.module).build(setting)
        return learner


def without_review(config: RunConfig, promotion_rate: float) -> RunConfig:
    """Disable the review (the ablation of Section 5.1)."""
    return _learner(config, review=False)


def in_a_hierarchy(config: RunConfig, promotion_rate: float) -> RunConfig:
    """HGE: the paper's tree for the recipe "paper", a shortlist for the others."""
    if config.recipe == "paper":
        return _learner(config, organisation="lca", promotion_rate=promotion_rate)
    return _learner(config, organisation="tree")


def without_gate(config: RunConfig, promotion_rate: float) -> RunConfig:
    """Use the cheapest score, since it is never evaluated."""
    return replace(config, score=ScoreConfig())


def _learner(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, learner=replace(config.learner, **changes))


GATED = "hge.learning.gated"
METHODS: dict[str, Method] = {
    "ge": Method("Gated Experts (Algorithm 1)", GATED, answers_any_time=True),
    "ge-no-review": Method("Gated Experts without the review", GATED, without_review, answers_any_time=True),
    "hge": Method("Hierarchically Gated Experts", GATED, in_a_hierarchy, answers_any_time=True),
    "organise": Method(
        "Section 5.2: the same experts in several trees", "hge.experiments.tree_comparison", learns_a_stream=False
    ),
    "tame": Method("TAME (Zhu et al. 2022)", "hge.baselines.tame", without_gate),
    "separate": Method("an expert per task, which is given", "hge.baselines.separate", without_gate, given_tasks=True),
    "naive": Method("one network, trained on", "hge.baselines.naive", without_gate, answers_any_time=True),
}
