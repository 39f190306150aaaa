"""The README's figures are those of the files in results/."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
DIGITS = ("split-digits", "permuted-digits", "recurring-digits")
METHODS = (("ge", "default"), ("ge-no-review", "default"), ("ge", "paper"))
GATES = ("smnist",)
TREES = (("ge", "default"), ("hge", "default"), ("hge", "paper"))
# scenario, file stem, seeds, the paper's HGE and Upper: experts queried (Table 2); None: the digits are ours
ORGANISED = (
    ("split-digits", "digits/split-digits", 5, None, None),
    ("permuted-digits, 20 tasks", "digits/permuted-digits-20", 5, None, None),
    ("smnist", "real/smnist", 5, 3.83, 3.56),
    ("pmnist", "real/pmnist", 3, 11.25, 8.05),
    ("mnist-kmnist (not comparable)", "real/mnist-kmnist", 5, 6.42, 5.13),
    ("mnist-cif10", "real/mnist-cif10", 3, 5.29, 4.92),
    ("cif10-inv", "real/cif10-inv", 3, 6.62, 5.31),
)


def results(stem: str, method: str, recipe: str, seeds: int = 5) -> list[dict[str, Any]]:
    files = [ROOT / "results" / f"{stem}-{method}-{recipe}-seed{seed}.json" for seed in range(seeds)]
    found = [json.loads(file.read_text()) for file in files]
    for seed, result in enumerate(found):
        protocol = result["protocol"]
        assert (protocol["method"], protocol["recipe"], protocol["seed"]) == (method, recipe, seed)
        assert protocol["commit"] != "unknown"
        assert not protocol["commit"].endswith("+"), "a result comes from a committed tree"
    return found


def spread(values: list[float]) -> str:
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"


def digits_table() -> str:
    lines = [
        "| scenario | method | recipe | accuracy, single samples | accuracy, batches of 32 | gate, single samples "
        "| experts | false / missed switches |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario in DIGITS:
        for method, recipe in METHODS:
            runs = results(f"digits/{scenario}", method, recipe)
            keys = ("accuracy_sample", "accuracy_batch", "gate_accuracy_sample")
            figures = [spread([r[key] for r in runs]) for key in keys]
            experts = ", ".join(str(n) for n in sorted({r["experts"] for r in runs}))
            switches = " / ".join(str(sum(r[f"switches_{kind}"] for r in runs)) for kind in ("false", "missed"))
            lines.append(f"| {scenario} | {method} | {recipe} | {' | '.join(figures)} | {experts} | {switches} |")
    return "\n".join(lines)


def trees_table() -> str:
    lines = [
        "| scenario | method | recipe | accuracy, single samples | accuracy, batches of 32 "
        "| experts queried, single samples | experts queried, batches of 32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, stem in (
        ("split-digits", "digits/split-digits"),
        ("permuted-digits, 20 tasks", "digits/permuted-digits-20"),
    ):
        for method, recipe in TREES:
            runs = results(stem, method, recipe)
            keys = ("accuracy_sample", "accuracy_batch", "experts_queried_sample", "experts_queried_batch")
            figures = " | ".join(spread([r[key] for r in runs]) for key in keys)
            lines.append(f"| {name} | {method} | {recipe} | {figures} |")
    return "\n".join(lines)


def organised_table() -> str:
    lines = [
        "| scenario | seeds | flat: right | HGE: right | Upper: right | ours: right "
        "| experts | HGE: asked | Upper: asked | ours: asked | paper's HGE / Upper: asked |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, stem, seeds, paper_hge, paper_upper in ORGANISED:
        runs = results(stem, "organise", "default", seeds)
        right = [spread([r["organisation"][k]["accuracy"] for r in runs]) for k in ("ge", "hge", "upper", "tree")]
        asked = [spread([r["organisation"][k]["experts_queried"] for r in runs]) for k in ("hge", "upper", "tree")]
        paper = "–" if paper_hge is None else f"{paper_hge} / {paper_upper}"
        lines.append(
            f"| {name} | {seeds} | {' | '.join(right)} | {len(runs[0]['tasks'])} | {' | '.join(asked)} | {paper} |"
        )
    return "\n".join(lines)


def scale_table() -> str:
    rows = json.loads((ROOT / "results" / "scale.json").read_text())["rows"]
    lines = [
        "| experts | asked per batch, tree | tree, ms | flat (one batched product), ms | right, tree | right, flat |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        times = f"{r['tree_ms']:.2f} | {r['flat_ms']:.2f}"
        right = f"{r['tree_right']:.1f} % | {r['flat_right']:.1f} %"
        lines.append(f"| {r['experts']} | {r['queried']:.1f} | {times} | {right} |")
    return "\n".join(lines)


def speed_table() -> str:
    lines = ["| device | network | score | way | 1 expert | 20 | 100 |", "|---|---|---|---|---|---|---|"]
    for name in ("h200-steps-mlp-autoencoder", "h200-steps-mlp-subspace", "h200-steps-resnet18-subspace", "cpu-steps"):
        document = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())
        on_gpu = name.startswith("h200")
        for way in ("sticky", "literal"):
            rows = [row for row in document["steps"] if row["loop"] == f"GE {way}"]
            ratio = {r["experts"]: r["ratio_to_graphed" if on_gpu else "ratio_to_eager"]["median"] for r in rows}
            subject = rows[0]["subject"]
            device = "H200" if on_gpu else "CPU, 2 cores"
            cells = " | ".join(f"{ratio[n]:.2f}" if n in ratio else "–" for n in (1, 20, 100))
            lines.append(f"| {device} | {subject['net']} | {subject['score']} | {way} | {cells} |")
    return "\n".join(lines)


def gates_table() -> str:
    sizes = ("1", "8", "32", "128")
    lines = [
        f"| scenario | epochs | score | {' | '.join(sizes)} | accuracy, single samples | multiply-adds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario in GATES:
        boards = [json.loads((ROOT / f"results/gates/{scenario}-seed{seed}.json").read_text()) for seed in range(3)]
        assert {board["part"] for board in boards} == {"test"}
        for number, first in enumerate(boards[0]["scores"]):
            rows = [board["scores"][number] for board in boards]
            gate = " | ".join(spread([row["gate_accuracy"][size] for row in rows]) for size in sizes)
            accuracy = spread([row["accuracy"]["1"] for row in rows])
            epochs = boards[0]["protocol"]["epochs"]
            cost = f"{first['multiply_adds']:,}"
            lines.append(f"| {scenario} | {epochs} | {first['score']} | {gate} | {accuracy} | {cost} |")
    return "\n".join(lines)


TABLES = [digits_table, trees_table, organised_table, scale_table, speed_table, gates_table]


@pytest.mark.parametrize("table", TABLES)
def test_readme_shows_the_results(table: Any) -> None:
    assert table() in (ROOT / "README.md").read_text()


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
