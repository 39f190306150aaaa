"""One page for a folder of results: what is there is shown, what is not is not missed."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from helpers.command import hge
from helpers.places import ROOT
from hge.experiments.recipes import build_config
from hge.experiments.results import Line
from hge.experiments.runner import run
from hge.reporting.figures import overview as overview_figures
from hge.reporting.results_report import write_overview
from hge.reporting.run_report import write_report

FIRST_BOARD = "smnist-seed0.json"


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("run")
    return folder, run(replace(build_config("recurring-digits", epochs_scale=0.2), track=True), folder)


@pytest.mark.slow
def test_our_own_results_make_a_page_by_themselves(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results", tmp_path / "results")
    page = write_overview(tmp_path / "results").read_text()
    for title in ("Table 1.", "Table 5.", "All runs", "Trees", "Comparison of scores", "Speed", "Memory of a long run"):
        assert title in page
    assert "average incremental accuracy" in page, "some of ours were tracked"
    assert not re.search(r'(src|href)="(?!#|data:)', page), "nothing is fetched from elsewhere"


@pytest.mark.slow
def test_streams_and_survival_are_shown_where_they_were_recorded(tracked: Any, tmp_path: Path) -> None:
    _, result = tracked
    (tmp_path / "run.json").write_text(json.dumps(result))
    shutil.copy(ROOT / "results" / "torture.json", tmp_path)
    page = write_overview(tmp_path).read_text()
    for title in ("Accuracy over the stream", "average incremental accuracy", "Switches", "Survival", "0 unnoticed"):
        assert title in page
    assert "Trees" not in page
    assert page.count("<svg") == 4
    found = json.loads((tmp_path / "torture.json").read_text())
    (tmp_path / "torture.json").write_text(json.dumps({"flips": found["flips"]}))  # the others were not run yet
    page = write_overview(tmp_path).read_text()
    assert "0 unnoticed" in page
    assert "Memory of a long run" not in page
    (tmp_path / "torture.json").unlink()
    assert "Survival" not in write_overview(tmp_path).read_text()


@pytest.mark.slow
def test_runs_of_other_batches_or_precision_stand_apart(tracked: Any, tmp_path: Path) -> None:
    _, result = tracked
    changes: tuple[dict[str, Any], ...] = ({}, {"batch_size": 8}, {"test_batch_size": 1}, {"precision": "bf16"})
    for number, change in enumerate(changes):
        copy = result | {"protocol": result["protocol"] | change}
        (tmp_path / f"{number}.json").write_text(json.dumps(copy))
    page = write_overview(tmp_path).read_text()
    for end in ("", ", batches of 8", ", test batches of 1", ", bf16"):
        assert f"<td>recurring-digits, ge, default, 8 epochs{end}</td><td>1</td>" in page


@pytest.mark.slow
def test_a_run_that_ended_before_anything_was_seen_has_no_stream(tracked: Any, tmp_path: Path) -> None:
    folder, result = tracked
    nothing = result | {"tracked": result["tracked"] | {"prequential": [], "after_visits": []}, "dnf": True}
    (tmp_path / "run.json").write_text(json.dumps(nothing))
    assert "Accuracy over the stream" not in write_overview(tmp_path).read_text()
    shutil.copytree(folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(json.dumps(nothing))
    assert "Accuracy over the stream" not in write_report(tmp_path / "run").read_text()


@pytest.mark.slow
def test_a_seed_counts_once_by_its_tracked_run(tracked: Any, tmp_path: Path) -> None:
    _, result = tracked
    plain = {name: value for name, value in result.items() if name != "tracked"}
    for name, content in (("a", plain), ("b", result), ("c", plain)):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    page = write_overview(tmp_path).read_text()
    assert "<td>recurring-digits, ge, default, 8 epochs</td><td>1</td>" in page
    assert "Accuracy over the stream" in page


@pytest.mark.slow
def test_boards_of_other_scores_networks_or_parts_are_not_averaged(tracked: Any, tmp_path: Path) -> None:
    _, result = tracked
    (tmp_path / "run.json").write_text(json.dumps(result))
    shutil.copytree(ROOT / "results" / "gates", tmp_path / "gates", ignore=lambda _, names: set(names) - {FIRST_BOARD})
    board = json.loads((tmp_path / "gates" / FIRST_BOARD).read_text())
    changes: dict[str, dict[str, Any]] = {
        "fewer": {"scores": board["scores"][1:]},
        "network": {"protocol": board["protocol"] | {"net": "another"}},
        "validation": {"part": "validation"},
        "choosing": {"protocol": board["protocol"] | {"seed": 100}},
    }
    for name, change in changes.items():
        (tmp_path / "gates" / f"{name}.json").write_text(json.dumps(board | change))
    (tmp_path / "gates" / "foreign.json").write_text("[]")
    page = write_overview(tmp_path).read_text()
    assert page.count("<h3>smnist, default, mlp, 20 epochs, 1 seed</h3>") == 2
    assert page.count("<h3>smnist, default, another, 20 epochs, 1 seed</h3>") == 1
    assert page.count("<h3>smnist") == 3


@pytest.mark.slow
def test_a_tree_is_drawn_where_there_is_one(tmp_path: Path) -> None:
    for recipe, titles in (("default", []), ("paper", ["HGE: Algorithm 3 in the order of the tasks"])):
        folder = tmp_path / recipe
        run(build_config("split-digits", "hge", recipe, epochs_scale=0.05), folder)
        assert re.findall("<figcaption>(.*?)</figcaption>", write_overview(folder).read_text()) == titles


@pytest.mark.slow
def test_a_tracked_run_shows_its_stream(tracked: Any) -> None:
    folder, _ = tracked
    assert "Accuracy over the stream" in write_report(folder).read_text()


@pytest.mark.slow
def test_the_command_takes_a_run_or_a_folder_of_results(tracked: Any, tmp_path: Path) -> None:
    folder, result = tracked
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "run.json").write_text(json.dumps(result))
    for place, title in ((folder, "What happened"), (tmp_path / "results", "Gated Experts: results")):
        assert hge("report", str(place), cwd=tmp_path).returncode == 0
        assert title in (place / "report.html").read_text()
    (tmp_path / "empty").mkdir()
    done = hge("report", "empty", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "empty: no results found; expected the folder of a finished run, or one with results" in done.stderr


def test_a_low_accuracy_is_not_cut_off_whatever_the_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda figure, *to, **how: (drawn.append(figure), save(figure, *to, **how)))
    figures = ("smnist", "Separate", "accuracy", "99", "98", "97")
    line = Line(*figures, "reproduced", "paper", "batches of 128", "40 of 40", "fp32", 1)
    overview_figures.accuracy_figure([line, replace(line, method="GE", ours="30", single_samples="20")])
    assert drawn[0].axes[0].get_xlim()[0] < 20
    assert drawn[0].axes[0].get_xlim()[1] == 101
    assert len(drawn[0].axes[0].containers) == 3, "the paper's, ours in batches, ours of single samples"
    overview_figures.accuracy_figure([replace(line, method="TAME", routing="single samples", ours="97")])
    assert len(drawn[-1].axes[0].containers) == 2, "its figure is of single samples"
