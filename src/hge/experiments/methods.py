"""Registry of the methods that can be run, and what each requires; each is implemented in its own module."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from hge.core.config import RunConfig, ScoreConfig

if TYPE_CHECKING:
    from hge.learning.online import OnlineLearner, Setting

Configure = Callable[[RunConfig, float], RunConfig]
"""(a recipe's settings, the paper's promotion rate for the scenario) -> the method's settings."""


@dataclass(frozen=True)
class Needs:
    """What a method requires besides a stream of batches. The runner gives it nothing that is not declared here.

    >>> Needs(boundaries=True).told
    'boundaries'
    """

    boundaries: bool = False
    """Task boundaries in training: the learner is a `GivenBoundaries`."""
    task_ids: bool = False
    """Task ids in training and in testing: the learner is a `GivenTasks`."""
    rows: Literal["none", "own", "memory", "all"] = "none"
    """Rows of the stream that it keeps: none, as many as its own settings say, at most `Setting.memory`, or all."""
    end_of_stream: bool = False
    """The end of the stream, before which it cannot predict."""
    passes: float = 1
    """Rows that pass forward and backward through a network for each row of the stream; 0 if no gradient is used."""

    @property
    def told(self) -> str:
        """What it is told about tasks and the stream."""
        given = {"task ids": self.task_ids, "boundaries": self.boundaries, "end of stream": self.end_of_stream}
        return ", ".join(name for name, is_given in given.items() if is_given) or "nothing"


@dataclass(frozen=True)
class Method:
    """Description of a method; its module is imported only when it is built."""

    summary: str
    module: str
    """Module with a function `build` that returns an untrained learner (`hge.learning.online.OnlineLearner`)."""
    configure: Configure = lambda config, promotion_rate: config
    needs: Needs = Needs()
    learns_a_stream: bool = True
    """False for a separate experiment, which `runner.run` cannot run."""

    @property
    def answers_any_time(self) -> bool:
        """Whether it can be tested in the middle of a stream."""
        return self.learns_a_stream and not (self.needs.end_of_stream or self.needs.task_ids)

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


def with_autoencoder(config: RunConfig, promotion_rate: float) -> RunConfig:
    """Use a plain autoencoder as the score, as Expert Gate does."""
    return replace(config, score=ScoreConfig(name="autoencoder", kl_weight=0.0, variational=False))


def without_experts(config: RunConfig, promotion_rate: float) -> RunConfig:
    """Use neither a gate nor views: the losses of these methods have no place for them."""
    return replace(without_gate(config, promotion_rate), views=1, answer_views=0)


def with_baseline(**settings: Any) -> Configure:
    """Return settings of a method without experts."""

    def configure(config: RunConfig, promotion_rate: float) -> RunConfig:
        own = without_experts(config, promotion_rate)
        return replace(own, baseline=replace(own.baseline, **settings))

    return configure


def consolidating(
    name: str, summary: str, *, rows: Literal["none", "own"] = "none", passes: float = 1, **settings: Any
) -> dict[str, Method]:
    """Return three forms of a method: told boundaries, at regular intervals, at the switches that it detects."""
    forms: dict[str, tuple[str, Literal["told", "every", "detected"]]] = {
        name: (summary, "told"),
        f"{name}-every": (f"{summary}, every 100 batches", "every"),
        f"{name}-detected": (f"{summary}, at detected switches", "detected"),
    }
    return {
        form: Method(
            text,
            f"hge.baselines.{name}",
            with_baseline(consolidate=when, **settings),
            Needs(boundaries=when == "told", rows="own" if when == "detected" else rows, passes=passes),
        )
        for form, (text, when) in forms.items()
    }


def _learner(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, learner=replace(config.learner, **changes))


