"""Our results beside the paper's: what goes into a cell, what is said of it, and how it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.command import hge
from helpers.places import ROOT
from hge.experiments.paper_tables import Cell, paper_table
from hge.experiments.recipes import build_config
from hge.experiments.results import (
    FORMATS,
    REQUIRED_FIGURES,
    Line,
    as_json,
    as_latex,
    as_markdown,
    build_table,
    notes,
    read_results,
)
from hge.experiments.verdicts import judge

WHOLE = dict.fromkeys(REQUIRED_FIGURES, 0)
"""What a file must have to be read."""


def result(scenario: str, method: str, recipe: str = "paper", seed: int = 0, epochs: int = 40, **figures: Any) -> Any:
    config = build_config(scenario, method, recipe)
    protocol = {"scenario": scenario, "method": method, "recipe": recipe, "seed": seed, "epochs": epochs}
    protocol |= {"tasks": config.tasks, "score": config.score.name, "mix": "", "blend": 0}
    protocol |= {"batch_size": config.batch_size, "test_batch_size": config.test_batch_size}
    return {"protocol": protocol, "tasks": ["a"] * config.tasks, "dnf": False, **figures}


def lines(number: int, results: list[Any], scenario: str, method: str, figure: str) -> list[Line]:
    found = build_table(number, results)
    return [x for x in found if (x.scenario, x.method, x.figure) == (scenario, method, figure)]


def accuracies(batch: float, sample: float) -> dict[str, float]:
    both = {"batch": batch, "sample": sample}
    return {f"{f}_{r}": v for f in ("accuracy", "gate_accuracy", "experts_queried") for r, v in both.items()}


def test_mean_and_deviation_over_seeds() -> None:
    runs = [result("smnist", "ge", seed=s, **accuracies(99.0 + s, 90.0)) for s in range(2)]
    [line] = lines(4, runs, "smnist", "GE", "accuracy")
    assert (line.paper, line.ours, line.single_samples) == ("99.54 ± 0.09", "99.50 ± 0.71", "90.00 ± 0.00")
    assert (line.verdict, line.recipe, line.routing) == ("reproduced", "paper", "batches of 128")
    assert (line.epochs, line.seeds) == ("40 of 40", 2)


def test_rows_kept_are_shown_where_every_run_says_them() -> None:
    runs = [result("smnist", "ge", seed=s, rows_kept=6400 + s, **accuracies(99.5, 90.0)) for s in (0, 2)]
    [line] = lines(4, runs, "smnist", "GE", "accuracy")
    assert line.rows_kept == "6401"
    del runs[0]["rows_kept"]
    [line] = lines(4, runs, "smnist", "GE", "accuracy")
    assert line.rows_kept == ""


def test_recipes_stand_apart_and_only_the_longest_runs_count() -> None:
    runs = [
        result("smnist", "ge", "paper", epochs=4, **accuracies(90.0, 80.0)),
        result("smnist", "ge", "paper", epochs=8, **accuracies(98.0, 80.0)),
        result("smnist", "ge", "best", epochs=4, **accuracies(99.9, 97.0)),
    ]
    found = lines(4, runs, "smnist", "GE", "accuracy")
    assert [(x.recipe, x.ours, x.epochs) for x in found] == [
        ("paper", "98.00", "8 of 40"),
        ("best", "99.90", "4 of 40"),
    ]


def test_precisions_are_not_mixed_and_the_last_of_one_seed_counts() -> None:
    runs = [result("smnist", "ge", seed=s, **accuracies(90.0 + s, 80.0)) for s in (0, 0, 1)]
    runs[1]["accuracy_batch"], runs[2]["protocol"]["precision"] = 95.0, "bf16"
    [line] = lines(4, runs, "smnist", "GE", "accuracy")
    assert (line.ours, line.seeds) == ("95.00", 1)
    assert line.precision == "fp32", "of two with one seed each"
    [line] = lines(4, runs[2:], "smnist", "GE", "accuracy")
    assert (line.ours, line.seeds, line.precision) == ("91.00", 1, "bf16")
    more = result("smnist", "ge", seed=2, **accuracies(93.0, 80.0))
    more["protocol"]["precision"] = "bf16"
    [line] = lines(4, [*runs, more], "smnist", "GE", "accuracy")
    assert (line.ours, line.seeds, line.precision) == ("92.00 ± 1.41", 2, "bf16")


def test_short_runs_are_marked_where_a_person_looks() -> None:
    table = build_table(4, [result("smnist", "ge", epochs=4, **accuracies(99.5, 90.0))])
    assert "| 99.54 ± 0.09 | 99.50 | 90.00 | reproduced (short) | paper |" in as_markdown(4, table)
    told = [x["verdict"] for x in json.loads(as_json(4, table))["lines"] if x["ours"] == "99.50"]
    assert set(told) == {"reproduced", "worse"}, "programs are told the epochs apart"


def test_both_routings_are_shown_and_tame_is_compared_by_single_samples() -> None:
    [line] = lines(4, [result("smnist", "tame", **accuracies(99.9, 97.0))], "smnist", "TAME", "accuracy")
    assert (line.ours, line.single_samples, line.routing) == ("99.90", "97.00", "single samples")
    assert line.verdict == "worse"


def test_switches_are_per_task_and_dnf_is_dnf() -> None:
    switches = {"switches_false": 1, "switches_missed": 0}
    [line] = lines(1, [result("smnist", "tame", **switches)], "smnist", "TAME", "false")
    assert (line.ours, line.verdict) == ("0.20", "worse")
    failed = result("cif10", "tame", epochs=200, **switches) | {"dnf": True}
    [line] = lines(1, [failed], "cif10", "TAME", "false")
    assert (line.paper, line.ours, line.verdict) == ("DNF", "DNF (1 of 1)", "reproduced")
    finished = result("cif10", "tame", seed=1, epochs=200, **switches)
    [line] = lines(1, [failed, finished], "cif10", "TAME", "false")
    assert (line.ours, line.verdict) == ("DNF (1 of 2)", "differs"), "half is no majority"


def test_organisation_and_its_statistics() -> None:
    organised = {"hge": {"accuracy": 99.0, "experts_queried": 3.0}}
    organised |= {name: {"accuracy": 100.0, "experts_queried": 5.0} for name in ("ge", "upper")}
    spread = dict.fromkeys(("pcc", "scc", "mean", "std", "median", "iqr", "mad"), 0.3)
    statistics = {"accuracy": spread, "experts_queried": spread}
    runs = [result("smnist", "organise", organisation=organised, upper_statistics=statistics)]
    assert [x.verdict for x in lines(2, runs, "smnist", "HGE", "experts_queried")] == ["better"]
    assert [x.verdict for x in lines(2, runs, "smnist", "GE", "experts_queried")] == ["reproduced"]
    assert [x.verdict for x in lines(3, runs, "smnist", "Upper", "accuracy.pcc")] == ["reproduced"]
    assert [x.verdict for x in lines(3, runs, "smnist", "Upper", "accuracy.std")] == ["reproduced"]
    assert [x.verdict for x in lines(3, runs, "smnist", "Upper", "accuracy.mean")] == ["worse"]


@pytest.mark.parametrize(
    ("cell", "mean", "verdict"),
    [
        (Cell("cif10", "GE", "accuracy", 89.06, 4.05), 93.2, "unclear"),  # one run, and the paper's are scattered
        (Cell("cif10", "GE", "accuracy", 89.06, 4.05), 99.0, "unclear"),
        (Cell("cif10", "GE", "accuracy", 89.06, 1.05), 93.2, "better"),
        (Cell("cif10", "GE", "accuracy", 89.06, 4.05), 85.1, "reproduced"),
        (Cell("pmnist", "Separate", "accuracy", 97.9, 0.0), 98.3, "reproduced"),  # half a point is as good as
        (Cell("pmnist", "HGE", "experts_queried", 8.75, 0.37), 6.5, "better"),  # fewer is better
        (Cell("pmnist", "GE", "false", 0.0, None), 0.02, "worse"),
        (Cell("pmnist", "GE", "experts_queried", 20, None), 19.0, "differs"),  # an expert is lost
        (Cell("pmnist", "GE", "experts_queried", 20, None), 21.0, "worse"),
        (Cell("cif10", "TAME", "false", None, None), 0.0, "differs"),  # a baseline that finishes is another one
        (Cell("smnist", "Upper", "accuracy.median", 100.0, 0.0), 99.6, "reproduced"),  # half a point here, too
        (Cell("smnist", "Upper", "experts_queried.median", 4.0, 0.0), 4.1, "worse"),
        (Cell("cif10", "GE", "false", 0.0, None), None, "worse"),
        (Cell("cif10", "Upper", "accuracy.iqr", 0.25, 0.1), 3.0, "differs"),
        (Cell("mnist-kmnist", "GE", "accuracy", 99.38, 0.16), 99.4, "not comparable"),
        (Cell("imgnet-20", "GE", "accuracy", 49.26, 3.17), 49.3, "not comparable"),
    ],
)
def test_verdicts_on_a_single_run(cell: Cell, mean: float | None, verdict: str) -> None:
    assert judge(cell, None if mean is None else [mean]) == verdict


def test_verdicts_on_several_runs_need_a_difference_beyond_both_spreads() -> None:
    cell = Cell("cif10", "HGE", "accuracy", 87.08, 9.1)
    assert judge(cell, [77.0, 78.0]) == "unclear", "by chance, given how the paper's runs are scattered"
    assert judge(cell, [67.0, 68.0]) == "worse"
    assert judge(cell, [99.0, 30.0]) == "unclear", "by chance, given how ours are scattered"
    exact = Cell("smnist", "TAME", "accuracy", 98.63, None)
    assert judge(exact, [93.0, 94.0, 93.5]) == "worse"
    assert judge(exact, [99.9, 93.0]) == "unclear"


def test_asking_fewer_experts_is_no_merit_if_some_cannot_be_asked() -> None:
    cell = Cell("cif10", "HGE", "experts_queried", 4.1, 0.3)
    assert judge(cell, [3.0]) == "better"
    assert judge(cell, [3.0], missing=0.5) == "differs"
    for missing in ("experts_unpromoted", "switches_missed"):
        run = result("smnist", "hge", **accuracies(1.0, 1.0), **{missing: 4})
        [line] = lines(4, [run], "smnist", "HGE", "experts_queried")
        assert line.verdict == "differs"


def test_what_nobody_ran_is_said_to_be_so() -> None:
    found = build_table(4, [])
    assert len(found) == len(paper_table(4))
    assert {x.verdict for x in found if x.method in ("GE", "HGE", "TAME", "Separate")} == {"not run"}
    assert {x.verdict for x in found if x.method in ("DER", "HN", "BGD")} == {"quoted"}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 100},
        {"tasks": 3},
        {"batch_size": 64},
        {"test_batch_size": 1},
        {"mix": "pmnist"},
        {"blend": 5},
        {"score": "sketch"},
        {"scenario": "elsewhere"},
    ],
)
def test_runs_of_another_protocol_stay_outside(change: dict[str, Any]) -> None:
    run = result("smnist", "ge", **accuracies(99.0, 90.0))
    run["protocol"] |= change
    [line] = lines(4, [run], "smnist", "GE", "accuracy")
    assert line.verdict == "not run"


def test_formats() -> None:
    table = build_table(4, [result("smnist", "ge", **accuracies(99.5, 90.0))])
    markdown, latex = as_markdown(4, table), as_latex(4, table)
    assert "| smnist | GE | accuracy | 99.54 ± 0.09 | 99.50 | 90.00 | reproduced | paper |" in markdown
    assert "Dark Experience Replay" in markdown
    assert "single samples" in notes(4)[-2]
    assert "pmnist 97.9 (GE), smnist 99.54 (GE), cif10 91.32 (TAME), cif100-10 74.64 (DER)" in notes(4)[-1]
    assert r"smnist & GE & gate accuracy & 100 $\pm$ 0 & 99.50" in latex
    rows = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert len(rows) == len(table) + 1
    assert {line.count("&") for line in rows} == {13}
    assert len(json.loads(as_json(4, table))["lines"]) == len(table)


def test_results_are_found_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    run = result("smnist", "ge", **WHOLE | accuracies(99.5, 90.0))
    (tmp_path / "deep" / "run.json").write_text(json.dumps(run))
    (tmp_path / "scale.json").write_text('{"rows": []}')
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "cut.json").write_text(json.dumps({"protocol": run["protocol"]}))
    assert read_results(tmp_path) == [run]
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="damaged, expected JSON"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"gate_accuracy_batch": None}, "gate_accuracy_batch: None"),
        ({"accuracy_batch": "good"}, "accuracy_batch: 'good'"),
        ({"tasks": []}, "tasks: "),
        ({"organisation": {}}, "organisation.ge: None"),
        ({"protocol": {"seed": "0"}}, "seed: '0'"),
        ({"protocol": {"scenario": ["smnist"]}}, "scenario: "),
    ],
)
def test_a_result_that_is_not_whole_is_named(change: dict[str, Any], named: str, tmp_path: Path) -> None:
    whole = json.loads((ROOT / "results/real/smnist-ge-default-seed0.json").read_text())
    broken = whole | change | {"protocol": whole["protocol"] | change.get("protocol", {})}
    (tmp_path / "some.json").write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=f"some.json: damaged, expected .*{re.escape(named)}"):
        read_results(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
def test_our_own_results_can_be_shown(number: int) -> None:
    table = build_table(number, read_results(ROOT / "results"))
    assert all(write(number, table) for write in FORMATS.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["6"], "table: got 6, expected 1 to 5"),
        (["1", "--format", "tea"], "format: got 'tea', expected one of text, markdown, latex, json"),
        (["1", "--results", "nowhere"], "results: got nowhere, expected a folder"),
    ],
)
def test_wrong_calls_end_with_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    done = hge("table", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_of_any_width_can_show_a_table(columns: int, tmp_path: Path) -> None:
    run = result("smnist", "ge", **WHOLE | accuracies(99.5, 90.0)) | {"experts_unpromoted": 2}
    (tmp_path / "run.json").write_text(json.dumps(run))
    brief = result("pmnist", "ge", epochs=2, **WHOLE | accuracies(97.9, 90.0))
    (tmp_path / "brief.json").write_text(json.dumps(brief))
    shown = hge("table", "4", "--results", ".", cwd=tmp_path, columns=columns).stdout
    assert max(map(len, shown.splitlines())) <= columns
    words = " ".join(shown.split())
    assert "99.54 ± 0.09 99.50 90.00 reproduced 2" in words
    assert "97.9 ± 0.07 97.90 90.00 reproduced * 1" in words
    for text in ("*: short", "Dark Experience Replay", "TAME and CN-DPM route single samples"):
        assert text in words


def test_the_command_writes_a_file(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    assert hge("table", "5", "--format", "json", "--out", "t.json", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "t.json").read_text())["table"] == 5
