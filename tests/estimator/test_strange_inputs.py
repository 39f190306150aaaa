"""Any input under `on_bad_batch="skip"` is learned or skipped; without it, it is an error that names the argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

from hge import GatedExperts
from hge.core.types import Batch, batch_fault

FEATURES = 6
ROWS = np.random.default_rng(0).random((8, FEATURES), dtype=np.float32)
LABELS = np.arange(8) % 3


class Raises:
    """An object that cannot be looked at."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(name)


class NoArray:
    def __array__(self, *_: object, **__: object) -> Any:
        raise RuntimeError("not an array")


class NoLength:
    def __len__(self) -> int:
        raise KeyError("length")


BAD_ROWS: dict[str, Callable[[], Any]] = {
    "overflows float32": lambda: ROWS.astype(np.float64) * 1e300,
    "overflows float64": lambda: ROWS.astype(np.longdouble) * np.longdouble("1e400"),
    "the least integer": lambda: np.full((8, FEATURES), -(2**63)),
    "huge integers": lambda: [[10**400] * FEATURES] * 8,
    "a huge decimal": lambda: np.array([[Decimal("1e999")] * FEATURES] * 8, dtype=object),
    "meta": lambda: torch.empty(8, FEATURES, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.rand(FEATURES)] * 8),
    "jagged": lambda: torch.nested.nested_tensor([torch.rand(FEATURES)] * 8, layout=torch.jagged),
    "conjugate": lambda: torch.rand(8, FEATURES, dtype=torch.complex64).conj(),
    "complex": lambda: ROWS.astype(np.clongdouble),
    "sparse": lambda: torch.from_numpy(ROWS).to_sparse(),
    "float8": lambda: torch.from_numpy(ROWS).to(torch.float8_e4m3fn),
    "tensors that require gradients": lambda: [torch.rand(FEATURES, requires_grad=True)] * 8,
    "masked": lambda: np.ma.masked_array(ROWS, mask=ROWS > 0.5),
    "texts": lambda: np.full((8, FEATURES), "a"),
    "records": lambda: np.zeros(8, dtype=[("a", "f4")]),
    "objects": lambda: np.full((8, FEATURES), object()),
    "no rows": lambda: ROWS[:0],
    "no columns": lambda: ROWS[:, :0],
    "a number": lambda: np.array(3.0),
    "ragged": lambda: [[1, 2], [3]],
    "raises": Raises,
    "no array": NoArray,
}
BAD_LABELS: dict[str, Callable[[], Any]] = {
    "huge": lambda: [10**400, 1, 2, 3, 4, 5, 6, 7],
    "65 bits": lambda: np.array([2**64, 1, 2, 3, 4, 5, 6, 7], dtype=object),
    "of two kinds of integer": lambda: [-1, 2**63, 1, 1, 1, 1, 1, 1],
    "meta": lambda: torch.empty(8, dtype=torch.long, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.rand(4), torch.rand(4)]),
    "conjugate": lambda: torch.rand(8, dtype=torch.complex64).conj(),
    "masked": lambda: np.ma.masked_array(LABELS, mask=LABELS > 1),
    "float64's largest": lambda: np.full(8, 1e300),
    "dates": lambda: np.zeros(8, dtype="M8[s]"),
    "texts among numbers": lambda: [0, 1, "a", 2, 0, 1, "a", 2],
    "objects": lambda: np.array([object()] * 8),
    "raises": Raises,
    "no array": NoArray,
    "no length": NoLength,
}


@pytest.fixture(scope="module")
def fitted() -> GatedExperts:
    return GatedExperts(class_capacity=6, batch_size=8, on_bad_batch="skip").partial_fit(ROWS, LABELS)


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("started", [True, False], ids=["started", "first"])
@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_learned_are_skipped(name: str, started: bool, fitted: GatedExperts) -> None:
    model = fitted if started else GatedExperts(class_capacity=6, batch_size=8, on_bad_batch="skip")
    before = model.batches_skipped_
    model.partial_fit(BAD_ROWS[name](), LABELS)
    assert model.batches_skipped_ == before + 1
    model.set_params(on_bad_batch="raise")
    with pytest.raises((ValueError, TypeError), match=r"\bX\b"):
        model.partial_fit(BAD_ROWS[name](), LABELS)
    model.set_params(on_bad_batch="skip")


