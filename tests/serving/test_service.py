"""What was acknowledged is there after a crash: the journal, the model, the rows that wait for labels."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from helpers.digits import digits
from helpers.served import served
from hge import GatedExperts
from hge.estimator.persistence import write_state
from hge.serving.journal import Journal
from hge.serving.service import ModelService, ServiceSettings
from hge.serving.waiting_room import Visit

ROWS = 32


def recurring() -> tuple[Any, Any]:
    """Digits 0 to 4, then 5 to 9, then 0 to 4 again."""
    parts = [digits(low) for low in (True, False, True)]
    return np.concatenate([X[:480] for X, _ in parts]), np.concatenate([y[:480] for _, y in parts])


def test_a_record_that_was_cut_off_is_forgotten_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for number in range(3):
        journal.append({"number": number})
    journal.close()
    whole = (tmp_path / "journal").read_bytes()
    start_of_last = len(whole) - len(whole.splitlines(keepends=True)[-1])
    for length in range(start_of_last, len(whole)):
        (tmp_path / "journal").write_bytes(whole[:length])
        again = Journal(tmp_path / "journal")
        assert again.records == [{"number": 0}, {"number": 1}]
        again.append({"number": 5})
        again.close()
        last = Journal(tmp_path / "journal")
        assert last.records[-1] == {"number": 5}
        last.close()
    (tmp_path / "journal").write_bytes(whole.replace(b'"number":1', b'"number":7'))
    with pytest.raises(ValueError, match="line 2 is damaged"):
        Journal(tmp_path / "journal")


def test_labels_are_of_one_type_in_all_batches_of_a_request(tmp_path: Path) -> None:
    """Part of a request's labels may be whole, and too large to be floats; the journal must be learned again."""
    service = ModelService(tmp_path / "model", {"batch_size": 2})
    rows = np.arange(8, dtype=np.float32).reshape(4, 2)
    service.learn(rows, [2**53 + 1, 2**53 + 1, 1.0, 1.0])
    service.let_go()
    again = ModelService(tmp_path / "model")
    assert again.rows_seen == 4
    again.let_go()


@pytest.mark.slow
@pytest.mark.parametrize("save_every", [200, 10_000])
def test_a_service_goes_on_after_crashes_as_if_there_were_none(tmp_path: Path, save_every: int) -> None:
    X, y = recurring()
    plain, answers, expected = GatedExperts(), [], []
    service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every))
    for start in range(0, len(X), ROWS):
        rows, labels = X[start : start + ROWS], y[start : start + ROWS].tolist()
        predicted = service.predict(rows).labels if start else None
        service.wait(str(start), Visit(rows, predicted))
        if start // ROWS % 7 == 3:
            service.let_go()
            service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every))
        assert service.label(str(start), labels) == ROWS
        if start // ROWS % 7 == 5:
            service.let_go()
            service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every))
        if start:
            answers.append(predicted)
            expected.append(plain.predict(rows).tolist())
        plain.partial_fit(rows, y[start : start + ROWS])
    assert answers == expected
    assert service.labelled == len(X) - ROWS
    assert service.right == sum(
        int((np.array(a) == b).sum()) for a, b in zip(answers, np.split(y[ROWS:], 44), strict=True)
    )
    np.testing.assert_array_equal(service.model.predict_proba(X), plain.predict_proba(X))
    service.close()
    np.testing.assert_array_equal(GatedExperts.load(tmp_path / "model").predict_proba(X), plain.predict_proba(X))


@pytest.mark.slow
def test_a_model_older_than_the_journal_is_refused(tmp_path: Path) -> None:
    X, y = digits(True)
    service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every=64))
    for start in (0, 64):
        service.learn(X[start : start + 64], y[start : start + 64].tolist())
    service.let_go()
    newest = max((tmp_path / "model").glob("checkpoint-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    newest.write_text("{}")
    with (
        pytest.warns(UserWarning, match="trying the checkpoint before it"),
        pytest.raises(ValueError, match="got a model of 64 rows, expected at least 128"),
    ):
        ModelService(tmp_path / "model")


def test_a_save_that_fails_loses_nothing_and_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, *state: Any) -> None:
        raise OSError(28, "No space left on device", str(folder / "state"))

    X, y = digits(True)
    service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every=64))
    with monkeypatch.context() as patched:
        patched.setattr("hge.serving.service.write_state", full)
        for start, fails in ((0, False), (32, True), (64, False), (96, True)):
            warned = pytest.warns(UserWarning, match=r"No space left on device; the last \d+ rows are in the journal")
            with warned if fails else nullcontext():
                service.learn(X[start : start + 32], y[start : start + 32].tolist())
        assert (service.saves_failed, service.rows_since_save) == (2, 128)
        with pytest.warns(UserWarning, match="the last 128 rows"):
            service.close()
    again = ModelService(tmp_path / "model", settings=ServiceSettings(save_every=64))
    assert (again.rows_seen, again.rows_since_save) == (128, 128)
    again.learn(X[128:160], y[128:160].tolist())
    assert (again.saves_failed, again.rows_since_save) == (0, 0)
    again.close()


