"""The README's figures are those of the files in results/."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
DIGITS = ("split-digits", "permuted-digits", "recurring-digits")
METHODS = (("ge", "default"), ("ge-no-review", "default"), ("ge", "paper"))


def results(scenario: str, method: str, recipe: str) -> list[dict[str, float]]:
    files = [ROOT / "results" / "digits" / f"{scenario}-{method}-{recipe}-seed{seed}.json" for seed in range(5)]
    found = [json.loads(file.read_text()) for file in files]
    for seed, result in enumerate(found):
        protocol = result["protocol"]
        assert (protocol["scenario"], protocol["method"], protocol["recipe"]) == (scenario, method, recipe)
        assert protocol["seed"] == seed
        assert protocol["commit"] != "unknown"
        assert not protocol["commit"].endswith("+"), "a result comes from a committed tree"
    return found


def digits_table() -> str:
    lines = [
        "| scenario | method | recipe | accuracy, single samples | accuracy, batches of 32 | gate, single samples "
        "| experts | false / missed switches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario in DIGITS:
        for method, recipe in METHODS:
            runs = results(scenario, method, recipe)
            figures = [
                f"{np.mean([r[key] for r in runs]):.2f} ± {np.std([r[key] for r in runs]):.2f}"
                for key in ("accuracy_sample", "accuracy_batch", "gate_accuracy_sample")
            ]
            experts = ", ".join(str(n) for n in sorted({r["experts"] for r in runs}))
            switches = " / ".join(str(sum(r[f"switches_{kind}"] for r in runs)) for kind in ("false", "missed"))
            lines.append(f"| {scenario} | {method} | {recipe} | {' | '.join(figures)} | {experts} | {switches} |")
    return "\n".join(lines)


def test_readme_shows_the_results() -> None:
    assert digits_table() in (ROOT / "README.md").read_text()


def test_results_keep_their_promises() -> None:
    """What the first release set out to show, on all five seeds."""
    for scenario, experts, sample, batch in (
        ("split-digits", 5, 97, 99),
        ("permuted-digits", 10, 96, 96),
        ("recurring-digits", 5, 97, 99),
    ):
        runs = results(scenario, "ge", "default")
        assert {r["experts"] for r in runs} == {experts}
        assert {(r["switches_false"], r["switches_missed"]) for r in runs} == {(0, 0)}
        assert np.mean([r["accuracy_sample"] for r in runs]) >= sample
        assert np.mean([r["accuracy_batch"] for r in runs]) >= batch
