"""Plain training is plain, the bench measures what it says, and Gated Experts have not become slower."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from helpers.places import ROOT
from hge.bench import plain_training as plain
from hge.bench.calls import measure_calls
from hge.bench.gates import measure_gates
from hge.bench.measure import Plan, Spread, time_turns
from hge.bench.plain_training import WARM_UP, Graphed, Model, Sketch, Trainer
from hge.bench.population import Population, Subject, measure_sizes
from hge.bench.stream import BATCH_SIZE, SyntheticTask
from hge.bench.suite import PARTS, BenchOptions, bench
from hge.cli.main import app
from hge.learning.routing import Answerer

RECORDED = ROOT / "results/bench/cpu-short.json"
INSTANT = Plan(warm_up=2, turn_seconds=0.0, call_seconds=0.0, repeats=2, setup_seconds=60.0)
MODELS = (
    Model("mlp", "sketch", lr=0.05),
    Model("mlp", "autoencoder", lr=0.05),
    Model("resnet18", "autoencoder", "conv", (3, 32, 32)),
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_plain_training_imports_nothing_of_hge_but_the_nets() -> None:
    tree = ast.parse(Path(plain.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    assert {module for module in modules if str(module).startswith("hge")} == {"hge.experts.networks"}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS[:2], ids=lambda model: model.score)
def test_plain_training_learns_the_synthetic_stream(model: Model) -> None:
    torch.manual_seed(0)
    task, trainer = SyntheticTask(0, model.shape, "cpu", batches=32), Trainer(model, torch.device("cpu"))
    losses = [float(trainer.step(batch.x, batch.y)) for batch in task.batches(0, 64)]
    assert losses[0] > 2.0
    assert sum(losses[-8:]) / 8 < 1.0


def test_a_plain_sketch_holds_the_products_of_all_rows() -> None:
    torch.manual_seed(0)
    sketch, x = Sketch(6, torch.device("cpu"), directions=3), torch.rand(40, 2, 3)
    for part in x.split(16):
        sketch.add(part)
    centred = x.flatten(1).double() - 0.5
    coordinates = centred @ sketch.directions.double()
    energy, inside = centred.square().sum(1), coordinates.square().sum(1)
    logarithms = torch.stack([energy, energy - inside], dim=1).log() / 2
    drawn_in = coordinates.sign() * coordinates.abs().log1p()
    rows = torch.cat([torch.ones(40, 1), logarithms, drawn_in], dim=1)
    torch.testing.assert_close(sketch.moments, rows.T @ rows, rtol=1e-4, atol=1e-4)


@needs_cuda
@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.net}-{model.score}")
def test_the_graph_trains_as_the_eager_loop_does(model: Model) -> None:
    device = torch.device("cuda")
    batches = list(SyntheticTask(0, model.shape, "cuda", batches=16).batches(0, 16))
    trainers = []
    for _ in range(2):
        torch.manual_seed(0)
        trainers.append(Trainer(model, device))
    eager, graphed = trainers[0], Graphed(trainers[1], batches[0].x, batches[0].y)
    for _ in range(WARM_UP):
        eager.step(batches[0].x, batches[0].y)
    for batch in batches:
        expected = eager.step(batch.x, batch.y)
        torch.testing.assert_close(graphed.step(batch.x, batch.y), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_precision_is_set_inside_the_block_only(precision: plain.Precision) -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with plain.arithmetic(precision):
        assert torch.backends.cudnn.allow_tf32 == (precision != "fp32")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_the_stream_is_the_same_for_everybody_and_reshuffled_each_epoch() -> None:
    one, other = (SyntheticTask(3, (1, 4, 4), "cpu", batches=3) for _ in range(2))
    assert one.images.dtype == torch.uint8
    together = list(one.batches(0, 6))
    apart = [*other.batches(0, 2), *other.batches(2, 4)]
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(together, apart, strict=True))
    assert all(len(batch) == BATCH_SIZE for batch in together)
    first, second = (torch.cat([batch.x for batch in together[i : i + 3]]).flatten(1) for i in (0, 3))
    assert not torch.equal(first, second)
    assert torch.equal(first.sum(0), second.sum(0)), "an epoch has each row once"


def test_turns_alternate() -> None:
    calls: list[str] = []
    seconds = time_turns({name: lambda name=name: calls.append(name) for name in "AB"}, 3, "cpu")  # type: ignore[misc]
    assert calls == list("ABABAB")
    assert {name: len(own) for name, own in seconds.items()} == {"A": 3, "B": 3}
    assert Spread.of([0.123456]).median == 0.1235


@pytest.mark.slow
@pytest.mark.parametrize("score", ["sketch", "autoencoder"])
def test_every_expert_of_a_population_is_found_by_its_task(score: plain.ScoreName) -> None:
    population = Population(Subject("mlp", "28x28", score, "cpu"), shortlisted=True)
    population.grow(3)
    population.grow(6)
    learner = population.learner
    assert learner.tree.experts == list(range(6))
    assert learner.last_used == 5
    assert not learner.newcomers
    for organised in (learner, population.with_shortlist()):
        for task in range(6):
            routes = Answerer(organised).route(next(population.task(task, batches=1).batches(0, 1)).x, "batch")
            assert routes.expert[0] == task
            assert routes.queried[0] == (6 if organised is learner else 1)


@pytest.mark.slow
def test_asking_for_a_shortlist_leaves_the_population_as_it_was() -> None:
    population = Population(Subject("mlp", "28x28", "autoencoder", "cpu"), shortlisted=True)
    population.grow(2)
    before = population.learner.tree.as_json()
    population.with_shortlist()
    assert population.learner.tree.as_json() == before
    assert population.learner.organisation.shortlist is None


@pytest.mark.slow
def test_costly_scores_are_measured_with_a_shortlist_too() -> None:
    rows = list(
        measure_sizes(Subject("mlp", "28x28", "autoencoder", "cpu"), (1, 3), [measure_gates], INSTANT, lambda _: None)
    )
    assert [(row.experts, row.gate) for row in rows] == [(1, "flat"), (3, "flat"), (3, "shortlist")]
    assert [row.queried for row in rows] == [1, 3, 1]
    assert all(row.right_percent == 100 for row in rows)


def test_what_does_not_fit_is_left_out_with_a_reason() -> None:
    subject = Subject("mlp", "28x28", "sketch", "cpu")
    rows = list(measure_sizes(subject, (1, 10**9), [], INSTANT, lambda text: None))
    assert [row.experts for row in rows] == [10**9]
    assert "GB" in rows[0].reason


@pytest.mark.slow
def test_all_parts_fill_their_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.bench.suite.SHORT", INSTANT)
    saved: list[int] = []
    options = BenchOptions("cpu", score="sketch", experts=(1, 3), short=True)
    document = bench(PARTS, options, lambda text: None, lambda so_far: saved.append(sum(len(so_far[p]) for p in PARTS)))
    assert saved == list(range(1, len(saved) + 1))  # after every row
    assert json.loads(json.dumps(document, allow_nan=False)) == json.loads(json.dumps(document))
    assert document["protocol"]["device"]
    assert document["protocol"]["machine"]
    assert document["settings"]["pools"].keys() == {"mlp, 28x28, sketch"}
    assert document["left_out"] == []
    found = {(row["experts"], row["loop"]) for row in document["steps"]}
    assert found == {(n, loop) for n in (1, 3) for loop in ("plain eager", "GE sticky", "GE literal")}
    batches = {row["batches"] for row in document["steps"] if row["experts"] == 3}
    assert len(batches) == 1, "all loops learn the same batches"
    assert [(row["experts"], row["gate"]) for row in document["gates"]] == [(1, "flat"), (3, "flat")]
    assert all(row["right_percent"] == 100 for row in document["gates"])
    assert {row["to"]: row["changes"] for row in document["switches"]}.keys() == {"known", "new"}
    assert all(row["changes"] > 0 for row in document["switches"])
    assert len(document["inference"]) == 2 * 3
    assert all(row["bytes_per_expert"] > 4 * 784 * 100 for row in document["memory"])


@pytest.mark.slow
def test_the_command_writes_json_and_shows_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hge.bench.suite.SHORT", INSTANT)
    monkeypatch.chdir(tmp_path)
    options = ("--device", "cpu", "--score", "sketch", "--experts", "2", "--short")
    done = CliRunner().invoke(app, ["bench", "steps", *options], env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    for text in ("mlp sketch", "plain eager", "GE sticky", "ratio to eager", "refused"):
        assert text in done.output
    (file,) = (tmp_path / "results/bench").iterdir()
    assert file.name.endswith("-steps-short.json")
    assert json.loads(file.read_text())["settings"]["experts"] == [2]


@pytest.mark.parametrize(
    "options", [("--net", "foo"), ("--score", "foo"), ("--experts", "1,0"), ("--experts", "1,x"), ("--pool", "foo")]
)
def test_a_wrong_option_is_named(options: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["bench", "steps", "--device", "cpu", *options])
    assert isinstance(done.exception, ValueError)
    assert str(done.exception).startswith(f"{options[0][2:]}: got '{options[1]}', expected ")


@pytest.mark.slow
def test_no_ratio_has_dropped_by_more_than_a_third() -> None:
    """Ratios, never times; of the best turns, since other processes only ever slow one down; up to three tries."""
    recorded = best_ratios(json.loads(RECORDED.read_text()))
    best = dict.fromkeys(recorded, 0.0)
    for _ in range(3):
        measured = best_ratios(
            bench(("steps",), BenchOptions("cpu", short=True), lambda text: None, lambda so_far: None)
        )
        assert measured.keys() == recorded.keys()
        best = {key: max(best[key], measured[key]) for key in best}
        slower = {key: (recorded[key], best[key]) for key in best if best[key] < 2 / 3 * recorded[key]}
        if not slower:
            return
    raise AssertionError(f"ratios to plain training fell by more than a third (recorded, now): {slower}")


def best_ratios(document: dict[str, Any]) -> dict[tuple[str, int, str], float]:
    """(score, experts, loop) -> how fast the loop's best turn was, beside that of the eager plain loop."""
    lowest = {
        (row["subject"]["score"], row["experts"], row["loop"]): row["milliseconds"]["low"] for row in document["steps"]
    }
    return {
        (score, experts, loop): lowest[score, experts, "plain eager"] / own
        for (score, experts, loop), own in lowest.items()
        if loop.startswith("GE")
    }


@pytest.mark.slow
def test_the_front_door_is_compared_with_a_plain_loop() -> None:
    found = measure_calls(young=4, later=4, single=40)
    assert all(value > 0 for value in found.values())
    assert found["later_ratio"] == pytest.approx(
        found["later_seconds_per_1000_rows"] / found["later_plain_seconds_per_1000_rows"]
    )
    assert found["later_ratio"] > 1  # a plain loop has neither a gate nor a memory
    parts = [name for name in found if name.startswith("later_") and name.endswith("_milliseconds")]
    assert len(parts) == 7
    assert sum(found[name] for name in parts) < 10 * 32 * found["later_seconds_per_1000_rows"]
