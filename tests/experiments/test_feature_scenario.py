"""`hge run --set features=NAME`, with a tiny network in the backbone's place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from hge.core.config import LearnerConfig, RunConfig
from hge.core.randomness import Keys
from hge.core.settings import override
from hge.core.types import as_float
from hge.data.fingerprint import fingerprint
from hge.experiments.build import build_scenario, check
from hge.experiments.feature_scenario import with_features
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.experts.backbones import BACKBONES
from hge.learning.online import OnlineLearner, Step


@pytest.fixture(autouse=True)
def backbone(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A random convolution by the backbone's name."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 4), nn.ReLU(), nn.Flatten())
    monkeypatch.setitem(BACKBONES, "efficientnet-lite0", lambda: net)
    return net


def settings(method: str = "ge") -> RunConfig:
    config = override(build_config("recurring-digits", method), "features=efficientnet-lite0")
    return replace(config, epochs=10, tasks=2)


def test_every_row_is_replaced_by_its_features(backbone: nn.Module) -> None:
    config = settings()
    rows = build_scenario(config, Keys(0), None)
    scenario = with_features(rows, config, None)
    assert scenario.shape == (100,)
    assert (scenario.visits, scenario.classes) == (rows.visits, rows.classes)
    assert with_features(rows, replace(config, features=""), None) is rows
    for old, new in zip(rows.tasks, scenario.tasks, strict=True):
        for before, after in ((old.train, new.train), (old.test, new.test)):
            some = torch.tensor([5, 0, 7])
            with torch.no_grad():
                expected = backbone(as_float(before.batch(some).x))
            torch.testing.assert_close(after.batch(some).x, expected)
            assert after.batch(some).y.tolist() == before.batch(some).y.tolist()
            assert len(after) == len(before)
    assert fingerprint(scenario) != fingerprint(rows)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ge", "slda"])
def test_a_run_learns_features_and_says_so(method: str, tmp_path: Path) -> None:
    result = run(settings(method), tmp_path)
    assert result["accuracy_sample"] > 85
    assert result["protocol"]["changed"] == {"features": "efficientnet-lite0"}
    assert result["data"] == run(replace(settings(method), features=""), tmp_path / "rows")["data"]


def test_the_recipe_for_features_is_one_of_photographs() -> None:
    for method in ("ge", "hge", "er", "hcl-fr", "tame"):
        config = build_config("cif100-10", method, "backbone")
        check(config)
        assert (config.features, config.net, config.augment) == ("efficientnet-lite0", "mlp-wide", False)
    with pytest.raises(ValueError, match="recipe: got 'backbone' for smnist, expected a scenario of photographs"):
        build_config("smnist", "ge", "backbone")
    with pytest.raises(ValueError, match="discriminant: got True, expected joint=True beside it"):
        override(build_config("cif10"), "learner.discriminant=true")


@pytest.mark.slow
def test_an_interrupted_run_with_a_linear_model_of_all_rows_ends_the_same(tmp_path: Path) -> None:
    config = replace(settings(), learner=LearnerConfig(joint=True, discriminant=True))

    def stop(step: Step, total: int, learner: OnlineLearner) -> None:
        if step.step == 25:
            raise KeyboardInterrupt

    whole = run(config, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "parts", stop, checkpoint_every=10)
    again = run(config, tmp_path / "parts", resume=True)
    assert again["accuracy_sample"] == whole["accuracy_sample"]
    assert (tmp_path / "parts/events.jsonl").read_bytes() == (tmp_path / "whole/events.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ("features=resnet", "features: got 'resnet', expected one of efficientnet-lite0"),
        ("net=conv4", "net: got 'conv4' with features, which are rows; expected mlp or mlp-wide"),
        ("augment=true", "augment: got true with features, which are computed once; expected false"),
        ("views=4", "views: got 4 with features, which are computed once; expected 1"),
    ],
)
def test_settings_that_do_not_go_with_features_are_named(changed: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check(override(settings(), changed))


def test_an_autoencoder_of_images_does_not_go_with_features() -> None:
    config = override(override(settings(), "score.name=autoencoder"), "autoencoder=conv")
    with pytest.raises(ValueError, match="autoencoder: got 'conv' with features, which are rows; expected mlp"):
        check(config)
