"""What can be seen of a model: text, notebook, figure, page, log, events as they happen; and that it is saved."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.base import clone

from helpers.digits import digits
from hge import GatedExperts
from hge.core.events import BatchSkipped, Event, ExpertChanged, ExpertCreated
from hge.estimator.stream_record import POINTS, StreamRecord
from hge.learning.online import Step


def three_visits(**parameters: Any) -> GatedExperts:
    model = GatedExperts(**parameters)
    for low in (True, False, True):
        model.partial_fit(*digits(low))
    return model


@pytest.fixture(scope="module")
def model() -> GatedExperts:
    return three_visits()


@pytest.mark.slow
def test_repr_says_what_was_learned_and_a_clone_says_nothing(model: GatedExperts) -> None:
    assert repr(GatedExperts(batch_size=16)) == "GatedExperts(batch_size=16)"
    waiting = model.rows_waiting_
    assert repr(model) == f"GatedExperts(): 2,698 rows, 2 experts, 2 switches, {waiting} rows waiting"
    assert repr(clone(model)) == "GatedExperts()"


@pytest.mark.slow
def test_notebook_view_has_the_experts_and_the_last_decisions(model: GatedExperts) -> None:
    html = model._repr_html_()
    assert "<b>2,698 rows, 2 experts" in html
    assert "<b>2,698 rows, 2 experts" in model._repr_mimebundle_()["text/html"]  # which notebooks prefer
    assert "Expert 1 was created" in html
    assert "The stream returned to expert 0" in html
    assert "Expert 1 was created" not in GatedExperts()._repr_html_()


@pytest.mark.slow
def test_report_is_one_page_with_figure_experts_and_decisions(model: GatedExperts, tmp_path: Path) -> None:
    page = model.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert "expert created" in page
    assert "Expert 1 was created" in page
    assert "src=" not in page  # nothing is loaded


@pytest.mark.slow
def test_plot_draws_on_the_given_axes(model: GatedExperts) -> None:
    axes = Figure().subplots()
    assert model.plot(ax=axes) is axes
    labels = axes.get_legend_handles_labels()[1]
    assert {"expert created", "loss too high: set aside"} <= set(labels)
    bound = axes.lines[0]
    assert len(np.asarray(bound.get_xdata())) == len(model.history_["step"]) == 2698 // 32


@pytest.mark.slow
def test_events_and_history_are_saved(model: GatedExperts, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    again = GatedExperts.load(tmp_path / "model")
    assert repr(again) == repr(model)
    assert repr(again.events_) == repr(model.events_)  # repr, since NaN is not equal to itself
    np.testing.assert_equal(dict(again.history_), dict(model.history_))
    assert again.report(tmp_path / "a.html").read_text() == model.report(tmp_path / "b.html").read_text()


@pytest.mark.slow
def test_the_callback_gets_every_event_between_two_batches() -> None:
    seen: list[tuple[Event, int]] = []

    def on_event(event: Event) -> None:
        seen.append((event, len(model.predict(X[:3]))))  # the model can be used in the callback

    (X, _), model = digits(True), GatedExperts(on_event=on_event)
    for low in (True, False):
        model.partial_fit(*digits(low))
    assert [event for event, _ in seen] == model.events_
    assert any(isinstance(event, ExpertCreated) for event, _ in seen)


@pytest.mark.slow
def test_a_callback_that_raises_changes_nothing_but_the_time() -> None:
    def fail(event: Event) -> None:
        raise RuntimeError("full")

    failing, plain = GatedExperts(on_event=fail), three_visits()
    for low in (True, False, True):
        X, y = digits(low)
        with contextlib.suppress(RuntimeError):
            failing.partial_fit(X, y)
    failing.set_params(on_event=None).flush()
    assert failing.events_ == plain.flush().events_
    np.testing.assert_array_equal(failing.predict_proba(X), plain.predict_proba(X))


@pytest.mark.slow
def test_a_callback_is_not_saved_and_may_be_given_again(tmp_path: Path) -> None:
    seen: list[Event] = []
    three_visits(on_event=lambda event: None).save(tmp_path / "model")
    assert GatedExperts.load(tmp_path / "model").on_event is None
    again = GatedExperts.load(tmp_path / "model", on_event=seen.append)
    again.partial_fit(*digits(False))
    assert ExpertChanged in map(type, seen)


@pytest.mark.slow
def test_switches_are_logged_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="hge"):
        three_visits()
    messages = [record.getMessage() for record in caplog.records if record.name == "hge"]
    assert [message.partition(": ")[2].partition(" ")[0] for message in messages] == ["Expert", "The", "Expert", "The"]
    assert "The expert in use changed from 1 to 0." in messages[-1]


def test_the_logger_has_a_handler_that_is_silent() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("hge").handlers)


def test_skipped_calls_are_logged_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[Event] = []
    GatedExperts(on_bad_batch="skip", on_event=seen.append).partial_fit([[np.nan]], [0])
    assert [type(event) for event in seen] == [BatchSkipped]
    assert [(record.levelname, "NaN" in record.getMessage()) for record in caplog.records] == [("WARNING", True)]


def test_weights_of_rows_are_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="sample_weight: got weights, expected None"):
        GatedExperts().partial_fit([[0.0], [1.0]], [0, 1], sample_weight=[1.0, 2.0])  # type: ignore[arg-type]


def test_history_is_bounded_and_keeps_batches_that_were_set_aside() -> None:
    record, aside = StreamRecord(), {17, 5_000, 99_999}
    for step in range(100_000):
        record.add(Step(step, step // 50_000, 0.1, 0.5, step in aside, 0, ()))
        assert len(record.points) <= POINTS
    columns = record.columns()
    assert len(columns["step"]) > POINTS // 2
    assert set(columns["step"][columns["set_aside"] == 1]) == aside
    assert (np.diff(columns["step"]) > 0).all()
    assert set(columns["expert"]) == {0, 1}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kept", [{"event": "no_event", "step": 1}]),
        ("kept", [{"event": "expert_created", "step": 1}]),
        ("kept", [{"event": "expert_created", "step": 1, "expert": "x", "batches": 1}]),
        ("stride", 0),
    ],
)
def test_a_record_that_is_none_is_refused(name: str, value: Any) -> None:
    facts, history = StreamRecord().state()
    with pytest.raises(ValueError, match=r"facts\.record"):
        StreamRecord.of(facts | {name: value}, history)


def test_what_cannot_be_called_is_told_before_anything_is_learned() -> None:
    X, y = np.random.default_rng(0).random((64, 3)), np.arange(64) % 2
    model = GatedExperts(epochs=1).partial_fit(X, y)
    before = model.predict_proba(X)
    model.set_params(on_event=7)
    for call in (model.fit, model.partial_fit):
        with pytest.raises(ValueError, match="on_event: got 7, expected a function"):
            call(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
