"""`hge evaluate`, from a file to a page."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.command import hge
from hge.core.own_folder import hold
from hge.experiments.evaluation_files import EVALUATION
from hge.experiments.run_files import RUN
from hge.experiments.stream_opponents import STREAM_METHODS, NoChange

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="/proc, which even root cannot write to")
QUICK = "GatedExperts,SGDClassifier,majority"
METHOD_KEYS = {"name", "about", "accuracy", "retention", "by_segment", "seconds", "curve"}


def write_stream(folder: Path, rows: int = 1200) -> Path:
    """Two regimes of opposite labels; a text column, a time column and one to ignore."""
    rng = np.random.default_rng(0)
    lines = ["moment,site,a,b,note,state"]
    for row in range(rows):
        label, late = int(rng.integers(2)), row >= rows // 2
        a = (1 - label if late else label) + rng.normal(0, 0.2)
        b = 40 * late + rng.normal()
        lines.append(f"{row},{'east' if late else 'west'},{a:.4f},{b:.4f},n{row},{'up' if label else 'down'}")
    (folder / "stream.csv").write_text("\n".join(lines) + "\n")
    return folder / "stream.csv"


def evaluate(folder: Path, *options: str, methods: str = QUICK, file: str = "stream.csv") -> Any:
    columns = ("--label", "state", "--time", "moment", "--ignore", "note")
    return hge("evaluate", file, *columns, "--methods", methods, *options, cwd=folder)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("evaluate")
    write_stream(folder)
    ended = evaluate(folder, "--segments", "4", "--seed", "3")
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder, ended.stdout


@pytest.mark.slow
def test_the_table_and_the_advice_are_printed(done: tuple[Path, str]) -> None:
    _, out = done
    for text in ("stream.csv: 1,200 rows, batches of 32", "accuracy", "retention", "seconds", *QUICK.split(",")):
        assert text in out
    assert "GatedExperts found 1 switch (1 to a new expert, 0 back to a known one)." in out
    assert "Report: runs/evaluate/report.html" in out


def test_the_result_has_all_figures(done: tuple[Path, str]) -> None:
    folder, _ = done
    result = json.loads((folder / "runs/evaluate/result.json").read_text())
    assert [method["name"] for method in result["methods"]] == QUICK.split(",")
    for method in result["methods"]:
        assert method.keys() >= METHOD_KEYS
        assert len(method["by_segment"]) == 4
        assert method["retention"] == pytest.approx(np.mean(method["by_segment"]), abs=0.01)
        assert len(method["curve"]["rows"]) == len(method["curve"]["accuracy"]) > 20
    ours = result["methods"][0]
    [switch] = ours["switches"]
    assert switch["new"]
    assert 600 <= switch["row"] <= 900
    assert ours["experts"] == 2
    assert (result["rows"], result["rows_counted"], result["rows_held_out"]) == (1200, 1080 - 32, 120)
    assert not result["interrupted"]
    protocol = result["protocol"]
    assert protocol.keys() >= {"commit", "versions", "machine", "seed", "batch", "label", "time", "ignored"}
    assert (protocol["seed"], protocol["features"], protocol["classes"], protocol["segments"]) == (3, 4, 2, 4)


def test_the_page_needs_nothing_from_outside_and_can_be_written_again(done: tuple[Path, str]) -> None:
    folder, _ = done
    page = (folder / "runs/evaluate/report.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert page.count("<svg") == 2
    for text in ("stream.csv", "GatedExperts found 1 switch", "switch to a new expert", "Retention", "state"):
        assert text in page
    (folder / "runs/evaluate/report.html").unlink()
    assert hge("report", "runs/evaluate", cwd=folder).returncode == 0
    assert (folder / "runs/evaluate/report.html").read_text() == page


@pytest.mark.slow
def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    write_stream(tmp_path, rows=400)
    found = []
    for _ in range(2):  # the second run replaces the files of the first
        assert evaluate(tmp_path, "--limit", "300").returncode == 0
        methods = json.loads((tmp_path / "runs/evaluate/result.json").read_text())["methods"]
        found.append([{name: value for name, value in method.items() if name != "seconds"} for method in methods])
    assert found[0] == found[1]


def test_npz_needs_no_label(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "stream.npz", X=rng.normal(size=(300, 2)), y=rng.integers(3, size=300))
    ended = hge("evaluate", "stream.npz", "--methods", "no-change,gaussiannb", "--out", "here", cwd=tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Only 238 rows are counted" in ended.stdout
    assert "GaussianNB" in ended.stdout


def test_rows_with_missing_values(tmp_path: Path) -> None:
    path = write_stream(tmp_path, rows=300)
    path.write_text(path.read_text() + "300,east,,1,n,up\n")
    refused = evaluate(tmp_path)
    assert refused.returncode == 2
    assert "row 301 has no value in column 'a'; leave such rows out with --drop-missing" in refused.stderr
    ended = evaluate(tmp_path, "--drop-missing", methods="majority")
    assert ended.returncode == 0
    assert "Rows with missing values, left out: 1" in ended.stdout


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(NoChange):
        def predict(self, X: Any) -> Any:
            raise KeyboardInterrupt

    stopping = replace(STREAM_METHODS["majority"], build=lambda _: Interrupted())
    monkeypatch.setitem(STREAM_METHODS, "majority", stopping)
    write_stream(tmp_path, rows=300)
    ended = evaluate(tmp_path, methods="no-change,majority,SGDClassifier")
    assert (ended.returncode, ended.stderr) == (130, "")
    assert "Stopped. Finished: no-change; their figures are in runs/evaluate." in ended.stdout
    result = json.loads((tmp_path / "runs/evaluate/result.json").read_text())
    assert result["interrupted"]
    assert [method["name"] for method in result["methods"]] == ["no-change"]
    assert "Interrupted" in (tmp_path / "runs/evaluate/report.html").read_text()
    ended = evaluate(tmp_path, methods="majority")
    assert ended.returncode == 130
    assert json.loads((tmp_path / "runs/evaluate/result.json").read_text())["methods"] == []
    assert evaluate(tmp_path, methods="SGDClassifier").returncode == 0, "its own files are replaced"


@pytest.mark.parametrize("others", [["result.json"], ["report.html"], ["report.html", "result.json"]])
def test_files_of_another_origin_are_kept(others: list[str], tmp_path: Path) -> None:
    write_stream(tmp_path, rows=300)
    (tmp_path / "here").mkdir()
    for name in others:
        (tmp_path / "here" / name).write_text("{}")
    ended = evaluate(tmp_path, "--out", "here")
    assert ended.returncode == 2
    assert f"here: {', '.join(others)} in the way, not written by hge for a stream evaluation" in ended.stderr
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == others
    assert {(tmp_path / "here" / name).read_text() for name in others} == {"{}"}


def test_the_folder_of_a_run_is_refused_and_files_beside_an_evaluation_stay(tmp_path: Path) -> None:
    write_stream(tmp_path, rows=300)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/notes.txt").write_text("mine")
    assert evaluate(tmp_path, "--out", "here", methods="majority").returncode == 0
    assert (tmp_path / "here/notes.txt").read_text() == "mine"
    with hold(tmp_path / "run", RUN):
        (tmp_path / "run/config.json").write_text("{}")
    ended = evaluate(tmp_path, "--out", "run", methods="majority")
    assert ended.returncode == 2
    assert "run: got the folder of a run, expected that of a stream evaluation, or a new one" in ended.stderr


def test_a_folder_that_another_process_evaluates_in_is_refused(tmp_path: Path) -> None:
    write_stream(tmp_path, rows=300)
    assert evaluate(tmp_path, "--out", "here", methods="majority").returncode == 0
    before = (tmp_path / "here/result.json").read_bytes()
    with hold(tmp_path / "here", EVALUATION):
        ended = evaluate(tmp_path, "--out", "here", methods="no-change")
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert f"here: in use by process {os.getpid()} on " in ended.stderr
    assert (tmp_path / "here/result.json").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument"),
        (["nothing.csv", "--label", "state"], "file: got nothing.csv, expected a file that is there"),
        (["stream.csv"], "label: got nothing, expected one of the columns moment, site, a, b, note, state"),
        (["stream.csv", "--label", "class"], "label: got 'class', expected one of the columns"),
        (["stream.csv", "--label", "state"], "column 'note': not numeric ('n0'), and 300 distinct values"),
        (["stream.csv", "--label", "state", "--ignore", "note", "--limit", "50"], "segments: got 10, expected 1 to 5"),
        (["stream.csv", "--label", "state", "--ignore", "note", "--limit", "9"], "rows: got 9, expected at least 10"),
        (["stream.csv", "--label", "a"], "label: column 'a' holds numbers such as"),
        (["stream.csv", "--label", "state", "--ignore", "n"], "ignore: got 'n'"),
        (["stream.csv", "--label", "state", "--time", "site", "--ignore", "note"], "time: column 'site' holds 'west'"),
        (
            ["stream.csv", "--label", "site", "--ignore", "note", "--methods", "tea"],
            "methods: got 'tea', expected some",
        ),
        (["stream.csv", "--label", "site", "--ignore", "note", "--methods", ","], "methods: got nothing"),
        (
            ["stream.csv", "--label", "site", "--ignore", "note", "--batch", "200"],
            "batch: got 200, expected at most 135",
        ),
        (["stream.csv", "--label", "state", "--ignore", "note", "--segments", "99"], "segments: got 99"),
        (["stream.csv", "--label", "state", "--batch", "0"], "Invalid value for '--batch'"),
        (["stream.csv", "--label", "state", "--out", "stream.csv"], "out: got stream.csv, expected a folder"),
        # Before the stream is read, or any method runs.
        (["none.csv", "--out", "stream.csv/x"], "out: got stream.csv/x, expected a folder that can be written to"),
        pytest.param(["none.csv", "--out", "/proc/x"], "out: got /proc/x, expected a folder", marks=ONLY_LINUX),
    ],
)
def test_wrong_calls_end_with_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    write_stream(tmp_path, rows=300)
    ended = hge("evaluate", *arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert ended.stderr.startswith("hge: ")
    assert ended.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["stream.csv"], "nothing was made"
