"""Recipes: scenario × method -> RunConfig. The library's own settings, and the paper's (appendix)."""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

from hge.config import LearnerConfig, Method, OptimiserConfig, RunConfig, ScoreConfig
from hge.data.scenarios import SCENARIOS

PAPERS_HGE_PROMOTION_RATE = {"split-digits": 0.98, "permuted-digits": 0.98, "recurring-digits": 0.98}
"""ε_promotion of HGE per scenario (appendix); the digits take that of the MNIST scenarios."""

METHODS: tuple[str, ...] = get_args(Method)


def build_config(scenario: str, method: str = "ge", recipe: str = "default", *, epochs_scale: float = 1.0) -> RunConfig:
    """Return the settings of a run.

    >>> build_config("split-digits", recipe="paper").score.name
    'autoencoder'
    """
    if scenario not in SCENARIOS:
        raise ValueError(f"scenario: got {scenario!r}, expected one of {', '.join(SCENARIOS)}")
    if method not in METHODS:
        raise ValueError(f"method: got {method!r}, expected one of {', '.join(METHODS)}")
    if recipe not in RECIPES:
        raise ValueError(f"recipe: got {recipe!r}, expected one of {', '.join(RECIPES)}")
    if not 0 < epochs_scale <= 1e6:
        raise ValueError(f"epochs_scale: got {epochs_scale}, expected a number above 0, at most 1e6")
    config = RECIPES[recipe](scenario)
    learner = replace(config.learner, review=method != "ge-no-review")
    if method == "hge" and recipe == "paper":
        learner = replace(learner, organisation="lca", promotion_rate=PAPERS_HGE_PROMOTION_RATE[scenario])
    elif method == "hge":
        learner = replace(learner, organisation="tree")
    epochs = max(1, round(config.epochs * epochs_scale))
    return replace(config, method=cast(Method, method), learner=learner, epochs=epochs)


def default(scenario: str) -> RunConfig:
    """The library's settings: subspace score, sticky, newcomers answer."""
    info = SCENARIOS[scenario]
    return RunConfig(
        scenario=scenario,
        recipe="default",
        tasks=info.tasks,
        epochs=info.epochs,
        batch_size=info.batch_size,
        test_batch_size=info.batch_size,
    )


def paper(scenario: str) -> RunConfig:
    """The paper's settings: Algorithm 1 to the letter, a variational autoencoder of KL weight 1, its optimiser."""
    return replace(
        default(scenario),
        recipe="paper",
        score=ScoreConfig(name="autoencoder", kl_weight=1.0),
        optimiser=OptimiserConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4, clip_norm=0.0),
        learner=LearnerConfig(sticky=False, review_newcomers=False, newcomers_answer=False),
    )


RECIPES = {"default": default, "paper": paper}