def test_readers_do_not_wait_while_the_model_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = digits(True)
    service = ModelService(tmp_path / "model", settings=ServiceSettings(save_every=64))
    service.learn(X[:32], y[:32].tolist())
    answers = []

    def write(folder: Path, *state: Any) -> None:
        reader = threading.Thread(target=lambda: answers.append(service.predict(X[:2])))
        reader.start()
        reader.join(20)
        write_state(folder, *state)

    monkeypatch.setattr("hge.serving.service.write_state", write)
    service.learn(X[32:64], y[32:64].tolist())
    assert (len(answers), service.rows_since_save) == (1, 0)
    service.let_go()


@pytest.mark.parametrize(
    "parameters",
    [
        {"routing": "x"},
        {"batch_size": "abc"},
        {"epsilon": -1},
        {"net": "foo"},
        {"on_bad_batch": "Skip"},
        {"features": "tea"},
        {"answer_views": 3},
    ],
)
def test_parameters_that_cannot_be_learned_with_are_refused_at_the_start(
    parameters: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(parameters))}: got "):
        ModelService(tmp_path / "model", parameters)
    ModelService(tmp_path / "model", {"epsilon": 5}).close()


def test_parameters_are_those_of_the_first_start(tmp_path: Path) -> None:
    ModelService(tmp_path / "model", {"batch_size": 8}).let_go()
    service = ModelService(tmp_path / "model")
    assert service.model.batch_size == 8
    with pytest.raises(ValueError, match="in use by process"):
        ModelService(tmp_path / "model")
    service.let_go()
    with pytest.raises(ValueError, match=r"batch_size for .*which has a model already"):
        ModelService(tmp_path / "model", {"batch_size": 9})
    with pytest.raises(ValueError, match="got 'size', expected parameters of GatedExperts"):
        ModelService(tmp_path / "other", {"size": 9})


@pytest.mark.slow
def test_killed_in_the_middle_and_started_again_it_predicts_the_same(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="hge[serve] is not installed")
    X, y = recurring()
    plain, half = GatedExperts(), 720
    answers: list[Any] = []
    expected: list[Any] = []

    def stream(server: Any, first: int, last: int) -> None:
        for start in range(first, last, ROWS):
            rows, labels = X[start : start + ROWS], y[start : start + ROWS]
            answers.append(server.post("/predict", rows=rows.tolist(), id=str(start))["labels"])
            server.post("/label", id=str(start), labels=labels.tolist())
            expected.append(plain.predict(rows).tolist() if start else None)
            plain.partial_fit(rows, labels)

    with served(tmp_path / "model", "--save-every", "300") as server:
        stream(server, 0, half - half % ROWS)
        server.post("/predict", rows=X[:4].tolist(), id="kept")
        assert server.end(signal.SIGKILL) == -9
    with served(tmp_path / "model") as server:
        with urlopen(server.url + "/events", timeout=10) as events:
            kind, data = events.readline().decode(), json.loads(events.readline().decode().partition(":")[2])
        assert (kind.startswith("event: "), data["step"] >= 0) == (True, True)
        stream(server, half - half % ROWS, len(X))
        assert server.post("/label", id="kept", labels=y[:4].tolist())["learned"] == 4
        plain.partial_fit(X[:4], y[:4])
        assert server.get("/live")["rows"] == len(X) + 4
        assert server.end() == 0
    assert answers == expected
    again = GatedExperts.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X), plain.predict_proba(X))


def test_fewer_rows_may_wait_after_a_restart(tmp_path: Path) -> None:
    """Labels in the journal are those of rows that waited under the former limit."""
    service = ModelService(tmp_path, settings=ServiceSettings(waiting_rows=100))
    for number in range(5):
        service.wait(f"visit {number}", Visit(np.full((10, 4), number, np.float32), None))
    service.label("visit 0", [0, 1] * 5)
    service.let_go()
    for waiting_rows, left in ((20, ["visit 3", "visit 4"]), (100, ["visit 3", "visit 4"])):
        service = ModelService(tmp_path, settings=ServiceSettings(waiting_rows=waiting_rows))
        assert (list(service.room.visits), service.room.dropped, service.rows_seen) == (left, 2, 10)
        service.let_go()
    service = ModelService(tmp_path, settings=ServiceSettings(waiting_rows=100))
    service.wait("large", Visit(np.zeros((50, 4), np.float32), None))
    service.let_go()
    service = ModelService(tmp_path, settings=ServiceSettings(waiting_rows=100))
    assert [*service.room.visits] == ["visit 3", "visit 4", "large"]
    service.close()
