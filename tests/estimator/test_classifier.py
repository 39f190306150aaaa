from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import validation
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import Tensor, nn

from helpers.digits import BAD_ROWS, digits
from hge import GatedExperts
from hge.core.events import ExpertCreated
from hge.core.own_folder import hold
from hge.experts.replay import Replay, ReplayBatch
from hge.learning.checkpoint import SAVED_MODEL

EXEMPT = {
    "check_methods_subset_invariance": "asks for 1e-7; float32 products differ in the last bits with the number of rows"
}


@pytest.mark.slow
@parametrize_with_checks([GatedExperts(epochs=3)], expected_failed_checks=lambda estimator: EXEMPT)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_conformance(estimator: GatedExperts, check: Callable[[Any], None]) -> None:
    check(estimator)


def two_tasks(epochs: int = 3, **parameters: Any) -> GatedExperts:
    model = GatedExperts(**parameters)
    for low in (True, False):
        for _ in range(epochs):
            model.partial_fit(*digits(low))
    return model


@pytest.fixture(scope="module")
def learned() -> GatedExperts:
    return two_tasks()


@pytest.mark.slow
def test_learns_two_tasks_without_being_told(learned: GatedExperts) -> None:
    model, (X, y) = learned, digits()
    assert model.n_experts_ == 2
    assert [e.promoted for e in model.experts_] == [True, True]
    assert model.tree_.experts == [0, 1]
    assert [type(e) for e in model.events_].count(ExpertCreated) == 1
    assert model.score(X, y) > 0.95
    experts, confidence = model.predict_expert(X)
    assert (experts == (y >= 5)).mean() > 0.95
    assert ((confidence > 0) & (confidence <= 1)).all()


@pytest.mark.slow
def test_labels_may_be_strings_and_inputs_tensors() -> None:
    X, y = digits(low=True)
    names = np.array(["zero", "one", "two", "three", "four"])[y]
    model = GatedExperts(epochs=1).fit(torch.from_numpy(X), names)
    assert model.classes_.tolist() == ["four", "one", "three", "two", "zero"]
    assert (model.predict(torch.from_numpy(X)) == names).mean() > 0.95
    numbers = GatedExperts(epochs=1).fit(X, torch.from_numpy(y))
    np.testing.assert_array_equal(numbers.predict(X), y[[np.flatnonzero(names == n)[0] for n in model.predict(X)]])


@pytest.mark.slow
def test_giving_classes_changes_no_decision() -> None:
    with_classes, without = GatedExperts(), GatedExperts()
    for low in (False, True):
        X, y = digits(low)
        for _ in range(2):
            with_classes.partial_fit(X, y, classes=np.arange(10))
            without.partial_fit(X, y)
    assert with_classes.events_ == without.events_
    X, _ = digits()
    np.testing.assert_array_equal(with_classes.predict_proba(X), without.predict_proba(X))


def test_classes_that_have_not_come_have_probability_zero() -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X, y, classes=range(10))
    probabilities = model.predict_proba(X)
    assert probabilities.shape == (len(X), 10)
    np.testing.assert_allclose(probabilities[:, :5].sum(axis=1), 1)
    assert (probabilities[:, 5:] == 0).all()


def test_rows_short_of_a_batch_wait() -> None:
    X, y = digits(low=True)
    model = GatedExperts(batch_size=32).partial_fit(X[:20], y[:20])
    with pytest.raises(NotFittedError, match="20 rows wait for a batch of 32"):
        model.predict(X)
    assert model.rows_waiting_ == 20
    model.partial_fit(X[20:40], y[20:40])
    assert model.experts_[0].batches_trained == model.learner_.steps == 1
    assert model.rows_waiting_ == 8
    before = model.predict_proba(X)
    model.flush()
    assert model.experts_[0].batches_trained == 2
    assert model.rows_waiting_ == 0
    assert not np.array_equal(before, model.predict_proba(X))
    model.flush()
    assert model.experts_[0].batches_trained == 2


