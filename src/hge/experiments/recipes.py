"""Recipes: scenario × method -> RunConfig. The library's own settings, and the paper's (appendix)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hge.core.config import LearnerConfig, OptimiserConfig, RunConfig, ScoreConfig
from hge.core.settings import by_name
from hge.data.catalogue import SCENARIOS, PaperSettings
from hge.experiments.methods import METHODS

RECIPE_INDEPENDENT = (
    *("tasks", "epochs", "seed", "batch_size", "test_batch_size", "mix", "visits", "blend"),
    *("device", "pool", "precision", "idle_on_host", "routing", "track"),
)
"""Settings that are independent of the recipe: size of the run, stream and hardware."""

PERMUTED = ("pmnist", "permuted-digits")
"""Scenarios whose tasks differ so much that a sketch per expert routes every row right (docs/gates.md)."""
EPOCHS_ON_FEATURES = 5
IMAGES_OF_DIGITS = ("smnist", "mnist-kmnist")
"""Scenarios of digits whose neighbouring pixels belong together, though the paper's MLP sees rows."""


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
    config = METHODS[method].configure(RECIPES[recipe](scenario), SCENARIOS[scenario].paper.promotion_rate)
    return replace(config, method=method, epochs=max(1, round(config.epochs * epochs_scale)))


def differences(config: RunConfig) -> dict[str, Any]:
    """Return the settings in which a run differs from its recipe.

    >>> from hge.core.settings import override
    >>> differences(override(build_config("split-digits"), "learner.epsilon=5"))
    {'learner.epsilon': 5.0}
    """
    recipe = by_name(build_config(config.scenario, config.method, config.recipe).as_json())
    return {name: value for name, value in by_name(config.as_json()).items() if value != recipe[name]}


def changes(config: RunConfig) -> dict[str, Any]:
    """Return these settings, except those that a run's protocol states anyway and those that its method ignores."""
    ignored = "tame." if config.method != "tame" else ()
    return {
        name: value
        for name, value in differences(config).items()
        if name not in RECIPE_INDEPENDENT and not name.startswith(ignored)
    }


def default(scenario: str) -> RunConfig:
    """Return the library's settings: sketches, sticky, newcomers answer.

    Where it is needed and experts are MLPs, a sketch per class and the joint score, which asks all experts about a
    row; with ResNets that would be costly.
    """
    info = SCENARIOS[scenario]
    settings = info.paper
    joint = not settings.convolutional and scenario not in PERMUTED
    return RunConfig(
        scenario=scenario,
        recipe="default",
        tasks=info.tasks,
        epochs=settings.epochs,
        batch_size=info.batch_size,
        test_batch_size=info.batch_size,
        net="resnet18" if settings.convolutional else "mlp",
        autoencoder="conv" if settings.convolutional else "mlp",
        optimiser=_papers_optimiser(settings) if settings.convolutional else OptimiserConfig(),
        score=ScoreConfig(name="class-sketch" if joint else "sketch"),
        learner=LearnerConfig(joint=joint),
    )


def paper(scenario: str) -> RunConfig:
    """Return the paper's settings: Algorithm 1 (docs/paper.md: readings), a variational autoencoder, its optimiser."""
    return replace(
        default(scenario),
        recipe="paper",
        score=ScoreConfig(name="autoencoder", kl_weight=1.0, sampled=True),
        optimiser=_papers_optimiser(SCENARIOS[scenario].paper),
        learner=LearnerConfig(sticky=False, newcomers_answer=False, promote_by_replay=False, robust_review=False),
    )


def best(scenario: str) -> RunConfig:
    """Return the best settings on validation data: a sketch per class, the joint score, averaged weights.

    For images of digits four narrow convolutions, for rows an MLP four times as wide as the default; for photographs
    four convolutions, trained on flipped and cropped images and their rotations (results/choices/views).
    """
    config = default(scenario)
    convolutional = SCENARIOS[scenario].paper.convolutional
    images = scenario in IMAGES_OF_DIGITS
    return replace(
        config,
        recipe="best",
        score=ScoreConfig(name="class-sketch"),
        learner=LearnerConfig(joint=True),
        net="conv4" if convolutional else "conv4-narrow" if images else "mlp-wide",
        images=images,
        augment=convolutional and "mnist" not in scenario,  # a flipped digit is not a digit
        views=4 if convolutional or images else 1,
        optimiser=OptimiserConfig(average=0.99),
    )


def backbone(scenario: str) -> RunConfig:
    """Return settings for photographs seen through a backbone that was pretrained on ImageNet: rows of features.

    A wide MLP learns these in a few epochs; a linear model of all rows completes the joint score.
    """
    config = default(scenario)
    if not SCENARIOS[scenario].paper.convolutional:
        raise ValueError(f"recipe: got 'backbone' for {scenario}, expected a scenario of photographs")
    return replace(
        config,
        recipe="backbone",
        epochs=EPOCHS_ON_FEATURES,
        features="efficientnet-lite0",
        net="mlp-wide",
        autoencoder="mlp",
        score=ScoreConfig(name="class-sketch"),
        learner=LearnerConfig(joint=True, discriminant=True),
        optimiser=OptimiserConfig(average=0.99),
    )


def _papers_optimiser(settings: PaperSettings) -> OptimiserConfig:
    clip_norm = 1.0 if settings.convolutional else 0.0  # docs/paper.md, reading 7
    if settings.adam:
        return OptimiserConfig(name="adam", lr=0.001, weight_decay=1e-4, clip_norm=clip_norm)
    return OptimiserConfig(name="sgd", lr=0.01, momentum=0.9, weight_decay=1e-4, clip_norm=clip_norm)


RECIPES = {"default": default, "paper": paper, "best": best, "backbone": backbone}