GATED = "hge.learning.gated"
OWN_ROWS = Needs(rows="own")
AT_THE_END = Needs(rows="memory", end_of_stream=True)
CLOSED_FORM = Needs(passes=0)
CN_DPM = Needs(rows="own", passes=6)
"""Passes: of every row through every expert, so as many as there are experts, and one that is never trained."""
METHODS: dict[str, Method] = {
    "ge": Method("Gated Experts (Algorithm 1)", GATED, needs=OWN_ROWS),
    "ge-no-review": Method("Gated Experts without the review", GATED, without_review, OWN_ROWS),
    "hge": Method("Hierarchically Gated Experts", GATED, in_a_hierarchy, OWN_ROWS),
    "organise": Method(
        "Section 5.2: the same experts in several trees", "hge.experiments.tree_comparison", learns_a_stream=False
    ),
    "tame": Method("TAME (Zhu et al. 2022)", "hge.baselines.tame", without_gate, Needs(rows="own", end_of_stream=True)),
    "separate": Method(
        "an expert per task, which is given",
        "hge.baselines.separate",
        without_gate,
        Needs(task_ids=True),
    ),
    "hn": Method(
        "a hypernetwork, given the task",
        "hge.baselines.hn",
        with_baseline(penalty=0.5),
        Needs(task_ids=True, passes=2),
    ),
    "hn-entropy": Method(
        "a hypernetwork; the task of a row by the lowest entropy",
        "hge.baselines.hn_entropy",
        with_baseline(penalty=0.5),
        Needs(boundaries=True, passes=2),
    ),
    "naive": Method("one network, trained on", "hge.baselines.naive", without_experts),
    "joint": Method(
        "one network, trained on all rows at the end",
        "hge.baselines.joint",
        without_experts,
        Needs(rows="all", end_of_stream=True),
    ),
    "er": Method("experience replay", "hge.baselines.er", without_experts, Needs(rows="memory", passes=2)),
    "er-ace": Method(
        "replay, asymmetric losses", "hge.baselines.er_ace", without_experts, Needs(rows="memory", passes=2)
    ),
    "der": Method(
        "Dark Experience Replay", "hge.baselines.der", with_baseline(logit_weight=0.5), Needs(rows="memory", passes=2)
    ),
    "der++": Method(
        "Dark Experience Replay with labels",
        "hge.baselines.der",
        with_baseline(logit_weight=0.2, label_weight=0.5),
        Needs(rows="memory", passes=3),
    ),
    "agem": Method("A-GEM", "hge.baselines.agem", without_experts, Needs(rows="memory", passes=2)),
    "sncl": Method(
        "SNCL: replay with sparse variational units (our reading)",
        "hge.baselines.sncl",
        with_baseline(logit_weight=0.2, label_weight=0.5, penalty=0.01),
        Needs(rows="memory", passes=2),
    ),
    "gdumb": Method("a balanced memory, learned at the end", "hge.baselines.gdumb", without_experts, AT_THE_END),
    "expert-gate": Method(
        "Expert Gate (Aljundi et al. 2017)", "hge.baselines.expert_gate", with_autoencoder, Needs(boundaries=True)
    ),
    "ncm": Method("nearest class mean of the pixels", "hge.baselines.ncm", without_experts, CLOSED_FORM),
    "slda": Method("streaming LDA of the pixels", "hge.baselines.slda", without_experts, CLOSED_FORM),
    "ranpac": Method("ridge regression on random features", "hge.baselines.ranpac", without_experts, CLOSED_FORM),
    "randumb": Method("streaming LDA of random features", "hge.baselines.randumb", without_experts, CLOSED_FORM),
    "bgd": Method("Bayesian Gradient Descent", "hge.baselines.bgd", without_experts, Needs(passes=10)),
    "bgd-labels": Method(
        "Bayesian Gradient Descent over the labels of a batch",
        "hge.baselines.bgd",
        with_baseline(labels_trick=True),
        Needs(passes=10),
    ),
    "cn-dpm": Method(
        "CN-DPM: a mixture of autoencoders and classifiers", "hge.baselines.cn_dpm", without_experts, CN_DPM
    ),
    "cn-dpm-lateral": Method(
        "CN-DPM with lateral features", "hge.baselines.cn_dpm", with_baseline(lateral=True), CN_DPM
    ),
    "expandable": Method(
        "Dynamically Expandable Representation",
        "hge.baselines.expandable",
        without_experts,
        Needs(boundaries=True, rows="memory", passes=2),
    ),
    "expandable-detected": Method(
        "Dynamically Expandable Representation, at detected switches",
        "hge.baselines.expandable",
        with_baseline(consolidate="detected"),
        Needs(rows="memory", passes=2),
    ),
    "hvcl": Method(
        "HVCL: variational experts in each layer (our reading)",
        "hge.baselines.hvcl",
        with_baseline(penalty=1.0),
        Needs(boundaries=True),
    ),
    "hcl-fr": Method(
        "HCL, keeping the latents of what a flow draws (our reading)",
        "hge.baselines.hcl",
        with_baseline(functional=True),
        Needs(passes=2),
    ),
    "hcl-gr": Method(
        "HCL, replaying what a flow draws (our reading)",
        "hge.baselines.hcl",
        with_baseline(functional=False),
        Needs(passes=2),
    ),
    **consolidating("ewc", "online EWC", penalty=90.0, rows="own"),
    **consolidating("si", "Synaptic Intelligence", penalty=1.0),
    **consolidating("lwf", "Learning without Forgetting", penalty=1.0),
    **consolidating("dgr", "deep generative replay", passes=4),
}
"""Name -> method."""