@pytest.mark.slow
def test_how_rows_are_cut_into_calls_does_not_matter() -> None:
    X, y = (rows[:600] for rows in digits())
    whole = GatedExperts().partial_fit(X, y).flush()
    pieces = GatedExperts()
    for start in range(0, len(X), 13):
        pieces.partial_fit(X[start : start + 13], y[start : start + 13])
    pieces.flush()
    np.testing.assert_array_equal(whole.predict_proba(X), pieces.predict_proba(X))


@pytest.mark.parametrize("batch_size", [1, 7, 5000])
def test_any_batch_size(batch_size: int) -> None:
    X, y = digits(low=True)
    model = GatedExperts(batch_size=batch_size, epochs=1, lr=0.01).fit(X[:50], y[:50])
    assert model.predict(X[:1]).shape == (1,)
    assert np.isfinite(model.predict_proba(X)).all()


@pytest.mark.slow
def test_batch_routing_sends_all_rows_to_one_expert(learned: GatedExperts) -> None:
    model = deepcopy(learned)
    model.set_params(routing="batch")
    X, y = digits(low=False)
    experts, confidence = model.predict_expert(X)
    assert set(experts.tolist()) == {1}
    assert len(confidence) == len(X)
    assert model.score(X, y) > 0.95


@pytest.mark.slow
def test_fit_forgets_and_the_same_seed_gives_the_same_model() -> None:
    X, y = digits(low=True)
    model = two_tasks(epochs=1).set_params(epochs=1)
    model.fit(X, y)
    fresh = clone(model).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), fresh.predict_proba(X))
    assert model.classes_.tolist() == list(range(5))
    other = clone(model).set_params(random_state=1).fit(X, y)
    assert not np.array_equal(model.predict_proba(X), other.predict_proba(X))


def test_survives_pickling_and_goes_on() -> None:
    X, y = (rows[:400] for rows in digits())
    model = GatedExperts().partial_fit(X[:200], y[:200])
    copy = pickle.loads(pickle.dumps(model))
    for m in (model, copy):
        m.partial_fit(X[200:], y[200:])
    np.testing.assert_array_equal(model.predict_proba(X), copy.predict_proba(X))


@pytest.mark.slow
def test_works_in_scikit_learns_tools() -> None:
    X, y = digits(low=True)
    assert cross_val_score(GatedExperts(epochs=2), X, y, cv=3).mean() > 0.9


class OwnAutoencoder(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(shape[0], 6), nn.Linear(3, shape[0])

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.down(x).chunk(2, dim=1)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        out: Tensor = self.up(z)
        return out


def own_net(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 50), nn.BatchNorm1d(50), nn.Tanh(), nn.Linear(50, outputs))


@pytest.mark.slow
def test_users_networks() -> None:
    X, y = digits(low=True)
    model = GatedExperts(net=own_net, gate_score="autoencoder", autoencoder=OwnAutoencoder, epochs=2).fit(X, y)
    assert model.score(X, y) > 0.9
    images = GatedExperts(net="resnet18", gate_score="autoencoder", autoencoder="conv", epochs=1, memory_rows=0)
    images.fit(X[:32].reshape(-1, 1, 8, 8), y[:32])
    assert images.predict(X[:3].reshape(-1, 1, 8, 8)).shape == (3,)