@pytest.mark.filterwarnings("ignore::UserWarning:torch")
@pytest.mark.parametrize("name", BAD_LABELS)
def test_labels_that_cannot_be_learned_are_skipped(name: str, fitted: GatedExperts) -> None:
    before = fitted.batches_skipped_
    fitted.partial_fit(ROWS, BAD_LABELS[name]())
    assert fitted.batches_skipped_ == before + 1


@pytest.mark.parametrize(
    "rows",
    [
        torch.complex(torch.zeros(8, FEATURES), -torch.from_numpy(ROWS)).conj().imag,
        ROWS.astype(np.longdouble),
        ROWS.astype(np.float16),
        torch.from_numpy(ROWS).bfloat16(),
        np.ma.masked_array(ROWS),
        ROWS.astype(">f8")[::-1],
    ],
    ids=["negative bit", "longdouble", "float16", "bfloat16", "masked, without a mask", "another byte order"],
)
def test_strange_rows_that_can_be_learned(rows: Any, fitted: GatedExperts) -> None:
    before = fitted.batches_skipped_
    fitted.partial_fit(rows, LABELS)
    assert fitted.batches_skipped_ == before


@pytest.mark.parametrize("labels", [[0, 1, "a", 2], (0, "1", 2, 3), np.array([0, "a", 1, None], dtype=object)])
def test_texts_among_other_labels_are_refused(labels: Any) -> None:
    """A number would be learned as the text of its digits, and predicted as one."""
    with pytest.raises(ValueError, match="y: got texts among other labels, expected labels of one kind"):
        GatedExperts(class_capacity=6, batch_size=4).partial_fit(ROWS[:4], labels)


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (3, "got int, expected an iterable of pairs (X, y)"),
        ([(ROWS, LABELS), ROWS], "got ndarray as item 1, expected a tuple or list of two, (X, y)"),
        ([(ROWS, LABELS), ROWS[:2]], "got ndarray as item 1"),  # two rows are no pair
        ([(ROWS, LABELS), (ROWS, LABELS, LABELS)], "got tuple of 3 as item 1"),
        ([(ROWS, LABELS), 3], "got int as item 1"),
        ((ROWS, LABELS), "got ndarray as item 0"),
    ],
)
def test_a_stream_consists_of_pairs(stream: Any, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"stream: {told}")):
        GatedExperts(class_capacity=6, batch_size=8).fit_stream(stream)


