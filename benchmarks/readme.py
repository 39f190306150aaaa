"""Generate the tables of README, benchmarks/README and docs (results, gates, arena, …) from the files in results/.

    python benchmarks/readme.py    (or: make results)

Each table follows its marker. `tests/test_results.py` fails when a page and results/ disagree.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from hge.data.catalogue import SCENARIOS
from hge.data.named_streams import STREAMS
from hge.experiments.arena import YARDSTICK, leaderboard
from hge.experiments.paper_tables import paper_table as paper_cells
from hge.experiments.results import Line, build_table, precision_of, read_results, spread
from hge.experiments.stream_tables import (
    StreamResults,
    comparison_table,
    cost_table,
    methods_table,
    outcome_table,
    read_stream_results,
)
from hge.experiments.verdicts import NOT_COMPARABLE
from hge.reporting.arena_report import COLUMNS
from hge.reporting.arena_report import shown as arena_figure
from hge.reporting.figures.arena import scatter

ROOT = Path(__file__).parent.parent
DIGITS = ("split-digits", "permuted-digits", "recurring-digits")
METHODS = (("ge", "default"), ("ge", "paper"))
# file stem, and the paper's GE: gate accuracy in batches of 128 (Tables 4 and 5)
GATES = (
    ("smnist", 100.0),
    ("pmnist", 100.0),
    ("cif10-best", 96.78),
    ("cif100-10-best", 73.02),
    ("cif100-20-best", 81.04),
    ("imgnet-10-best", 59.0),
    ("imgnet-20-best", 71.5),
    ("mnist-kmnist", 100.0),
    ("mnist-cif10-best", 98.52),
    ("cif10-inv-best", 96.88),
    ("cif-imgnet-best", 66.16),
)
GATE_SEEDS = 3
HEADLINE = ("smnist", "pmnist", "cif10", "cif100-10", "cif100-20")
"""The paper's scenarios of a single data set whose official files were used."""
ARENA = ("smnist", "smnist-added", "smnist-gated", "smnist-hn", "smnist-penalties")
"""Folders of results/arena with a run of `naive` each, to which the times of the other methods in it are relative."""
ARENA_CIF10 = ("cif10", "cif10-added", "cif10-closed")
PUBLISHED = (
    (
        *("pmnist-der", "der", "accuracy_sample", "91.66 (the paper's Table 4)"),
        "GE's network; batches of 128, one epoch, SGD 0.2, α 0.5 as published",
    ),
    (
        *("pmnist-derpp", "der++", "accuracy_sample", "92.3 (its authors; from memory)"),
        "GE's network; batches of 128, one epoch, SGD 0.2, α 0.5, β 1 as published",
    ),
    (
        *("smnist-randumb", "randumb", "accuracy_sample", "98.3 (its authors; from memory)"),
        "5,000 features instead of 25,000; one pass over all of MNIST",
    ),
    (
        *("pmnist-bgd", "bgd", "accuracy_sample", "84.4 (a table of its authors); about 90 (their figure)"),
        "ten tasks, two layers of 400 and σ₀ 0.05 as theirs; one epoch",
    ),
    (
        "smnist",
        "bgd",
        "accuracy_sample",
        "19.00 (the paper's Table 4, a run of TAME's authors)",
        "4 epochs; our network",
    ),
    (
        *("smnist", "tame", "accuracy_sample", "98.63 (the paper's Table 4)"),
        "4 epochs; our network, not pruned; a selector without pretraining",
    ),
    (
        *("smnist-cn-dpm", "cn-dpm-lateral", "accuracy_sample", "93.23 (its authors; the paper's Table 4)"),
        "one epoch, batches of 10, 500 rows, log α -400, lateral features, as published",
    ),
    (
        *("smnist-added", "hcl-fr", "accuracy_sample", "90.89 (its authors; the paper's Table 4)"),
        "4 epochs; our reading, a flow of rows instead of images",
    ),
    (
        *("smnist-added", "hcl-gr", "accuracy_sample", "84.65 (its authors; from notes on the paper)"),
        "4 epochs; our reading, a flow of rows instead of images",
    ),
    (
        *("smnist-dgr", "dgr", "accuracy_sample", "91.3 (van de Ven; from memory); 75 (Avalanche)"),
        "about 2,000 steps a task and Adam 1e-3, as theirs; our network",
    ),
    (
        *("smnist-added", "hvcl", "accuracy_sample", "98.60 (the paper's Table 4)"),
        "4 epochs; our reading, without generative replay; theirs may be of labels that tasks share",
    ),
    (
        *("cif10", "er", "accuracy_sample", "82.5 (mammoth's authors; from memory)"),
        "four convolutions, 20 epochs, 6,400 rows; theirs a ResNet-18, 50 epochs, 5,120 rows",
    ),
    (
        *("cif10-added", "der", "accuracy_sample", "83.81 (the paper's Table 4)"),
        "as er; α 0.5, theirs 0.3",
    ),
    (
        *("cif10", "der++", "accuracy_sample", "85.2 (its authors; from memory)"),
        "as er; α 0.2, β 0.5, theirs 0.1 to 0.2 and 0.5 to 1",
    ),
    (
        *("cif10-closed", "randumb", "accuracy_sample", "55.6 (its authors; from memory)"),
        "2,000 features instead of 25,000, no flips",
    ),
)
"""Folder of results/arena, method, figure, what was published, what differs."""
SWITCHING = ("GE", "GE w/o review", "TAME")
PARTS_OF_A_CALL = {
    "predict": "`predict`: gate, network, nearest rows, linear model",
    "loss": "loss of the batch, compared with its bound (the forward pass of the training step)",
    "network": "the rest of the network's training step",
    "rehearsal": "about one more step, on the batch and 96 remembered rows",
    "companions": "nearest rows, linear model, and how right each was",
    "score": "the gate's score",
    "other": "checks, lock, labels, mistakes, decisions, replay",
}
# scenario, what was done, file stem, seeds
SIDE_EXPERIMENTS = (
    ("smnist", "variational autoencoder", "smnist-ge-paper-epochs40", 5),
    ("smnist", "plain autoencoder", "smnist-ge-paper-epochs40-score.variational-False", 3),
    ("cif10", "variational autoencoder", "cif10-ge-paper-epochs20-precision-bf16", 2),
    ("cif10", "plain autoencoder", "cif10-ge-paper-epochs20-precision-bf16-score.variational-False", 1),
    ("cif100-10", "classes of a task at random", "cif100-10-ge-paper-epochs40-precision-bf16", 2),
    ("cif100-10", "two superclasses per task", "cif100-superclasses-ge-paper-epochs40-precision-bf16", 1),
)
TIMED = ("ge", "hge", "separate")
SPEED = ("mlp-autoencoder", "mlp-sketch", "resnet18-autoencoder")
GROUPS = ("1", "8", "32", "128")
TREES = (("ge", "default"), ("hge", "default"), ("hge", "paper"))
PAPERS = tuple(dict.fromkeys(cell.scenario for cell in paper_cells(2)))
"""The paper's scenarios."""
# scenario, file stem, seeds
ORGANISED = (
    ("split-digits", "digits/split-digits", 3),
    *((name, f"real/{name}", 3) for name in ("smnist", "cif10")),
)
RELEASED = (("sketch", "subspace"), ("class-sketch", "class-subspace"))
"""Scores, and the scores that they replaced."""
# file stem, seeds
COSTS = (
    ("real/smnist-ge-default", 5),
    ("real/pmnist-ge-default", 3),
    ("real/cif10-ge-default", 3),
    ("superseded/before-views/smnist-ge-best-epochs40", 5),
    ("superseded/before-views/smnist-hge-best-epochs40", 1),
    ("superseded/before-views/cif10-ge-best-epochs10-precision-tf32", 2),
    ("superseded/before-views/cif10-hge-best-epochs10-precision-tf32", 1),
    ("superseded/before-views/cif100-10-ge-best-epochs60-precision-bf16", 1),
    ("superseded/before-views/cif100-10-hge-best-epochs60-precision-bf16", 1),
    ("superseded/before-views/cif100-20-ge-best-epochs60-precision-bf16", 1),
    ("superseded/before-views/cif100-20-hge-best-epochs60-precision-bf16", 1),
)