def too_few_outputs(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Linear(shape[0], 2)


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.filterwarnings("ignore")
def test_bad_rows_are_named_and_change_nothing(case: str) -> None:
    spoil, message = BAD_ROWS[case]
    X, y = (rows[:120] for rows in digits(low=True))
    model = GatedExperts().partial_fit(X[:50], y[:50], classes=range(10))
    with pytest.raises(ValueError, match=message):
        model.partial_fit(*spoil(X, y))
    model.partial_fit(X[50:], y[50:])
    np.testing.assert_array_equal(model.predict_proba(X), spared_model().predict_proba(X))
    assert model.events_ == spared_model().events_


@cache
def spared_model() -> GatedExperts:
    """Return a model that learned the same rows and got no bad ones."""
    X, y = (rows[:120] for rows in digits(low=True))
    return GatedExperts().partial_fit(X[:50], y[:50], classes=range(10)).partial_fit(X[50:], y[50:])


@pytest.mark.parametrize("case", ["NaN", "infinity", "feature count", "shape", "empty"])
def test_bad_rows_to_predict_are_named(case: str) -> None:
    spoil, message = BAD_ROWS[case]
    X, y = (rows[:64] for rows in digits(low=True))
    model = GatedExperts().partial_fit(X, y)
    with pytest.raises(ValueError, match=message):
        model.predict(spoil(X, y)[0])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"net": "transformer"}, "net: got 'transformer', expected one of mlp"),
        ({"net": "resnet18"}, r"resnet18: got inputs of shape \(64,\)"),
        ({"net": too_few_outputs}, r"net: got logits of shape \(1, 2\) for one row, expected \(1, 64\)"),
        ({"gate_score": "oracle"}, "gate_score: got 'oracle', expected one of sketch, class-sketch, autoencoder"),
        ({"batch_size": 0}, "batch_size: got 0, expected a whole number, at least 1"),
        ({"batch_size": 2.5}, "batch_size: got 2.5"),
        ({"class_capacity": 3}, "y: got class number 5, expected at most 3; set class_capacity higher"),
        ({"epsilon": "high"}, "epsilon: got 'high', expected a number"),
        ({"lr": -1}, "lr: got -1, expected a number above 0"),
        ({"device": "toaster"}, "device: got 'toaster'"),
        ({"epochs": 0}, "epochs: got 0"),
        ({"optimiser": "rms"}, "optimiser: got 'rms', expected one of sgd, adam"),
        ({"class_capacity": "a"}, "class_capacity: got 'a'"),
        ({"net": nn.Linear(64, 64)}, "net: got Linear, expected a factory"),
        ({"net": lambda shape: None}, "net: TypeError"),
        ({"net": lambda shape, outputs: 3}, "net: got int from the factory, expected an nn.Module"),
        ({"gate_score": "autoencoder", "autoencoder": own_net}, "autoencoder: TypeError"),
        ({"random_state": 1.5}, "random_state: got 1.5"),
        ({"epsilon": 10**400}, "epsilon: got 1000"),
        ({"promotion_window": 10**20}, "promotion_window: got 1000"),
        ({"random_state": -1}, "random_state: got -1, expected a whole number of 0 to"),
        ({"random_state": 2**70}, "random_state: got 1180591620717411303424, expected a whole number of 0 to"),
        ({"routing": "best"}, "routing: got 'best', expected one of stream"),
        ({"on_bad_batch": "Skip"}, "on_bad_batch: got 'Skip', expected one of raise, skip"),
        ({"scale": "min-max"}, "scale: got 'min-max', expected one of standard, none"),
        ({"precision": "fp64"}, "precision: got 'fp64', expected one of fp32"),
        ({"views": 0}, "views: got 0, expected a whole number, at least 1"),
        ({"views": 65}, r"views: got 65, expected 1 to 64 for inputs of shape \(64,\)"),
        ({"views": 2, "answer_views": 3}, "answer_views: got 3, expected 0 to 2, the number of views"),
    ],
)
def test_bad_parameters_are_named_and_the_old_model_stays(parameters: dict[str, Any], message: str) -> None:
    X, y = (rows[:64] for rows in digits(low=True))
    model = GatedExperts(epochs=1).fit(X, y)
    before = model.predict_proba(X)
    good = {name: model.get_params()[name] for name in parameters}
    model.set_params(**parameters)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    model.set_params(**good)
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize("name", ["routing", "on_bad_batch", "batch_size"])
def test_parameters_with_which_nothing_could_be_loaded_are_not_saved(name: str, tmp_path: Path) -> None:
    model = GatedExperts().partial_fit(*digits(low=True)).set_params(**{name: "x"})
    for use in (lambda: model.save(tmp_path / "model"), lambda: model.partial_fit(*digits(low=True)), model.flush):
        with pytest.raises(ValueError, match=f"{name}: got 'x'"):
            use()
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("parameters", [{"net": "resnet18"}, {"epsilon": -1}, {"routing": "x"}, {"net": "mpl"}])
def test_what_the_first_rows_would_raise_is_told_without_learning_them(parameters: dict[str, Any]) -> None:
    model = GatedExperts(**parameters)
    with pytest.raises(ValueError, match="got ") as told:
        model.check_batch(*digits(low=True))
    with pytest.raises(ValueError, match="got ") as raised:
        model.partial_fit(*digits(low=True))
    assert str(told.value) == str(raised.value)


