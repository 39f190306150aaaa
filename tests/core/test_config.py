from __future__ import annotations

import json

import pytest

from hge.core.config import LearnerConfig, OptimiserConfig, RunConfig, ScoreConfig
from hge.core.settings import override
from hge.data.catalogue import SCENARIOS
from hge.experiments.recipes import build_config


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("learner.sticky=false", ("learner", "sticky"), False),
        ("learner.sticky=False", ("learner", "sticky"), False),
        ("score.kl_weight=elbo", ("score", "kl_weight"), "elbo"),
        ("score.kl_weight=0.5", ("score", "kl_weight"), 0.5),
        ("score.components=8", ("score", "components"), 8),
        ("optimiser.name=adam", ("optimiser", "name"), "adam"),
        ("net=resnet18", ("net",), "resnet18"),
        ("epochs=3", ("epochs",), 3),
        ("learner.epsilon=1e1", ("learner", "epsilon"), 10.0),
    ],
)
def test_set(assignment: str, path: tuple[str, ...], value: object) -> None:
    found: object = override(RunConfig("split-digits"), assignment)
    for name in path:
        found = getattr(found, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("learner.epsilon", "expected key=value"),
        ("learner.epsilon=high", "learner.epsilon: got 'high', expected a number"),
        ("learner.epsilon=-1", "epsilon: got -1.0, expected a number above 0"),
        ("learner.sticky=1", "learner.sticky: got '1', expected true or false"),
        ("learner=3", "learner: expected a setting inside learner"),
        ("epochs.x=3", "epochs.x: no such setting"),
        ("epochs=1.5", "epochs: got '1.5', expected a whole number"),
        ("epochs=0", "epochs: got 0, expected at least 1"),
        ("nonsense=1", "nonsense: no such setting; a run has scenario, method, recipe, ..."),
        ("score.name=oracle", "score.name: got 'oracle', expected 'sketch' or 'class-sketch' or 'autoencoder'"),
        ("score.kl_weight=much", "score.kl_weight: got 'much', expected a number or 'elbo'"),
        ("optimiser.lr=nan", "optimiser.lr: got 'nan', expected a number"),
        ("learner.epsilon=1e400", "learner.epsilon: got '1e400', expected a number"),
        ("learner.promotion_window=100000000000000000000", "learner.promotion_window: got"),
        ("method=ge-no-review", "method: cannot be overridden"),
        ("recipe=paper", "recipe: cannot be overridden"),
        ("", "expected key=value"),
        ("=3", ": no such setting"),
    ],
)
def test_set_says_what_is_wrong(assignment: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        override(RunConfig("split-digits"), assignment)


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ValueError, match="alpha: got 1, expected at least 0 and below 1"):
        LearnerConfig(alpha=1)
    with pytest.raises(ValueError, match="lr: got 0, expected"):
        OptimiserConfig(lr=0)
    with pytest.raises(ValueError, match="epsilon: got 'x', expected a number"):
        LearnerConfig(epsilon="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kl_weight: got -1"):
        ScoreConfig(kl_weight=-1)


def test_config_is_plain_json() -> None:
    config = build_config("permuted-digits", "ge-no-review", "paper", epochs_scale=0.1)
    assert json.loads(json.dumps(config.as_json())) == config.as_json()
    assert config.epochs == 2
    assert config.learner.review is False


APPENDIX = {
    "pmnist": (0.98, 40),
    "smnist": (0.98, 40),
    "cif10": (0.95, 200),
    "cif100-10": (0.75, 400),
    "cif100-20": (0.80, 400),
    "imgnet-10": (0.5, 400),
    "imgnet-20": (0.65, 400),
    "mnist-kmnist": (0.98, 100),
    "mnist-cif10": (0.98, 200),
    "cif10-inv": (0.95, 200),
    "cif-imgnet": (0.5, 400),
}
WITH_ADAM = {"cif100-10", "cif100-20", "imgnet-10", "imgnet-20", "cif-imgnet"}
WITH_MLP = {"pmnist", "smnist", "mnist-kmnist"}


@pytest.mark.parametrize("scenario", APPENDIX)
def test_paper_recipe_is_the_papers(scenario: str) -> None:
    config = build_config(scenario, recipe="paper")
    learner, optimiser = config.learner, config.optimiser
    assert (learner.epsilon, learner.alpha, learner.review_threshold) == (4, 0.9, 20)
    assert (learner.recent_capacity, learner.replay_capacity) == (20, 10)
    assert (learner.promotion_window, learner.promotion_rate) == (50, 0.5)
    assert not learner.sticky
    assert not learner.newcomers_answer
    assert not learner.signed_deviation
    assert learner.review_last_used
    score = config.score
    assert (score.name, score.kl_weight, score.variational, score.sampled) == ("autoencoder", 1, True, True)
    rate, epochs = APPENDIX[scenario]
    assert (config.epochs, config.batch_size, config.test_batch_size) == (epochs, 128, 128)
    hge = build_config(scenario, "hge", "paper").learner
    assert (hge.organisation, hge.promotion_rate, hge.path_coverage) == ("lca", rate, 0.98)
    if scenario in WITH_ADAM:
        assert (optimiser.name, optimiser.lr, optimiser.weight_decay) == ("adam", 0.001, 1e-4)
    else:
        assert (optimiser.name, optimiser.lr, optimiser.momentum, optimiser.weight_decay) == ("sgd", 0.01, 0.9, 1e-4)
    nets = ("mlp", "mlp", 0) if scenario in WITH_MLP else ("resnet18", "conv", 1)
    assert (config.net, config.autoencoder, optimiser.clip_norm) == nets


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_every_recipe(scenario: str) -> None:
    for recipe in ("default", "paper"):
        for method in ("ge", "hge"):
            assert build_config(scenario, method, recipe).scenario == scenario


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "scenario: got 'nowhere', expected one of split-digits"),
        (("split-digits", "magic"), "method: got 'magic', expected one of ge, ge-no-review, hge, organise"),
        (("split-digits", "ge", "secret"), "recipe: got 'secret', expected one of default, paper"),
    ],
)
def test_unknown_names_are_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_config(*arguments)
