"""The README's figures are those of the files in results/, and the results keep what was promised."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hge.recipes import build_config

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


@pytest.mark.parametrize("page", readme.PAGES)
def test_pages_show_the_results(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert readme.filled(page, text) == text, "run `make results`"


def test_a_readme_without_a_place_is_an_error() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="got 0 places for the table gates, expected 1"):
        readme.filled("README.md", text.replace("<!-- results: gates -->", ""))


def test_other_figures_are_noticed() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    other = text.replace("| 98.00 ± 1.05 |", "| 99.00 ± 1.05 |")
    assert other != text
    assert readme.filled("README.md", other) == text


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


@pytest.mark.parametrize("stem", ["digits/split-digits", "digits/permuted-digits-20"])
def test_our_tree_is_as_right_as_the_flat_gate_and_asks_less(stem: str) -> None:
    flat, tree = results(stem, "ge", "default"), results(stem, "hge", "default")
    for routing in ("sample", "batch"):
        accuracy = [np.mean([r[f"accuracy_{routing}"] for r in runs]) for runs in (flat, tree)]
        asked = [np.mean([r[f"experts_queried_{routing}"] for r in runs]) for runs in (flat, tree)]
        assert accuracy[1] >= accuracy[0] - 0.5
        assert asked[1] <= 0.9 * asked[0]


def test_autoencoders_are_compared_at_a_draw_of_the_latent() -> None:
    rows = json.loads((ROOT / "results/choices/latent.json").read_text())["rows"]
    gate = {(row["optimiser"], row["latent"], row["epochs"]): row["gate_accuracy"]["128"] for row in rows}
    assert gate["sgd", "draw", 40] == 100 > 50 > gate["sgd", "mean", 40]
    assert build_config("smnist", recipe="paper").score.sampled