def test_failed_first_call_leaves_an_unfitted_model() -> None:
    X, y = digits(low=True)
    model = GatedExperts(class_capacity=3)
    with pytest.raises(ValueError, match="class_capacity"):
        model.partial_fit(X, y)
    assert not [name for name in vars(model) if name.endswith("_")]
    attributes = [
        partial(getattr, model, name) for name in ("experts_", "tree_", "events_", "learner_", "rows_waiting_")
    ]
    for call in (lambda: model.predict(X), lambda: model.predict_expert(X), model.flush, *attributes):
        with pytest.raises(NotFittedError, match="has seen no rows yet"):
            call()
    model.set_params(class_capacity=5).partial_fit(X, y)
    with pytest.raises(ValueError, match="got class number 10, expected at most 5"):
        model.partial_fit(*digits(low=False))


def test_other_classes_later_are_an_error() -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X, y, classes=range(10))
    model.partial_fit(X, y, classes=range(10))
    with pytest.raises(ValueError, match="classes: got others than those known so far"):
        model.partial_fit(X, y, classes=range(9))
    with pytest.raises(ValueError, match="classes: got none"):
        GatedExperts().partial_fit(X, y, classes=[])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (range(20), "classes: got 20, expected at most 10; set class_capacity higher"),
        ([0.0, np.nan], "classes: got NaN"),
        (3, "classes: got an array of shape"),
        ([[0, 1]], "classes: got an array of shape"),
        ([0, "a"], "classes: got texts among others"),
    ],
)
def test_wrong_classes_are_no_bad_batch(classes: Any, message: str) -> None:
    X, y = digits(low=True)
    model = GatedExperts(class_capacity=10, on_bad_batch="skip")
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y, classes=classes)
    assert model.batches_skipped_ == 0


def test_columns_of_which_some_have_names_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = (rows[:64] for rows in digits(low=True))
    model = GatedExperts(epochs=1).fit(X, y)
    answers = model.predict_proba(X)
    mixed = X.copy()
    names = validation._get_feature_names

    def names_of(rows: Any) -> Any:  # as it does for a table of pandas, which we do not need
        if rows is mixed:
            raise TypeError("Feature names are only supported if all input features have string names")
        return names(rows)

    monkeypatch.setattr(validation, "_get_feature_names", names_of)
    with pytest.raises(TypeError, match="X: Feature names"):
        model.fit(mixed, y)
    np.testing.assert_array_equal(model.predict_proba(X), answers)
    fresh = GatedExperts(on_bad_batch="skip").partial_fit(mixed, y)
    assert (fresh.batches_skipped_, fresh.partial_fit(X, y).n_experts_) == (1, 1)


def test_a_window_needs_a_likelihood() -> None:
    X, y = (rows[:64] for rows in digits(low=True))
    model = GatedExperts(gate_score="autoencoder", routing="window", epochs=1).fit(X, y)
    model.set_params(gate_score="sketch")  # for the next fit
    with pytest.raises(ValueError, match="routing: got window with gate_score autoencoder"):
        model.predict(X)


@pytest.mark.parametrize("pool", ["eager", "stacked"])
def test_a_network_that_works_in_place_leaves_the_batch_alone(pool: str) -> None:
    X, y = digits(low=True)

    def build(shape: Any, outputs: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Dropout(0.3, inplace=True), torch.nn.Linear(shape[0], outputs))

    model = GatedExperts(net=build, pool=pool, epochs=1).fit(X[:320], y[:320])
    kept = np.concatenate([item.batch.x.numpy() for item in model.learner_.experts[0].replay.kept])
    assert {row.tobytes() for row in kept} <= {row.tobytes() for row in X.astype(np.float32)}


