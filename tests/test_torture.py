"""`make torture` in short: the same functions with small numbers."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hge.bench.population import Population, Subject
from hge.core.files import read_json
from torture import __main__ as torture_all
from torture.__main__ import PARTS, failures_in, main
from torture.bad_inputs import torture_inputs
from torture.flips import torture_flips
from torture.growth import torture_growth
from torture.hostile import KINDS, torture_hostile
from torture.kills import torture_kills
from torture.kills_settings import torture_kills_settings
from torture.saving import torture_saving
from torture.soak import torture_soak
from torture.victim import Order

ROOT = Path(__file__).parent.parent


def ignore(line: str) -> None:
    pass


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_killed_three_times_and_no_byte_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.kills.Order", partial(Order, epochs_scale=0.1))
    found = torture_kills(tmp_path, ignore, [1], [("hge", "paper")])
    assert found["by_kind"] == {"random": 1, "probation": 1, "renaming": 1}
    assert found["with_newcomers"] >= 1
    assert not failures_in("kills", found)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs kill -9")
def test_a_baseline_is_killed_three_times_and_no_byte_differs(tmp_path: Path) -> None:
    found = torture_kills_settings(tmp_path, ignore, [("separate", "default", ("blend=3", "optimiser.name=adam"))])
    assert (found["kills"], found["by_setting"]) == (3, {"blend": 3, "optimiser.name": 3})
    assert not failures_in("kills-settings", found)


@pytest.mark.slow
def test_bad_inputs_are_told_and_change_nothing(tmp_path: Path) -> None:
    found = torture_inputs(tmp_path, 300, 1, ignore)
    assert found["examples"] >= 300
    assert sum(count for name, count in found["outcomes"].items() if name.endswith("refused")) > 120
    assert not failures_in("inputs", found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_hostile_files_are_read_or_refused(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torture.hostile.KINDS", (kind,))
    found = torture_hostile(tmp_path, 100, 1, ignore)
    assert found[kind]["outcomes"]["refused"] > 50
    assert found[kind]["outcomes"]["read"] > 2
    assert not failures_in("hostile", found)


@pytest.mark.slow
def test_flipped_bytes_are_recognised(tmp_path: Path) -> None:
    found = torture_flips(tmp_path, 150, 1, ignore)
    assert found["outcomes"].keys() == {"before", "newest"}, "one damaged file never makes both unusable"
    assert not failures_in("flips", found)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's figures")
def test_a_long_life_takes_no_more_memory(tmp_path: Path) -> None:
    found = torture_soak(tmp_path, 2_000, 200, 1, ignore)
    assert (found["batches"], found["experts"], len(found["curve"])) == (2_000, 1, 10)
    assert not failures_in("soak", found)


@pytest.mark.slow
def test_the_cost_of_checkpoints_is_measured(tmp_path: Path) -> None:
    found = torture_saving(tmp_path, experts=2, turns=1, log=ignore, every=20)
    assert found["checkpoint_bytes"] > 1_000_000
    assert found["seconds"].keys() == {"with", "without"}


@pytest.mark.slow
def test_growth_is_measured() -> None:
    found = torture_growth(ignore, sizes=(2, 4))
    assert [[point["experts"] for point in curve] for curve in found["curves"].values()] == 4 * [[2, 4]]
    assert all(point["refused_ms"] > 0 for curve in found["curves"].values() for point in curve)


def test_parts_that_are_not_run_keep_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, old = (
        tmp_path / "torture.json",
        {"kills-gpu": {"gpu": "a GPU", "resumed_from": [1]}, "inputs": {"examples": 1}},
    )
    out.write_text(json.dumps(old))
    monkeypatch.setattr(torture_all, "ALWAYS", ["inputs"])
    monkeypatch.setitem(PARTS, "inputs", lambda folder: {"examples": 2})
    monkeypatch.setattr("sys.argv", ["torture", "--out", str(out)])
    assert main() == 0
    report = json.loads(out.read_text())
    assert report["kills-gpu"] == old["kills-gpu"]
    assert report["inputs"]["examples"] == 2


def test_an_unknown_part_is_told_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PARTS, "inputs", lambda folder: pytest.fail("it ran"))
    monkeypatch.setattr("sys.argv", ["torture", "inputs", "flops"])
    with pytest.raises(SystemExit):
        main()
    assert "parts: got flops, expected inputs, flips" in capsys.readouterr().err


def survival_table(report: dict[str, Any]) -> str:
    kills, inputs, flips, soak = (report[name] for name in ("kills", "inputs", "flips", "soak"))
    renamed = sum(kills["between_writing_and_renaming"].values())
    gpu, others = report["kills-gpu"], report["kills-settings"]
    settled = [memory / 2**20 for batches, memory in soak["curve"] if batches >= soak["batches"] / 10]
    cost, saving = report["saving"]["cost_percent"], report["saving"]
    share = 100 * sum(saving["seconds_in_checkpoints"]) / sum(saving["seconds"]["with"])
    outliers, growth = report["outliers"], report["growth"]
    first, *_, last = growth["curves"]["estimator"]
    return "\n".join(
        [
            "| test | amount | outcome |",
            "|---|---|---|",
            f"| kill -9, GE and HGE | {kills['kills']}, of them {kills['with_newcomers']} in a newcomer's probation, "
            f"{kills['with_set_aside']} with batches set aside, {renamed} between writing and renaming "
            f"| resumed from batch {min(kills['resumed_from'])} or later; {len(kills['differences'])} bytes differ |",
            f"| the same: {', '.join(others['by_method'])}; recipes {', '.join(others['by_recipe'])}; "
            f"tracked, blended, mixed and revisited streams, Adam | {others['kills']} "
            f"| resumed from batch {min(others['resumed_from'])} or later; {len(others['differences'])} bytes differ |",
            f"| the same on one {gpu['gpu']}, `deterministic=true` | {gpu['kills']} "
            f"| resumed from batch {min(gpu['resumed_from'])} or later; {len(gpu['differences'])} bytes differ |",
            f"| bad inputs | {inputs['examples']:,} "
            f"| {len(inputs['wrong'])} without a clear error or with a changed state |",
            f"| checkpoint files with a flipped bit, or cut off | {flips['flips']:,} "
            f"| {len(flips['wrong'])} unnoticed |",
            f"| rows in other units, codes, noise: once, in bursts, for ever | {len(outliers['cases'])} streams "
            f"| {len(outliers['known'])} lose a task, as [documented](docs/survival.md#rows-that-are-no-data); "
            f"{len(outliers['wrong']) or 'the'} others lose {'one' if outliers['wrong'] else 'none'} |",
            f"| {last['experts']} experts, the estimator's defaults | {last['mean_ms']:.1f} ms a batch "
            f"| {first['mean_ms']:.1f} ms with {first['experts']} experts |",
            f"| batches of one task, after the first tenth | {soak['batches']:,} "
            f"| {min(settled):.0f} to {max(settled):.0f} MiB, "
            f"{soak['handles'][0]} to {max(soak['handles'])} open files |",
            f"| a checkpoint every 2,000 batches, {report['saving']['experts']} experts | MLP, 28x28 "
            f"| {cost['median']:.1f} % of the throughput, {share:.1f} % of the time is spent in checkpoints |",
        ]
    )


def test_the_readme_shows_the_figures() -> None:
    report = read_json(ROOT / "results" / "torture.json")
    assert survival_table(report) in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("score", ["sketch", "autoencoder"])
def test_the_documented_memory_of_an_expert(score: Any) -> None:
    population = Population(Subject("mlp", "28x28", score, "cpu"))
    size = population.learner.pool.memory()["bytes_per_expert"] / 2**20
    assert f"| mlp, 28x28 | {score} | {size:.1f} MiB |" in (ROOT / "docs" / "survival.md").read_text()


def test_what_stands_in_the_results_was_survived() -> None:
    report = read_json(ROOT / "results" / "torture.json")
    assert report.keys() == PARTS.keys() | {"fuzz"}, "fuzzing needs atheris, so `make torture` leaves it out"
    assert not [text for name in report for text in failures_in(name, report[name])]
    assert (report["fuzz"]["crashes"], report["fuzz"]["seconds"] >= 600) == (0, True)
    assert report["kills"]["kills"] >= 30
    assert report["kills-settings"]["kills"] >= 48
    assert report["kills"]["with_newcomers"] >= 1 <= report["kills"]["with_set_aside"]
    assert sum(report["kills"]["between_writing_and_renaming"].values()) >= 1
    assert sum(n for name, n in report["inputs"]["outcomes"].items() if name.endswith("refused")) >= 10_000
    assert report["hostile"]["count"] >= 5_000
    assert report["flips"]["flips"] >= 5_000
    assert len(report["outliers"]["cases"]) >= 80
    assert report["growth"]["sizes"][-1] >= 300
    assert report["soak"]["batches"] >= 200_000
    assert report["soak"]["curve"][-1][0] == report["soak"]["batches"]
    assert all(not part["environment"]["commit"].endswith("+") for part in report.values())
