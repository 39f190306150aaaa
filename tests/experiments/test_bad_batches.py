"""Bad batches: an error or an event, as the user says; the state is that of before, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

from helpers.cut_off import CutOffError, Outcome, cut_off_at, outcome
from helpers.digits import BAD_ROWS, digits
from hge import GatedExperts
from hge.core.config import RunConfig
from hge.core.events import BatchSkipped
from hge.core.settings import override
from hge.core.types import Batch
from hge.data.scenarios import Scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.filterwarnings("ignore")
def test_bad_rows_are_skipped_told_and_change_nothing(case: str) -> None:
    spoil, message = BAD_ROWS[case]
    X, y = (rows[:200] for rows in digits(low=True))
    model = GatedExperts(on_bad_batch="skip").partial_fit(X[:50], y[:50], classes=range(10))
    assert model.partial_fit(*spoil(X, y)) is model
    assert model.batches_skipped_ == 1
    event = model.events_[-1]
    assert isinstance(event, BatchSkipped)
    assert event.step == 1
    with pytest.raises(ValueError, match=message):
        raise ValueError(event.reason)
    np.testing.assert_array_equal(model.partial_fit(X[50:], y[50:]).predict_proba(X), spared_answers())


@cache
def spared_answers() -> Any:
    """Return the probabilities of a model that learned the same rows and got no bad ones."""
    X, y = (rows[:200] for rows in digits(low=True))
    model = GatedExperts(on_bad_batch="skip").partial_fit(X[:50], y[:50], classes=range(10))
    return model.partial_fit(X[50:], y[50:]).predict_proba(X)


@pytest.mark.slow
def test_the_first_batch_may_be_bad_and_the_count_is_saved(tmp_path: Path) -> None:
    X, y = digits(low=True)
    model = GatedExperts(on_bad_batch="skip").partial_fit(X[:0], y[:0]).partial_fit(X * np.nan, y)
    assert model.batches_skipped_ == 2
    model.partial_fit(X, y)
    plain = GatedExperts().partial_fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), plain.predict_proba(X))
    assert [type(e) for e in model.events_][:2] == [BatchSkipped] * 2
    model.save(tmp_path)
    assert GatedExperts.load(tmp_path).partial_fit(X, y[1:]).batches_skipped_ == 3
    assert model.fit(X, y).batches_skipped_ == 0, "fit forgets everything"


def test_a_wrong_parameter_is_no_bad_batch() -> None:
    X, y = digits(low=True)
    with pytest.raises(ValueError, match="on_bad_batch: got 'ignore', expected one of raise, skip"):
        GatedExperts(on_bad_batch="ignore").partial_fit(X, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lr: got -1"):
        GatedExperts(on_bad_batch="skip", lr=-1).partial_fit(X, y)
    with pytest.raises(ValueError, match="classes: got none"):
        GatedExperts(on_bad_batch="skip").partial_fit(X, y, classes=[])


Spoil = Callable[[Batch], Batch]
BAD: dict[int, Spoil] = {
    0: lambda b: Batch(b.x * float("nan"), b.y),
    37: lambda b: Batch(b.x[:, :5], b.y),
    38: lambda b: Batch(b.x.double(), b.y),
    60: lambda b: Batch(b.x, b.y + 90),
    61: lambda b: Batch(b.x[:0], b.y[:0]),
}
"""Place in the stream -> what becomes of the batch there."""


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Scenario.stream

    def with_bad_ones(self: Scenario, size: int, epochs: int, keys: Any, start: int = 0) -> Iterator[tuple[int, Batch]]:
        last = self.batches(size, epochs) - 1
        spoils = BAD | {last: BAD[0]}
        for place, (task, batch) in enumerate(stream(self, size, epochs, keys, start), start):
            yield task, spoils.get(place, lambda b: b)(batch)

    monkeypatch.setattr(Scenario, "stream", with_bad_ones)


def config_of(policy: str) -> RunConfig:
    return override(build_config("split-digits", epochs_scale=0.1), f"on_bad_batch={policy}")


@cache
def whole_outcome_with_skips() -> Outcome:
    """Of a run on the spoiled stream; made once, by the first of the tests that need it."""
    with TemporaryDirectory() as folder:
        return outcome(Path(folder), run(config_of("skip"), Path(folder)))


@pytest.mark.slow
@pytest.mark.usefixtures("spoiled")
def test_a_run_skips_bad_batches_and_says_so() -> None:
    lines, _, result = whole_outcome_with_skips()
    assert (result["batches_skipped"], result["batches"]) == (6, result["visits"][-1]["stop"])
    events = [json.loads(line) for line in lines.splitlines()]
    skips = [(e["step"], e["reason"].partition(":")[0]) for e in events if e["event"] == "batch_skipped"]
    assert skips == [(0, "X"), (36, "X"), (36, "X, y"), (57, "y"), (57, "X, y"), (result["batches"], "X")]
    assert [e["step"] for e in events] == sorted(e["step"] for e in events)


@pytest.mark.slow
@pytest.mark.usefixtures("spoiled")
@pytest.mark.parametrize("last", [36, 40, 58, 70])
def test_a_run_with_skips_is_resumed_as_if_nothing_had_happened(last: int, tmp_path: Path) -> None:
    with pytest.raises(CutOffError):
        run(config_of("skip"), tmp_path / "cut", cut_off_at(last), checkpoint_every=9)
    result = run(config_of("skip"), tmp_path / "cut", resume=True, checkpoint_every=9)
    assert outcome(tmp_path / "cut", result) == whole_outcome_with_skips()


@pytest.mark.usefixtures("spoiled")
def test_a_run_stops_at_a_bad_batch_and_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch 0: X: got values from nan to nan"):
        run(config_of("raise"), tmp_path)


def test_only_bad_batches_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Batch(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))
    monkeypatch.setattr(Scenario, "stream", lambda self, *_, **__: iter([(0, bad)] * 4))
    with pytest.raises(ValueError, match="stream: got 4 bad batches, expected at least one that is good"):
        run(config_of("skip"), tmp_path)