def test_batch_size_may_change_but_not_to_nonsense() -> None:
    X, y = digits(low=True)
    model, spared = (GatedExperts().partial_fit(X[:50], y[:50]) for _ in range(2))
    model.set_params(batch_size=-3)
    with pytest.raises(ValueError, match="batch_size: got -3"):
        model.partial_fit(*digits(low=False))
    model.set_params(batch_size=0)
    with pytest.raises(ValueError, match="batch_size: got 0"):
        model.flush()
    model.set_params(batch_size=32).partial_fit(X[50:], y[50:])
    spared.partial_fit(X[50:], y[50:])
    np.testing.assert_array_equal(model.predict_proba(X), spared.predict_proba(X))


def test_labels_are_told_apart_exactly() -> None:
    X, y = digits(low=True)
    keep = y < 3
    large = np.array([2**60, 2**60 + 1, 2**60 + 2], dtype=np.uint64)[y[keep]]
    model = GatedExperts(epochs=1).fit(X[keep], large)
    assert model.score(X[keep], large) > 0.95
    np.testing.assert_allclose(model.predict_proba(X[keep]).sum(axis=1), 1)
    with pytest.raises(ValueError, match="y: got labels of type float64 that cannot be told apart"):
        model.partial_fit(X[keep], large.astype(float))


@pytest.mark.slow
def test_copies_are_independent() -> None:
    model = two_tasks(epochs=1)
    before = model.events_
    copy = deepcopy(model)
    X, y = digits(low=False)
    copy.partial_fit(1 - X, y)
    assert model.events_ == before
    assert len(copy.events_) > len(before)


@pytest.mark.slow
def test_memory_does_not_hold_on_to_whole_calls() -> None:
    rows = np.random.default_rng(0).random((8000, 64), dtype=np.float32)
    model = GatedExperts(epochs=1).fit(rows, np.arange(8000) % 3)
    assert len(pickle.dumps(model)) < rows.nbytes


def test_callers_memory_and_its_layout_do_not_matter() -> None:
    X, y = (rows[:300] for rows in digits(low=True))
    plain = GatedExperts().partial_fit(X, y)
    frozen, changing = X.copy(), X.copy()
    frozen.flags.writeable = False
    mutated = GatedExperts()
    for start in range(0, len(X), 100):
        part = changing[start : start + 100]
        mutated.partial_fit(part, y[start : start + 100])
        part[:] = 9.0
    for model in (GatedExperts().partial_fit(X[::-1][::-1], y), GatedExperts().partial_fit(frozen, y), mutated):
        np.testing.assert_array_equal(plain.predict_proba(frozen), model.predict_proba(X[::-1])[::-1])


def test_interrupted_call_loses_and_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:40], y[:40])
    add, learned = Replay.add, []

    def interrupted(replay: Replay, batch: ReplayBatch, random_integer: int) -> None:
        if len(learned) == 2:
            raise KeyboardInterrupt
        learned.append(batch)
        add(replay, batch, random_integer)

    monkeypatch.setattr(Replay, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X[40:300], y[40:300])
    monkeypatch.undo()
    assert model.rows_waiting_ == 300 - 32 - 2 * 32 - 32
    assert len(model.learner_.recent) == model.learner_.steps == 3, "the batch that was interrupted is not among them"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_learns_whatever_grad_mode_the_caller_is_in(mode: Callable[[], Any]) -> None:
    X, y = (rows[:128] for rows in digits(low=True))
    with mode():
        model = GatedExperts().partial_fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), GatedExperts().partial_fit(X, y).predict_proba(X))


