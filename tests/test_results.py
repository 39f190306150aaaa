"""The figures of README and docs are those of the files in results/, and the results keep what was promised."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hge.experiments.jobs.plan import missing_jobs, read_jobs
from hge.experiments.recipes import build_config
from hge.experiments.results import read_results

ROOT = Path(__file__).parent.parent


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "benchmarks" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


readme = load()
results = readme.results


@pytest.mark.slow
@pytest.mark.parametrize("page", readme.PAGES)
def test_pages_show_the_results(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert readme.filled(page, text) == text, "run `make results`"


def test_what_waits_is_not_there_yet() -> None:
    waiting = read_jobs(ROOT / "results/waiting.jsonl")
    assert missing_jobs(waiting, read_results(ROOT / "results")) == waiting


@pytest.mark.slow
def test_a_page_without_a_place_is_an_error() -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="got 0 markers of the table gates, expected 1"):
        readme.filled("docs/results.md", text.replace("<!-- results: gates -->", ""))


@pytest.mark.slow
def test_other_figures_are_noticed() -> None:
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    other = re.sub(r"\d\d\.\d\d ± ", "12.34 ± ", text, count=1)
    assert other != text
    assert readme.filled("docs/results.md", other) == text


def test_results_keep_their_promises() -> None:
    """What the first release set out to show, on all five seeds."""
    for scenario, experts, sample, batch in (
        ("split-digits", 5, 97, 99),
        ("permuted-digits", 10, 96, 96),
        ("recurring-digits", 5, 97, 99),
    ):
        runs = results(f"digits/{scenario}", "ge", "default")
        assert {r["experts"] for r in runs} == {experts}
        assert {(r["switches_false"], r["switches_missed"]) for r in runs} == {(0, 0)}
        assert np.mean([r["accuracy_sample"] for r in runs]) >= sample
        assert np.mean([r["accuracy_batch"] for r in runs]) >= batch


@pytest.mark.parametrize(
    ("scenario", "protocol"),
    [
        ("cif10", "epochs10-precision-tf32"),
        ("cif100-10", "epochs60-precision-bf16"),
        ("cif100-20", "epochs60-precision-bf16"),
    ],
)
def test_a_shortlist_of_one_is_as_right_about_batches_as_asking_all(scenario: str, protocol: str) -> None:
    folder = "superseded/before-views"
    flat, short = (readme.of_seeds(f"{folder}/{scenario}-{method}-best-{protocol}", 1)[0] for method in ("ge", "hge"))
    assert short["accuracy_batch"] >= flat["accuracy_batch"] - 0.5
    assert flat["experts_queried_batch"] == flat["experts"]
    assert short["experts_queried_batch"] == 1
    assert short["cost"]["batch"]["gate_expert_equivalents"] < 1.01


@pytest.mark.parametrize("stem", [stem for stem, _ in readme.GATES])
def test_a_sketch_gates_better_than_what_it_took_the_place_of(stem: str) -> None:
    new, old = (readme.boards_of(stem, folder)[1] for folder in ("gates", "superseded/gates"))
    for size in readme.GROUPS:
        sketch, subspace = (
            np.mean([row["gate_accuracy"][size] for board in boards for row in board["scores"] if row["score"] == name])
            for boards, name in ((new, "sketch"), (old, "subspace"))
        )
        assert sketch >= subspace - 0.1


def test_autoencoders_are_compared_at_a_draw_of_the_latent_per_row() -> None:
    rows = json.loads((ROOT / "results/choices/readings/smnist-recipe.json").read_text())["rows"]
    gate = {row["epochs"]: row["gate_accuracy"] for row in rows}
    assert gate[40]["a draw per row, batch statistics"]["draws"] == [100.0] * 8
    assert min(gate[40]["one draw for all rows, batch statistics"]["draws"]) < 90
    assert gate[40]["mean, batch statistics"]["mean"] < 50
    assert build_config("smnist", recipe="paper").score.sampled