def read_only(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def unaligned(x: Any) -> Any:
    return np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(x.dtype).reshape(x.shape)


@pytest.mark.parametrize(
    "layout", [np.asfortranarray, read_only, unaligned, lambda x: np.repeat(x, 2, axis=0)[::2], lambda x: x[::-1][::-1]]
)
def test_the_memory_layout_of_rows_changes_nothing(layout: Callable[[Any], Any]) -> None:
    plain, other = (GatedExperts(class_capacity=6, batch_size=8) for _ in range(2))
    for _ in range(3):
        plain.partial_fit(ROWS, LABELS)
        other.partial_fit(layout(ROWS), layout(LABELS))
    assert np.array_equal(plain.predict_proba(ROWS), other.predict_proba(layout(ROWS)))


def test_rows_may_be_overwritten_after_the_call() -> None:
    """Callers reuse a buffer: rows that wait for a full batch are copies."""
    plain, other = (GatedExperts(class_capacity=6, batch_size=8) for _ in range(2))
    x, y = np.empty_like(ROWS[:3]), np.empty_like(LABELS[:3])
    for start in (0, 3, 1, 4, 2, 5):
        x[:], y[:] = ROWS[start : start + 3], LABELS[start : start + 3]
        other.partial_fit(x, y)
        x[:], y[:] = 9.0, 2
        plain.partial_fit(ROWS[start : start + 3], LABELS[start : start + 3])
    assert np.array_equal(plain.predict_proba(ROWS), other.predict_proba(ROWS))


LARGE = [2**53 + 1, 2**53 + 2, 2**62 + 1, 3]


@pytest.mark.parametrize(
    "labels",
    [LARGE, np.array(LARGE), np.array(LARGE, dtype=np.uint64), np.array(LARGE, dtype=object), torch.tensor(LARGE)],
    ids=["list", "int64", "uint64", "objects", "tensor"],
)
@pytest.mark.parametrize("first", [[0, 1, 0, 1], None], ids=["beside small ones", "alone"])
def test_whole_labels_keep_their_value(labels: Any, first: list[int] | None) -> None:
    model = GatedExperts(class_capacity=8, batch_size=4)
    if first:
        model.partial_fit(ROWS[:4], first)
    model.partial_fit(ROWS[:4], labels)
    assert model.classes_.tolist() == sorted({*LARGE, *(first or [])})
    assert model.classes_.dtype.kind in "iu"


def test_labels_that_would_lose_their_value_are_refused() -> None:
    model = GatedExperts(class_capacity=8, batch_size=4).partial_fit(ROWS[:4], LARGE)
    with pytest.raises(ValueError, match="cannot be told apart as float64"):
        model.partial_fit(ROWS[:4], np.array([1.0, 2.0, 1.0, 2.0]))
    with pytest.raises(ValueError, match="cannot be told apart as float64"):
        model.partial_fit(ROWS[:4], np.array([2**64 - 1, 1, 1, 1], dtype=np.uint64))


def test_integers_of_pandas_keep_their_value() -> None:
    pandas = pytest.importorskip("pandas")
    labels = pandas.Series(LARGE, dtype="Int64")
    assert GatedExperts(class_capacity=8, batch_size=4).partial_fit(ROWS[:4], labels).classes_.tolist() == sorted(LARGE)


@pytest.mark.parametrize("dtype", ["boolean", "bool[pyarrow]", "object"])
def test_booleans_of_pandas_stay_booleans(dtype: str) -> None:
    pandas = pytest.importorskip("pandas")
    if "pyarrow" in dtype:
        pytest.importorskip("pyarrow")
    labels = pandas.Series([True, False, True, True], dtype=dtype)
    model = GatedExperts(class_capacity=8, batch_size=4).partial_fit(ROWS[:4], labels)
    assert [type(label) for label in model.classes_.tolist()] == [bool, bool]


def test_too_many_features_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.estimator.memory_need.device_memory", lambda device: 2**26)
    wide = np.zeros((2, 200_000), dtype=np.float32)
    model = GatedExperts(class_capacity=6, batch_size=2)
    message = r"X: got rows of 200,000 features, for which the first expert would take at least [\d.]+ GiB; expected at"
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match=message):
            call(wide, [0, 1])
    model.set_params(on_bad_batch="skip").partial_fit(wide, [0, 1])
    assert model.batches_skipped_ == 1
    assert model.partial_fit(ROWS, LABELS).n_features_in_ == FEATURES


def test_the_estimate_is_below_what_is_taken() -> None:
    model = GatedExperts(class_capacity=6).partial_fit(ROWS, LABELS)
    from hge.estimator.memory_need import memory_needed

    pool = model.learner_.pool
    taken = pool.memory()["bytes_per_expert"]
    assert 0 < memory_needed(pool.spec, 0) < 4 * taken


@pytest.mark.parametrize(
    "batch",
    [
        Batch(torch.empty(8, FEATURES, device="meta"), torch.zeros(8, dtype=torch.long)),
        Batch(torch.from_numpy(ROWS), torch.empty(8, dtype=torch.long, device="meta")),
        Batch(torch.from_numpy(ROWS).to_sparse(), torch.zeros(8, dtype=torch.long)),
        Batch(None, torch.zeros(8, dtype=torch.long)),  # type: ignore[arg-type]
    ],
)
@pytest.mark.parametrize("values", [True, False])
def test_strange_batches_of_a_run_have_a_fault(batch: Batch, values: bool) -> None:
    assert batch_fault(batch, (FEATURES,), 3, values=values)


def test_known_labels_of_another_type_change_no_type() -> None:
    """A call with 1.0 in place of 1, as pandas makes of a column with gaps, must not make all predictions floats."""
    model = GatedExperts(class_capacity=6, batch_size=8).partial_fit(ROWS, LABELS)
    for labels in (LABELS.astype(float), LABELS.astype(np.uint8), LABELS[:2].astype(bool)):
        model.partial_fit(ROWS[: len(labels)], labels)
    assert model.classes_.dtype == model.predict(ROWS).dtype == LABELS.dtype
    assert model.classes_.tolist() == [0, 1, 2]