@pytest.mark.slow
def test_broad_newcomer_does_not_take_an_old_task() -> None:
    """Rows that suit the newcomer even better than its own suit their old expert better still."""
    X, y = digits(low=True)
    narrow = 0.4 + 0.2 * X
    noise = np.random.default_rng(0).random((640, 64), dtype=np.float32)
    model = GatedExperts()
    for _ in range(4):
        model.partial_fit(narrow, y)
    before = model.score(narrow, y)
    for _ in range(2):
        model.partial_fit(noise, 5 + (noise[:, 0] > 0.5))
    assert model.n_experts_ == 2
    assert model.score(narrow, y) > before - 0.01
    assert (model.predict_expert(noise)[0] == 1).mean() > 0.99


def test_learns_from_generators_and_data_loaders() -> None:
    X, y = (rows[:300] for rows in digits(low=True))
    whole = GatedExperts().partial_fit(X, y)
    parts = GatedExperts().fit_stream((X[i : i + 50], y[i : i + 50]) for i in range(0, len(X), 50))
    rows = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y))
    loader = GatedExperts().fit_stream(torch.utils.data.DataLoader(rows, batch_size=20))
    for model in (parts, loader):
        np.testing.assert_array_equal(model.predict_proba(X), whole.predict_proba(X))


@pytest.mark.slow
@pytest.mark.parametrize("organisation", ["tree", "lca"])
def test_experts_may_be_organised_as_a_tree(organisation: str) -> None:
    model = two_tasks(organisation=organisation)
    X, y = digits()
    assert model.n_experts_ == 2
    assert sorted(model.tree_.experts) == [0, 1]
    assert model.score(X, y) > 0.95
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="organisation: got 'bush', expected one of flat, tree, lca"):
        GatedExperts(organisation="bush").fit(X, y)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters", [{}, {"organisation": "tree"}, {"joint": True, "gate_score": "class-sketch"}, {"views": 2}]
)
def test_a_saved_model_goes_on_as_if_nothing_had_happened(parameters: dict[str, Any], tmp_path: Path) -> None:
    low, high = digits(low=True), digits(low=False)
    words = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
    model = GatedExperts(**parameters)
    for X, y in (low, low, high):
        model.partial_fit(X[:250], words[y[:250]])  # not a multiple of the batch: some rows wait
    model.save(tmp_path / "model")
    twin = GatedExperts.load(tmp_path / "model")
    assert twin.rows_waiting_ == model.rows_waiting_ > 0
    np.testing.assert_array_equal(model.predict_proba(high[0]), twin.predict_proba(high[0]))
    for each in (model, twin):
        each.partial_fit(high[0], words[high[1]])
        each.flush()
    np.testing.assert_array_equal(model.predict_proba(low[0]), twin.predict_proba(low[0]))
    assert list(model.classes_) == list(twin.classes_)
    assert repr(model.experts_) == repr(twin.experts_)
    assert model.get_params() == twin.get_params()


def test_parameters_from_numpy_are_saved(tmp_path: Path) -> None:
    X, y = digits(low=True)
    given: dict[str, Any] = {"batch_size": np.int64(8), "epsilon": np.float32(4.5), "sticky": np.bool_(True)}
    model = GatedExperts(**given, random_state=np.random.RandomState(0)).partial_fit(X[:50], y[:50])  # type: ignore[arg-type]
    model.save(tmp_path)
    twin = GatedExperts.load(tmp_path)
    assert {name: getattr(twin, name) for name in given} == given
    assert twin.random_state == model.learner_.keys.seed, "which was drawn from the RandomState"
    for each in (model, twin):
        each.partial_fit(X[50:100], y[50:100])
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))


WISHES: list[dict[str, Any]] = [
    {"lr": 0.5, "optimiser": "sgd"},
    {"memory_rows": 0},
    {"joint": True, "gate_score": "class-sketch"},
    {"net": "mlp-wide", "class_capacity": 3, "scale": "none", "organisation": "tree"},
    {"routing": "sample", "epochs": 3},
]


