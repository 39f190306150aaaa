"""The live page in a browser: of a served model while it learns, and of a run's folder."""

from __future__ import annotations

import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import browser
from helpers.command import hge
from helpers.digits import digits
from helpers.served import TOKEN, served
from hge.core.files import read_json
from hge.serving.run_state import run_state
from hge.serving.watch import watch_server


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    assert hge("run", "split-digits", "--tasks", "2", "--track", "--out", "digits", cwd=folder).returncode == 0
    return folder / "digits"


@pytest.mark.slow
def test_the_page_shows_a_new_expert_within_two_seconds(tmp_path: Path) -> None:
    with browser(tmp_path / "profile") as page, served(tmp_path / "model") as server:
        page.open(server.url)
        page.wait_for("document.getElementById('rows').textContent === '0'")
        X, y = digits(True)
        server.post("/learn", rows=X[:640].tolist(), labels=y[:640].tolist())
        page.wait_for("document.querySelectorAll('#losses circle, #losses .aside').length === 20")
        assert page.value("document.querySelectorAll('#experts tr').length") == 1
        X, y = digits(False)
        for start in range(0, 640, 32):
            server.post("/learn", rows=X[start : start + 32].tolist(), labels=y[start : start + 32].tolist())
            if len(server.get("/experts")) == 2:
                break
        took = page.wait_for("document.querySelectorAll('#experts tr').length === 2", seconds=5)
        assert took < 2
        assert "Expert 1 was created" in page.value("document.getElementById('lines').textContent")
        assert page.value("document.querySelectorAll('#losses .created').length") == 1


@pytest.mark.slow
def test_requests_can_be_sent_from_the_page_about_the_interface(tmp_path: Path) -> None:
    def send(field: str) -> str:
        return f"document.getElementById('{field}').querySelector('button').click()"

    def answered(field: str, text: str) -> str:
        return f"document.getElementById('{field}').querySelector('pre').textContent.includes('{text}')"

    with browser(tmp_path / "profile") as page, served(tmp_path / "model") as server:
        page.size(390, 800)
        page.open(server.url + "/docs")
        page.wait_for("document.querySelectorAll('details').length === 8")
        page.value(send("post/learn"))
        page.wait_for(answered("post/learn", "401"))
        page.value(f"document.getElementById('token').value = {TOKEN!r}")
        page.value(send("post/learn"))
        page.wait_for(answered("post/learn", '"rows_seen": 1'))
        page.value(send("get/metrics"))
        page.wait_for(answered("get/metrics", "hge_rows_learned_total 1"))
        page.value("document.querySelectorAll('details').forEach(part => { part.open = true; })")
        assert page.value("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_cut_off(run: Path, tmp_path: Path, width: int) -> None:
    server = watch_server(partial(run_state, run), 0)
    threading.Thread(target=server.serve_forever).start()
    try:
        with browser(tmp_path / "profile") as page:
            page.size(width, 800, dark=True)
            page.open(f"http://127.0.0.1:{server.server_port}/")
            page.wait_for("document.querySelectorAll('#experts tr').length === 2")
            assert page.value("document.documentElement.scrollWidth") <= width
            assert page.value("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_state_of_a_finished_run(run: Path) -> None:
    found = run_state(run)
    assert found["status"].startswith("finished")
    assert len(found["experts"]) == 2
    assert all(expert["promoted"] for expert in found["experts"])
    assert found["tree"] == [[-1, -1], [0, 0], [1, 0]]
    assert len(found["history"]["step"]) <= 1024
    aside = sum(found["history"]["set_aside"])
    assert aside > 0
    assert (found["accuracy"] > 0.9, found["accuracy_name"].startswith("accuracy at the end")) == (True, True)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 5])
def test_state_of_a_run_that_was_killed_or_is_being_written(run: Path, tmp_path: Path, lost: int) -> None:
    folder = shutil.copytree(run, tmp_path / "killed")
    tracked = read_json(folder / "result.json")["tracked"]["prequential"]
    (folder / "result.json").unlink()
    for name in ("trace.csv", "events.jsonl", "accuracy.csv"):  # the last line is incomplete
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) - lost])
    found = run_state(folder)
    assert found["status"] == "running"
    assert len(found["experts"]) == 2
    assert found["tree"] == [[-1, -1], [0, 0], [1, 0]]
    complete = [percent for _, percent in tracked][: -1 if lost else None]
    assert found["accuracy"] == pytest.approx(sum(complete) / len(complete) / 100)
    assert "so far" in found["accuracy_name"]
    for name in ("trace.csv", "events.jsonl", "accuracy.csv"):
        (folder / name).unlink()
    empty = run_state(folder)
    assert (empty["history"]["step"], empty["accuracy"]) == ([], None)
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"track": true', '"track": false'))
    assert "--track" in run_state(folder)["accuracy_name"]


def test_a_silent_run_is_said_to_have_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "config.json").write_text('{"scenario": "s", "method": "ge", "seed": 0}')
    (tmp_path / "trace.csv").write_text("step\n")
    later = time.time() + 60
    monkeypatch.setattr("hge.serving.run_state.time.time", lambda: later)
    assert "hge run … --resume" in run_state(tmp_path)["status"]


def test_watch_refuses_what_is_no_run(tmp_path: Path) -> None:
    done = hge("watch", str(tmp_path), cwd=tmp_path)
    assert (done.returncode, "expected the folder of a run" in done.stderr) == (2, True)
