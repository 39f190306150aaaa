"""The HTTP interface: answers, errors, limits, token, metrics; in the process of the test."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="hge[serve] is not installed")
from fastapi.testclient import TestClient

from helpers.digits import digits
from hge import GatedExperts
from hge.core.events import Event, ExpertChanged
from hge.serving.app import Doors, build_app
from hge.serving.event_stream import EventStream
from hge.serving.requests import MOST_ROWS
from hge.serving.service import ModelService, ServiceSettings

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    events = EventStream()
    service = ModelService(tmp_path / "model", settings=ServiceSettings(waiting_rows=40), on_event=events)
    with TestClient(build_app(service, events, "secret", body_bytes=300_000), headers=TOKEN) as client:
        yield client


def learn(client: TestClient, low: bool, rows: int = 160) -> None:
    X, y = digits(low)
    for start in range(0, rows, 80):
        part = slice(start, start + 80)
        answer = client.post("/learn", json={"rows": X[part].tolist(), "labels": y[part].tolist()})
        assert answer.status_code == 200, answer.text


@pytest.mark.slow
def test_predictions_are_those_of_a_model_with_the_same_rows(client: TestClient) -> None:
    learn(client, True)
    X, y = digits(True)
    model = GatedExperts().partial_fit(X[:160], y[:160])
    answer = client.post("/predict", json={"rows": X[160:200].tolist()}).json()
    assert answer["labels"] == model.predict(X[160:200]).tolist()
    np.testing.assert_allclose(answer["confidence"], model.predict_proba(X[160:200]).max(axis=1))
    assert client.get("/experts").json()[0]["id"] == 0
    assert client.get("/healthz").json() == {"status": "ok", "rows_seen": 160}


@pytest.mark.slow
def test_late_labels_are_learned_and_counted(client: TestClient) -> None:
    X, y = digits(True)
    early = client.post("/predict", json={"rows": X[:32].tolist(), "id": "first"})
    assert early.json() == {"id": "first", "labels": None, "confidence": None}  # nothing has been learned
    assert client.post("/label", json={"id": "first", "labels": y[:32].tolist()}).json()["learned"] == 32
    answer = client.post("/predict", json={"rows": X[32:64].tolist(), "id": "second"}).json()
    assert client.post("/label", json={"id": "second", "labels": answer["labels"]}).json()["rows_seen"] == 64
    text = client.get("/metrics").text
    assert "\nhge_labelled_total 32\n" in text
    assert "\nhge_labelled_right_total 32\n" in text
    assert "\nhge_rows_learned_total 64\n" in text
    assert 'hge_requests_total{path="/label",status="200"} 2' in text
    again = client.post("/label", json={"id": "second", "labels": answer["labels"]})
    assert (again.status_code, again.json()["detail"][0]["loc"]) == (404, ["body", "id"])


def test_the_waiting_room_is_bounded(client: TestClient) -> None:
    X, y = digits(True)
    for name in "abc":  # 48 rows, room for 40
        assert client.post("/predict", json={"rows": X[:16].tolist(), "id": name}).status_code == 200
    assert client.post("/label", json={"id": "a", "labels": y[:16].tolist()}).status_code == 404
    assert client.post("/predict", json={"rows": X[:16].tolist(), "id": "b"}).status_code == 409
    assert "\nhge_dropped_total 1\n" in client.get("/metrics").text
    assert client.post("/label", json={"id": "b", "labels": y[:16].tolist()}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        ("/predict", {}, "rows", "Field required"),
        ("/predict", {"rows": []}, "rows", "at least 1 item"),
        ("/predict", {"rows": [[0.0]] * (MOST_ROWS + 1)}, "rows", f"at most {MOST_ROWS} items"),
        ("/predict", {"rows": [[1.0, 2.0], [1.0]]}, "rows", "of different lengths"),
        ("/predict", {"rows": [["a", "b"]]}, "rows", "not numbers"),
        ("/predict", {"rows": [["1.5"] * 64]}, "rows", "not numbers"),
        (
            "/predict",
            {"rows": [[0.0] * 64] * 41, "id": "many"},
            "rows",
            "got 41 rows to wait for labels, expected at most 40",
        ),
        ("/predict", {"rows": [1.0, 2.0]}, "rows", "expected a list of rows"),
        ("/predict", {"rows": [[0.0] * 63]}, "rows", r"got rows of shape (63,), expected (64,)"),
        ("/predict", {"rows": [[0.0] * 64], "batch": 3}, "batch", "Extra inputs"),
        ("/predict", {"rows": [[0.0] * 64], "id": ""}, "id", "at least 1 character"),
        ("/learn", {"rows": [[1e300] * 64], "labels": [1]}, "rows", "infinity"),
        ("/learn", {"rows": [[0.0] * 64], "labels": [1, 2]}, "labels", "got 2 labels for 1 rows"),
        ("/learn", {"rows": [[0.0] * 64], "labels": ["a"]}, "labels", "expected int64"),
        ("/learn", {"rows": [[0.0] * 64] * 2, "labels": [1, "a"]}, "labels", "texts among other labels"),
        ("/learn", {"rows": [[0.0] * 64], "labels": [None]}, "labels", "valid"),
        ("/learn", {"rows": [[0.0] * 64], "labels": [0.5]}, "labels", "label type"),
    ],
)
def test_an_error_names_the_field(
    client: TestClient, path: str, body: dict[str, Any], field: str, message: str
) -> None:
    learn(client, True, 80)
    answer = client.post(path, json=body)
    assert answer.status_code == 422, answer.text
    found = answer.json()["detail"][0]
    assert (found["loc"][1], message in found["msg"]) == (field, True), found
    assert client.get("/healthz").json()["rows_seen"] == 80


def test_a_service_that_stops_finishes_what_has_begun_and_refuses_the_rest(tmp_path: Path) -> None:
    begun, go_on, called = threading.Event(), threading.Event(), []

    def first() -> str:
        begun.set()
        go_on.wait(10)
        return "learned"

    async def stop_in_between() -> list[Any]:
        doors = Doors(ModelService(tmp_path / "model"), "secret")
        calls = [asyncio.create_task(doors.write(call)) for call in (first, lambda: called.append(1))]
        await asyncio.to_thread(begun.wait, 10)
        doors.stop()
        go_on.set()
        results = await asyncio.gather(*calls, return_exceptions=True)
        await doors.close()
        return results

    learned, refused = asyncio.run(stop_in_between())
    assert (learned, refused.status_code, called) == ("learned", 503, [])


def test_no_event_is_lost_or_sent_twice_to_a_client_that_connects() -> None:
    async def connect() -> list[str]:
        events, known, new = EventStream(), ExpertChanged(1, 0, 1), ExpertChanged(2, 1, 0)
        events.start()

        async def past() -> list[Event]:
            for event in (known, new):  # they happen while those of the past are looked up
                events(event)
            await asyncio.sleep(0)
            return [known]

        lines = events.listen(past)
        found = [await anext(lines), await anext(lines)]
        events.stop()
        return found + [line async for line in lines]

    found = asyncio.run(connect())
    assert [json.loads(line.partition("data: ")[2])["step"] for line in found] == [1, 2]


def test_requests_that_learn_need_the_token(client: TestClient) -> None:
    row = {"rows": [[0.0, 1.0]]}
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        for path, body in (
            ("learn", row | {"labels": [1]}),
            ("predict", row | {"id": "a"}),
            ("label", {"id": "a", "labels": [1]}),
        ):
            answer = client.post(f"/{path}", json=body, headers=headers)
            assert (answer.status_code, "HGE_TOKEN" in answer.text) == (401, True)
        assert client.post("/predict", json=row, headers=headers).status_code == 409  # nothing has been learned
    assert client.get("/healthz").json()["rows_seen"] == 0


def test_bodies_are_limited(client: TestClient) -> None:
    assert client.post("/predict", content=b"1" * 300_001).status_code == 413
    chunks = (b"1" * 100_000 for _ in range(4))  # no length is announced
    assert client.post("/predict", content=chunks).status_code == 413
    assert client.post("/predict", content=b"not json").status_code == 422


def test_nothing_is_acknowledged_that_is_not_on_disk(client: TestClient, tmp_path: Path, monkeypatch: Any) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    learn(client, True, 80)
    before = (tmp_path / "model" / "service" / "journal.jsonl").read_bytes()
    X, y = digits(True)
    with monkeypatch.context() as patched:
        patched.setattr("hge.serving.journal.os.fsync", full)
        answer = client.post("/learn", json={"rows": X[:8].tolist(), "labels": y[:8].tolist()})
    assert (answer.status_code, "No space left" in answer.text) == (507, True)
    assert client.get("/healthz").json()["rows_seen"] == 80
    assert (tmp_path / "model" / "service" / "journal.jsonl").read_bytes() == before


def test_the_interface_is_described(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/learn", "/label", "/experts", "/events", "/metrics", "/healthz", "/live"} <= set(paths)
    assert 'fetch("openapi.json")' in client.get("/docs").text
    assert 'fetch("live"' in client.get("/").text


@pytest.mark.slow
def test_live_state_has_what_the_page_shows(client: TestClient) -> None:
    empty = client.get("/live").json()
    assert (empty["rows"], empty["experts"], empty["history"]["step"]) == (0, [], [])
    learn(client, True, 400)
    learn(client, False, 240)
    live = client.get("/live").json()
    assert (live["rows"], len(live["experts"]), live["switches"]) == (640, 2, 1)
    assert live["batches"] == len(live["history"]["step"]) == 20
    assert "expert_created" in {line["kind"] for line in live["decisions"]}
    assert set(live["colours"]) == {"0", "1"}


def test_errors_of_the_server_are_counted(tmp_path: Path) -> None:
    def broken(rows: object) -> object:
        raise RuntimeError("broken")

    events = EventStream()
    service = ModelService(tmp_path / "model", on_event=events)
    service.predict = broken  # type: ignore[method-assign,assignment]
    with TestClient(build_app(service, events, "secret"), headers=TOKEN, raise_server_exceptions=False) as client:
        assert client.post("/predict", json={"rows": [[1.0, 2.0]]}).status_code == 500
        counted = [line for line in client.get("/metrics").text.splitlines() if 'status="500"' in line]
    assert [line.rpartition(" ")[2] for line in counted] == ["1"]