@pytest.mark.parametrize("wishes", WISHES)
def test_parameters_that_wait_for_the_next_fit_are_saved_beside_the_model(
    wishes: dict[str, Any], tmp_path: Path
) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:100], y[:100])
    plain = deepcopy(model)
    model.set_params(**wishes).save(tmp_path)
    twin = GatedExperts.load(tmp_path)
    assert twin.get_params() == model.get_params()
    twin.save(tmp_path)
    again = GatedExperts.load(tmp_path)
    assert again.get_params() == model.get_params()
    if "routing" in wishes:  # takes effect immediately
        plain.set_params(routing=wishes["routing"])
    for each in (plain, model, twin, again):
        each.partial_fit(X[100:200], y[100:200])
        np.testing.assert_array_equal(each.predict_proba(X[:50]), plain.predict_proba(X[:50]))


def test_a_parameter_given_to_load_is_no_wish(tmp_path: Path) -> None:
    X, y = digits(low=True)
    GatedExperts().partial_fit(X[:50], y[:50]).set_params(lr=0.5, epochs=3).save(tmp_path)
    model = GatedExperts.load(tmp_path, lr=0.1)
    assert (model.lr, model.epochs) == (0.1, 3)
    model.save(tmp_path)
    assert GatedExperts.load(tmp_path).lr == 0.1


def test_save_leaves_the_files_of_others_alone(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:50], y[:50])
    foreign = ["checkpoint-3.json", "config.json", "model.safetensors"]
    for name in foreign:
        (tmp_path / name).write_text("[1]")
    with pytest.raises(ValueError, match=r"checkpoint-3\.json in the way, not written by hge for a saved model"):
        model.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == foreign
    (tmp_path / "checkpoint-3.json").unlink()
    for _ in range(3):
        model.partial_fit(X[50:100], y[50:100]).save(tmp_path)
    assert [(tmp_path / name).read_text() for name in foreign[1:]] == ["[1]"] * 2
    assert GatedExperts.load(tmp_path).learner_.steps == model.learner_.steps


def test_save_is_refused_while_another_process_saves(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:50], y[:50])
    with hold(tmp_path, SAVED_MODEL), pytest.raises(ValueError, match=rf"in use by process {os.getpid()} on"):
        model.save(tmp_path)
    model.save(tmp_path)


def test_a_parameter_that_cannot_be_saved_is_named_before_anything_is_written(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X, y).set_params(lr=torch.tensor(0.1))
    with pytest.raises(ValueError, match=r"lr: got tensor\(0.1000\), expected a number, a text or None to save it"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("path", [None, 3, "a\0b"])
def test_what_is_no_folder_name_is_told(path: Any) -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X[:50], y[:50])
    for call in (model.save, GatedExperts.load):
        with pytest.raises((TypeError, ValueError), match="path: got "):
            call(path)


def test_texts_of_any_type_are_saved(tmp_path: Path) -> None:
    X, y = (rows[:128] for rows in digits(low=True))
    model = GatedExperts(epochs=1).fit(X, np.array([f"digit {label}" for label in y], dtype=object))
    model.save(tmp_path)
    assert GatedExperts.load(tmp_path).predict(X).tolist() == model.predict(X).tolist()


def test_loading_says_what_is_wrong(tmp_path: Path) -> None:
    X, y = (rows[:64] for rows in digits(low=True))
    with pytest.raises(NotFittedError):
        GatedExperts().save(tmp_path)
    with pytest.raises(ValueError, match="no checkpoint here"):
        GatedExperts.load(tmp_path)
    own = GatedExperts(net=lambda shape, outputs: torch.nn.Linear(shape[0], outputs)).partial_fit(X, y)
    own.save(tmp_path)
    with pytest.raises(ValueError, match="net: got nothing, expected the factory of the model"):
        GatedExperts.load(tmp_path)
    with pytest.raises(ValueError, match="nett: no parameter of GatedExperts"):
        GatedExperts.load(tmp_path, nett=own.net)
    with pytest.raises(ValueError, match="expert's state"):
        GatedExperts.load(tmp_path, net="mlp")
    same = GatedExperts.load(tmp_path, net=own.net)
    np.testing.assert_array_equal(own.predict(X), same.predict(X))