def results(stem: str, method: str, recipe: str, seeds: int = 5) -> list[dict[str, Any]]:
    """Return the results of one method and recipe, one per seed."""
    found = of_seeds(f"{stem}-{method}-{recipe}", seeds)
    for protocol in (result["protocol"] for result in found):
        assert (protocol["method"], protocol["recipe"]) == (method, recipe)
    return found


def of_seeds(stem: str, seeds: int) -> list[dict[str, Any]]:
    """Return the results of a stem's first seeds, all from committed trees."""
    files = sorted((ROOT / "results").glob(f"{stem}-seed*.json"))[:seeds]
    assert len(files) == seeds, f"{stem}: got {len(files)} seeds, expected {seeds}"
    found = [json.loads(file.read_text()) for file in files]
    for file, protocol in zip(files, (result["protocol"] for result in found), strict=True):
        assert file.stem.endswith(f"-seed{protocol['seed']}")
        assert protocol["commit"] != "unknown"
        assert not protocol["commit"].endswith("+"), "a result comes from a committed tree"
        assert "earlier_commits" not in protocol, "and from one of them"
    return found


def digits_table() -> str:
    """Results without task labels, on digits."""
    lines = [
        "| scenario | method | recipe | seeds | accuracy, single samples | accuracy, batches of 32 "
        "| gate, single samples | experts | false / missed switches |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario in DIGITS:
        for method, recipe in METHODS:
            runs = results(f"digits/{scenario}", method, recipe)
            keys = ("accuracy_sample", "accuracy_batch", "gate_accuracy_sample")
            figures = [spread([r[key] for r in runs]) for key in keys]
            experts = ", ".join(str(n) for n in sorted({r["experts"] for r in runs}))
            switches = " / ".join(str(sum(r[f"switches_{kind}"] for r in runs)) for kind in ("false", "missed"))
            seeds = "{} to {}".format(*(f([r["protocol"]["seed"] for r in runs]) for f in (min, max)))
            about = f"{scenario} | {method} | {recipe} | {seeds}"
            lines.append(f"| {about} | {' | '.join(figures)} | {experts} | {switches} |")
    return "\n".join(lines)


def trees_table() -> str:
    """The paper's tree, compared with querying the sketches of all experts."""
    lines = [
        "| scenario | method | recipe | accuracy, single samples | accuracy, batches of 32 "
        "| experts queried, single samples | experts queried, batches of 32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, stem, rows in (
        ("split-digits", "digits/split-digits", TREES),
        ("permuted-digits, 20 tasks", "digits/permuted-digits-20", TREES[-1:]),
    ):
        for method, recipe in rows:
            runs = results(stem, method, recipe)
            keys = ("accuracy_sample", "accuracy_batch", "experts_queried_sample", "experts_queried_batch")
            figures = " | ".join(spread([r[key] for r in runs]) for key in keys)
            lines.append(f"| {name} | {method} | {recipe} | {figures} |")
    return "\n".join(lines)


def organised_table() -> str:
    """The same experts, organised in three ways."""
    lines = [
        "| scenario | seeds | flat: right | HGE: right | Upper: right "
        "| experts | HGE: queried | Upper: queried | paper's HGE / Upper: queried |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    papers = {(c.scenario, c.method): c.mean for c in paper_cells(2) if c.figure == "experts_queried"}
    for name, stem, seeds in ORGANISED:
        runs = results(stem, "organise", "default", seeds)
        right = [spread([r["organisation"][k]["accuracy"] for r in runs]) for k in ("ge", "hge", "upper")]
        queried = [spread([r["organisation"][k]["experts_queried"] for r in runs]) for k in ("hge", "upper")]
        paper = f"{papers[name, 'HGE']} / {papers[name, 'Upper']}" if name in PAPERS else "–"
        about = f"{name} (not comparable)" if name in NOT_COMPARABLE else name
        lines.append(
            f"| {about} | {seeds} | {' | '.join(right)} | {len(runs[0]['tasks'])} | {' | '.join(queried)} | {paper} |"
        )
    return "\n".join(lines)


def scale_table() -> str:
    """Cost of the gate by the number of experts."""
    rows = json.loads((ROOT / "results" / "scale.json").read_text())["rows"]
    lines = [
        "| experts | gate, a batch of 128, ms | gate, a row, ms | answer, a row, ms | first answer, ms "
        "| right, batches | right, single rows | memory of all experts, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        times = " | ".join(f"{r[k]:.2f}" for k in ("gate_batch_ms", "gate_row_ms", "answer_row_ms", "first_answer_ms"))
        right = f"{r['right_batch']:.1f} % | {r['right_sample']:.1f} %"
        lines.append(f"| {r['experts']:,} | {times} | {right} | {r['pool_mb']:,.0f} |")
    return "\n".join(lines)


def calls_table() -> str:
    """The parts of a call of `predict` and `partial_fit`, in milliseconds and as multiples of a plain loop's call."""
    found = json.loads((ROOT / "results" / "bench" / "calls.json").read_text())
    plain = 32 * found["later_plain_seconds_per_1000_rows"]
    parts = {about: found[f"later_{part}_milliseconds"] for part, about in PARTS_OF_A_CALL.items()}
    lines = ["| part | ms | plain loops |", "|---|---|---|"]
    lines += [f"| {about} | {ms:.2f} | {ms / plain:.2f} |" for about, ms in parts.items()]
    lines += [f"| a plain loop, predictions included | {plain:.2f} | 1 |"]
    lines += [
        f"| both calls, while an expert is {phase} | {32 * found[f'{name}_seconds_per_1000_rows']:.2f} "
        f"| {found[f'{name}_ratio']:.2f} |"
        for phase, name in (("in its first 64 batches", "young"), ("older", "later"))
    ]
    return "\n".join(lines)


def sketches_table() -> str:
    """Gate accuracy of the sketches, beside that of the scores that they replaced."""
    lines = [
        "| scenario | score | 1 | 8 | 32 | 128 | its predecessor: 1 | 8 | 32 | 128 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for stem, _ in GATES:
        new, old = (boards_of(stem, folder)[1] for folder in ("gates", "superseded/gates"))
        for score, before in RELEASED:
            cells = []
            for boards, name in ((new, score), (old, before)):
                rows = [row for board in boards for row in board["scores"] if row["score"] == name]
                cells += [spread([row["gate_accuracy"][size] for row in rows]) for size in GROUPS]
            lines.append(f"| {new[0]['protocol']['scenario']} | {score} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs_table() -> str:
    """Cost of the gate, in multiply-adds and in forward passes of an expert's network."""
    lines = [
        "| scenario, method, recipe | experts | routing | accuracy | experts queried | gate, multiply-adds per row "
        "| gate, expert-equivalents | gate, ms per row | prediction, ms per row |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for stem, seeds in COSTS:
        runs = of_seeds(stem, seeds)
        protocol = runs[0]["protocol"]
        about = f"{protocol['scenario']}, {protocol['method']}, {protocol['recipe']} | {runs[0]['experts']}"
        for routing, name in (("sample", "single samples"), ("batch", f"batches of {protocol['test_batch_size']}")):
            costs = [run["cost"][routing] for run in runs]
            queried = np.mean([run[f"experts_queried_{routing}"] for run in runs])
            equivalents = np.mean([cost["gate_expert_equivalents"] for cost in costs])
            times = [np.median([cost[key] for cost in costs]) for key in ("gate_ms_per_row", "answer_ms_per_row")]
            lines.append(
                f"| {about} | {name} | {spread([run[f'accuracy_{routing}'] for run in runs])} | {queried:.2f} "
                f"| {np.mean([cost['gate_multiply_adds'] for cost in costs]):,.0f} | {equivalents:.3g} "
                f"| {times[0]:.3g} | {times[1]:.3g} |"
            )
    return "\n".join(lines)


def speed_table() -> str:
    """Speed, as ratios to plain training."""
    lines = ["| device | network | score | way | 1 expert | 20 | 100 |", "|---|---|---|---|---|---|---|"]
    for name in (*(f"h200-steps-{subject}" for subject in SPEED), "cpu-steps"):
        document = json.loads((ROOT / "results" / "bench" / f"{name}.json").read_text())
        on_gpu = name.startswith("h200")
        for way in ("sticky", "literal"):
            rows = [row for row in document["steps"] if row["loop"] == f"GE {way}"]
            if not rows:
                continue
            ratio = {r["experts"]: r["ratio_to_graphed" if on_gpu else "ratio_to_eager"]["median"] for r in rows}
            subject = rows[0]["subject"]
            device = "H200" if on_gpu else "CPU, 2 cores"
            cells = " | ".join(f"{ratio[n]:.2f}" if n in ratio else "–" for n in (1, 20, 100))
            lines.append(f"| {device} | {subject['net']} | {subject['score']} | {way} | {cells} |")
    return "\n".join(lines)


def boards_of(stem: str, folder: str = "gates") -> tuple[str, list[dict[str, Any]]]:
    """Return the label of a leaderboard (scenario, recipe, network, epochs), and the leaderboard of each seed."""
    files = [ROOT / f"results/{folder}/{stem}-seed{seed}.json" for seed in range(GATE_SEEDS)]
    boards = [json.loads(file.read_text()) for file in files]
    assert {board["part"] for board in boards} == {"test"}
    assert [board["protocol"]["seed"] for board in boards] == list(range(GATE_SEEDS))
    protocol = boards[0]["protocol"]
    nets = {board["protocol"]["net"] for board in boards}
    assert len(nets) == 1
    return f"{protocol['scenario']}, {protocol['recipe']} ({nets.pop()}), {protocol['epochs']}", boards


def gates_table() -> str:
    """Gate accuracy of the joint score."""
    lines = [
        f"| scenario, recipe (network), epochs | {' | '.join(GROUPS)} | best other score, 1 | best other score, 128 "
        "| paper's GE, 128 | accuracy, 1 | accuracy, 128 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for stem, paper in GATES:
        about, boards = boards_of(stem)
        *others, joint = ([board["scores"][n] for board in boards] for n in range(len(boards[0]["scores"])))
        gate = [spread([row["gate_accuracy"][size] for row in joint]) for size in GROUPS]
        best = [
            max((float(np.mean([row["gate_accuracy"][size] for row in rows])), rows[0]["score"]) for rows in others)
            for size in ("1", "128")
        ]
        accuracy = [spread([row["accuracy"][size] for row in joint]) for size in ("1", "128")]
        other = [f"{value:.2f} ({name})" for value, name in best]
        lines.append(f"| {about} | {' | '.join([*gate, *other, f'{paper:.2f}', *accuracy])} |")
    return "\n".join(lines)


def leaderboard_table() -> str:
    """Gate accuracy of each score."""
    lines = [
        f"| scenario, recipe (network), epochs | score | {' | '.join(GROUPS)} | accuracy, 1 |",
        "|---|---|---|---|---|---|---|",
    ]
    for stem, _ in GATES:
        about, boards = boards_of(stem)
        for number, first in enumerate(boards[0]["scores"]):
            rows = [board["scores"][number] for board in boards]
            gate = " | ".join(spread([row["gate_accuracy"][size] for row in rows]) for size in GROUPS)
            accuracy = spread([row["accuracy"]["1"] for row in rows])
            lines.append(f"| {about} | {first['score']} | {gate} | {accuracy} |")
    return "\n".join(lines)


def unknown_table() -> str:
    """How well a task that no expert has learned is distinguished from the others."""
    lines = [
        "| scenario, recipe (network), epochs | Separate | mixture of all answers, 1 | area under the curve |",
        "|---|---|---|---|",
    ]
    for stem, _ in GATES:
        about, boards = boards_of(stem)
        figures = [
            spread([board["separate"] for board in boards]),
            spread([board["mixture"] for board in boards]),
            spread([board["unknown"]["area"] for board in boards]),
        ]
        lines.append(f"| {about} | {' | '.join(figures)} |")
    return "\n".join(lines)


def paper_table() -> str:
    """Accuracy of all runs beside that of the paper's Tables 4 and 5."""
    lines = [
        "| scenario | method | paper | ours, batches of 128 | ours, single samples | verdict | recipe | epochs "
        "| precision | seeds | rows kept |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    found = read_results(ROOT / "results")
    for line in (line for number in (4, 5) for line in build_table(number, found)):
        if line.figure == "accuracy" and line.seeds:
            figures = (line.paper, line.ours, line.single_samples, line.shown_verdict)
            protocol = (line.recipe, line.epochs, line.precision, str(line.seeds), line.rows_kept or "–")
            lines.append(f"| {line.scenario} | {line.method} | {' | '.join((*figures, *protocol))} |")
    return "\n".join(lines)


def headline_table() -> str:
    """Accuracy of Gated Experts beside the paper's, on the scenarios of a single data set, by every recipe that ran."""
    lines = [
        "| scenario | recipe | epochs | seeds | the paper's GE, batches of 128 | accuracy, batches of 128 "
        "| accuracy, single samples |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in build_table(4, read_results(ROOT / "results")):
        wanted = line.scenario in HEADLINE and line.method == "GE" and line.figure == "accuracy"
        if wanted and line.seeds:
            about = (line.scenario, line.recipe, line.epochs, str(line.seeds))
            lines.append(f"| {' | '.join((*about, line.paper, line.ours, line.single_samples))} |")
    return "\n".join(lines)


def switches_table() -> str:
    """False and missed switches per task beside those of the paper's Table 1, with recipe `paper`."""
    by_run: dict[tuple[str, str], dict[str, Line]] = {}
    for line in build_table(1, read_results(ROOT / "results")):
        if line.recipe == "paper":
            by_run.setdefault((line.scenario, line.method), {})[line.figure] = line
    lines = [
        "| scenario | epochs | " + " | ".join(f"{method}: paper | {method}: ours" for method in SWITCHING) + " |",
        "|---|---|" + "---|" * 2 * len(SWITCHING),
    ]
    for scenario in PAPERS:
        cells = []
        for method in SWITCHING:
            false, missed = (by_run[scenario, method][figure] for figure in ("false", "missed"))
            papers = false.paper if false.paper == missed.paper == "DNF" else f"{false.paper} / {missed.paper}"
            cells += [papers, f"{false.ours} / {missed.ours} ({false.seeds})"]
        lines.append(f"| {scenario} | {by_run[scenario, 'GE']['false'].epochs} | {' | '.join(cells)} |")
    return "\n".join(lines)


def side_table() -> str:
    """The paper's side experiments, each beside the run that it varies."""
    keys = ("gate_accuracy_batch", "accuracy_batch", "gate_accuracy_sample", "accuracy_sample")
    lines = [
        "| scenario | what | gate, batches | accuracy, batches | gate, single samples | accuracy, single samples "
        "| epochs | precision | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for scenario, what, stem, seeds in SIDE_EXPERIMENTS:
        found = of_seeds(f"reproduced/{stem}", seeds)
        figures = " | ".join(spread([result[key] for result in found]) for key in keys)
        protocol = found[0]["protocol"]
        epochs = f"{protocol['epochs']} of {SCENARIOS[protocol['scenario']].paper.epochs}"
        lines.append(f"| {scenario} | {what} | {figures} | {epochs} | {precision_of(protocol)} | {seeds} |")
    return "\n".join(lines)


def everything_table() -> str:
    """Time for one seed of the paper's scenarios on one H200, estimated from the runs that were timed."""
    timed: dict[tuple[str, str], list[float]] = {}
    for result in read_results(ROOT / "results"):
        protocol = result["protocol"]
        at_once = protocol.get("runs_at_once", 0) if protocol["device"] == "cuda" else 0
        finished = protocol["method"] in TIMED and not result["dnf"]
        if at_once and finished and protocol["recipe"] == "paper" and not protocol["changed"]:
            rows = result["batches"] * protocol["batch_size"]
            longer = SCENARIOS[protocol["scenario"]].paper.epochs / protocol["epochs"]
            minutes = longer * rows / (60 * at_once * result["samples_per_second"])
            timed.setdefault((protocol["scenario"], protocol["method"]), []).append(minutes)
    lines = ["| scenario | GE, min | HGE, min | Separate, min |", "|---|" + "---|" * len(TIMED)]
    sums = np.zeros(len(TIMED))
    for scenario in PAPERS:
        means = [float(np.mean(timed.get((scenario, method), 0.0))) for method in TIMED]
        sums += means
        lines.append(f"| {scenario} | {' | '.join(f'{m:.1f}' if m else 'not timed' for m in means)} |")
    lines.append(f"| all of these | {' | '.join(f'{total:.0f}' for total in sums)} |")
    return "\n".join(lines)


def verdicts_table() -> str:
    """Number of the paper's cells by verdict, for each of its tables, over all runs of recipe `paper`."""
    shown = ("reproduced", "better", "worse", "unclear", "differs", "not comparable", "not run", "quoted")
    lines = [f"| table | {' | '.join(shown)} | after fewer epochs |", "|---|" + "---|" * (len(shown) + 1)]
    runs = read_results(ROOT / "results")
    for number, title in {1: "switches", 2: "organisation", 3: "trees", 4: "accuracy", 5: "hybrids"}.items():
        cells = [line for line in build_table(number, runs) if line.recipe in ("paper", "")]
        counts = Counter(str(line.verdict) for line in cells)
        unknown = set(counts) - set(shown)
        if unknown:
            raise ValueError(f"verdict: got {', '.join(unknown)}, expected one of {', '.join(shown)}")
        short = sum(line.is_short for line in cells)
        lines.append(f"| {number}: {title} | {' | '.join(str(counts[name]) for name in shown)} | {short} |")
    return "\n".join(lines)


def readings_table() -> str:
    """Gate accuracy of the paper's autoencoders by reading and epochs; of `benchmarks/readings.py`."""
    epochs = (4, 10, 20, 40)
    lines = [
        f"| scenario | reading | scored at | {' | '.join(f'{e} epochs' for e in epochs)} |",
        "|---|---|---|" + "---|" * len(epochs),
    ]
    ways = {"mean": "the mean", "one draw for all rows": "one draw for all rows", "a draw per row": "a draw per row"}
    for path in sorted((ROOT / "results/choices/readings").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        protocol, gates = found["protocol"], {row["epochs"]: row["gate_accuracy"] for row in found["rows"]}
        every = protocol["candidate"] == "recipe"
        for way, name in ways.items():
            known = [gates.get(e, {}).get(f"{way}, batch statistics") for e in epochs]
            if not any(known) or not (every or way == "a draw per row" or len(gates[40]) == 2):
                continue
            cells = [_range(cell["draws"]) if cell else "–" for cell in known]
            lines.append(f"| {protocol['scenario']} | {protocol['candidate']} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: list[float]) -> str:
    """Return the mean of values, and the range if it is wide enough to show."""
    low, mean, high = min(values), float(np.mean(values)), max(values)
    return f"{mean:.0f}" if high - low < 1 else f"{mean:.0f} ({low:.0f}–{high:.0f})"


def detectors_table() -> str:
    """Drift detectors on river's streams; of `benchmarks/river_detectors.py`."""
    found = json.loads((ROOT / "results/river/detectors.json").read_text())
    lines = [
        "| stream | detector | changes | missed | false alarms | mean delay, rows | accuracy, % |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["detectors"]:
        delay = "–" if row["mean_delay"] is None else f"{row['mean_delay']:.0f}"
        counts = f"{row['changes']} | {row['missed']} | {row['false_alarms']:,} | {delay}"
        lines.append(f"| {row['stream']} | {row['detector']} | {counts} | {row['accuracy_percent']:.1f} |")
    return "\n".join(lines)


def load_table() -> str:
    """Requests to a served model; of `benchmarks/serving.py`."""
    found = json.loads((ROOT / "results/serving.json").read_text())
    lines = [
        "| rows in a request | at the same time | predictions a second | p50, ms | p99, ms | longest, ms |",
        "|---|---|---|---|---|---|",
    ]
    for load in found["load"]:
        learning = f"{load['learn_per_second']} batches learned a second" if load["learning"] else "–"
        times = " | ".join(str(load[f"predict_{name}"]) for name in ("per_second", "p50_ms", "p99_ms", "longest_ms"))
        lines.append(f"| {load['rows']} | {learning} | {times} |")
    return "\n".join(lines)


def backbone_table() -> str:
    """A folder of images by pixels and by pretrained features; of `benchmarks/backbone.py`."""
    found = json.loads((ROOT / "results/backbone.json").read_text())
    lines = [
        "| inputs | pretrained on | model | accuracy, single samples | experts | seconds to learn 2000 images "
        "| ms to predict an image |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        runs, pretrained = row["runs"], "–" if row["inputs"] == "pixels" else "ImageNet"
        experts = ", ".join(sorted({str(run["experts"] or "–") for run in runs}))
        seconds, ms = (float(np.mean([run[name] for run in runs])) for name in ("seconds_to_learn", "ms_to_predict"))
        accuracy = spread([run["accuracy"] for run in runs])
        cells = (row["inputs"], pretrained, f"`{row['model']}`", accuracy, experts, f"{seconds:.0f}", f"{ms:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def streams() -> list[StreamResults]:
    """Return the results of `benchmarks/streams.py`, in the order of its streams."""
    return read_stream_results(ROOT / "results/streams", list(STREAMS))


def arena_board(*folders: str) -> list[dict[str, Any]]:
    """Return the leaderboard of the runs in folders of results/arena; the yardstick is that of the first."""
    boards = [leaderboard(read_results(ROOT / "results/arena" / name)) for name in folders]
    added = [row for board in boards[1:] for row in board if row["method"] != YARDSTICK]
    return sorted([*boards[0], *added], key=lambda row: -row["accuracy_sample"]["mean"])


def arena_table(*folders: str) -> str:
    """Every method on one stream, best single-sample accuracy first."""
    lines = [f"| method | {' | '.join(COLUMNS.values())} | told |", "|---|" + "---|" * (len(COLUMNS) + 1)]
    for row in arena_board(*folders):
        figures = " | ".join(arena_figure(row, figure) for figure in COLUMNS)
        lines.append(f"| {row['method']} | {figures} | {row['told']} |")
    return "\n".join(lines)


def published_table() -> str:
    """Published figures beside ours."""
    lines = ["| method | scenario | published | ours | seeds | what differs |", "|---|---|---|---|---|---|"]
    for folder, method, figure, published, differs in PUBLISHED:
        row = next(row for row in arena_board(folder) if row["method"] == method)
        scenario, ours = folder.partition("-")[0], arena_figure(row, figure)
        lines.append(f"| {method} | {scenario} | {published} | {ours} | {len(row['seeds'])} | {differs} |")
    return "\n".join(lines)


def write_arena_plots() -> None:
    """Draw accuracy against memory and against cost."""
    board = arena_board(*ARENA)
    for name, figure, label in (
        ("memory", "rows_kept", "rows of the stream that are stored"),
        ("cost", "training_time", "training time, relative to naive"),
    ):
        (ROOT / f"docs/arena-smnist-{name}.svg").write_text(scatter(board, figure, label), encoding="utf-8")


PAGES = {
    "README.md": {"headline": headline_table},
    "docs/results.md": {
        "digits": digits_table,
        "trees": trees_table,
        "organised": organised_table,
        "paper": paper_table,
        "switches": switches_table,
        "side": side_table,
        "gates": gates_table,
        "speed": speed_table,
        "scale": scale_table,
        "costs": costs_table,
    },
    "docs/paper.md": {"readings": readings_table},
    "docs/reproduction.md": {"verdicts": verdicts_table},
    "benchmarks/README.md": {"everything": everything_table},
    "docs/gates.md": {"sketches": sketches_table, "leaderboard": leaderboard_table, "unknown": unknown_table},
    "docs/howto/backbone.md": {"backbone": backbone_table},
    "docs/howto/river.md": {"detectors": detectors_table},
    "docs/howto/serve.md": {"load": load_table},
    "docs/arena.md": {
        "arena-smnist": lambda: arena_table(*ARENA),
        "arena-cif10": lambda: arena_table(*ARENA_CIF10),
        "arena-cif10-backbone": lambda: arena_table("cif10-backbone"),
        "arena-cif100-backbone": lambda: arena_table("cif100-10-backbone"),
        "arena-pmnist": lambda: arena_table("pmnist", "pmnist-added", "pmnist-rest", "pmnist-every"),
        "published": published_table,
    },
    "docs/streams.md": {
        "streams": lambda: comparison_table(streams()),
        "outcomes": lambda: outcome_table(streams()),
        "methods": lambda: methods_table(streams()),
        "stream-costs": lambda: cost_table(streams()),
        "calls": calls_table,
    },
}


def filled(page: str, text: str) -> str:
    """Return a page's text with every table regenerated."""
    for name, table in PAGES[page].items():
        marker = re.compile(rf"(<!-- results: {name} -->\n)(?:\|[^\n]*\n)*")
        content = table()
        text, count = marker.subn(lambda found, content=content: f"{found[1]}{content}\n", text)
        if count != 1:
            raise ValueError(f"{page}: got {count} markers of the table {name}, expected 1")
    return text


if __name__ == "__main__":
    write_arena_plots()
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")
