from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from helpers.command import hge
from helpers.cut_off import CutOffError, cut_off_at
from hge.cli import run as cli
from hge.cli.main import COMMANDS
from hge.data.catalogue import SCENARIOS
from hge.experiments.recipes import build_config
from hge.experiments.runner import run

RESULT_KEYS = {
    "accuracy_sample",
    "accuracy_batch",
    "gate_accuracy_sample",
    "gate_accuracy_batch",
    "calibration_error_sample",
    "experts",
    "experts_unpromoted",
    "experts_queried_batch",
    "experts_queried_sample",
    "switches_found",
    "switches_missed",
    "switches_false",
    "switch_delay",
    "samples_per_second",
    "cost",
    "protocol",
}
PROTOCOL_KEYS = {"scenario", "method", "score", "routing", "batch_size", "epochs", "seed", "commit", "versions"}


def in_a_process(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "hge", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environment, timeout=120, check=False)


@pytest.mark.slow
def test_run_writes_its_files(tmp_path: Path) -> None:
    done = hge(
        *("run", "permuted-digits", "--tasks", "2", "--epochs-scale", "0.1", "--seed", "3", "--out", "here"),
        *("--score", "autoencoder", "--set", "learner.epsilon=5", "--routing", "batch"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    folder = tmp_path / "here"
    config = json.loads((folder / "config.json").read_text())
    assert (config["learner"]["epsilon"], config["score"]["name"], config["epochs"]) == (5.0, "autoencoder", 2)
    result = json.loads((folder / "result.json").read_text())
    assert result.keys() >= RESULT_KEYS
    assert result["protocol"].keys() >= PROTOCOL_KEYS
    assert (result["protocol"]["seed"], result["protocol"]["routing"]) == (3, "batch")
    assert result["experts"] == 2
    trace = (folder / "trace.csv").read_text().splitlines()
    assert len(trace) == 1 + result["batches"] == 1 + 2 * 2 * 45
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert "expert_created" in {event["event"] for event in events}
    html = (folder / "report.html").read_text()
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", html), "the report needs nothing from outside"
    assert "Expert 1 was created" in html
    again = hge("report", "here", cwd=tmp_path)
    assert again.returncode == 0
    assert (folder / "report.html").read_text() == html


@pytest.mark.slow
def test_demo_shows_a_table_and_writes_a_report(tmp_path: Path) -> None:
    started = time.monotonic()
    done = hge("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 60
    for text in ("single samples", "batches of 32", "gate accuracy", "switches missed", "delay", "report.html"):
        assert text in done.stdout
    assert (tmp_path / "runs/demo/report.html").stat().st_size > 50_000


def test_scenarios_are_listed_and_nothing_is_cut_off_at_80_columns(tmp_path: Path) -> None:
    done = hge("scenarios", "--data", str(tmp_path), cwd=tmp_path, columns=80)
    words = done.stdout.split()
    assert set(SCENARIOS) <= set(words)
    assert {word for info in SCENARIOS.values() for word in info.about.split()} <= set(words)
    assert "Not found: mnist, kmnist, cifar10, cifar100, tiny-imagenet." in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nowhere"], "scenario: got 'nowhere', expected one of split-digits, permuted-digits"),
        (["run"], "Missing argument"),
        (["run", "split-digits", "--what"], "No such option"),
        (["run", "split-digits", "--seed", "x"], "Invalid value for '--seed'"),
        (["run", "split-digits", "--seed", "-1"], "seed: got -1, expected 0 or more"),
        (["run", "split-digits", "--method", "tea"], "method: got 'tea', expected one of ge, ge-no-review, hge"),
        (["run", "split-digits", "--recipe", "tea"], "recipe: got 'tea'"),
        (["run", "split-digits", "--score", "tea"], "score.name: got 'tea'"),
        (["run", "split-digits", "--routing", "tea"], "routing: got 'tea', expected 'sample' or 'batch'"),
        (["run", "split-digits", "--tasks", "6"], "tasks: got 6, expected at most 5 for split-digits"),
        (["run", "split-digits", "--set", "labels=shared"], "labels: got 'shared', expected 'disjoint'"),
        (["run", "split-digits", "--tasks", "0"], "tasks: got 0, expected at least 1"),
        (["run", "split-digits", "--epochs-scale", "0"], "epochs_scale: got 0.0"),
        (["run", "split-digits", "--device", "toaster"], "device: got 'toaster'"),
        (["run", "split-digits", "--set", "net=tea"], "net: got 'tea', expected one of mlp"),
        (["run", "split-digits", "--set", "learner.tea=1"], "learner.tea: no such setting"),
        (["run", "split-digits", "--out", "/dev/null/x"], "out: got /dev/null/x, expected a folder"),
        (["run", "split-digits", "--out", "/dev/null"], "out: got /dev/null, expected a folder"),
        (["trees", "nothing", "--out", "."], "out: got ., expected a file, not a folder"),
        (
            ["reproduce", "--scenario", "split-digits", "--method", "ge", "--seeds", "1", "--results", "/dev/null"],
            "results: got /dev/null/reproduced, expected a folder that can be written to",
        ),
        (["serve", "/dev/null"], "folder: got /dev/null, expected a folder that can be written to (/dev/null: Not a"),
        (["run", "split-digits", "--set", "device=toaster"], "device: got 'toaster'"),
        (["run", "split-digits", "--set", "net=resnet18"], "resnet18: got inputs of shape (64,)"),
        (["run", "split-digits", "--epochs-scale", "1e308"], "epochs_scale: got 1e+308"),
        (
            ["run", "split-digits", "--method", "organise", "--resume"],
            "resume: got method organise, expected one of agem, bgd, bgd-labels, cn-dpm",
        ),
        (
            ["run", "split-digits", "--visits", ""],
            "visits: got '', expected a value; without one, leave out --visits",
        ),
        (["run", "split-digits", "--mix", " "], "mix: got ' ', expected a value"),
        (["run", "split-digits", "--score", ""], "score: got '', expected a value"),
        *(
            (
                [*command, "--ray-address", "far:1"],
                "ray_address: got 'far:1' with executor local, expected --executor ray",
            )
            for command in (["predict", "m", "x.csv", "--out", "y.csv"], ["arena", "split-digits"], ["reproduce"])
        ),
        (
            ["predict", "m", "x.csv", "--out", "y.csv", "--executor", "tea"],
            "executor: got 'tea', expected one of local",
        ),
        (["arena", "split-digits", "--executor", "ray", "--ray-address", ""], "ray_address: got '', expected a value"),
        (["report", "nothing"], "expected an existing folder"),
        (["trees", "nothing"], "no result.json found"),
        (["brew"], "No such command 'brew'"),
    ],
)
def test_wrong_calls_end_with_one_line_and_exit_code_2(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = hge(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("hge: ")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing was made"


def commands_that_write() -> Iterator[tuple[str, ...]]:
    """Every command with an option --out."""
    for name, command in COMMANDS.items():
        loaded = command.load(name)
        group = getattr(loaded, "commands", None)
        found = {(name,): loaded} if group is None else {(name, inner): group[inner] for inner in group}
        yield from (path for path, one in found.items() if any(option.name == "out" for option in one.params))


def test_every_command_tries_the_place_that_it_writes_to_before_its_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = list(commands_that_write())
    assert {("run",), ("arena",), ("gates",), ("trees",), ("table",), ("bench", "calls")} <= set(found)
    for command in found:  # their other arguments are missing, which is told later
        for place in ("file/x", *([] if sys.platform != "linux" else ["/proc/x"])):
            done = hge(*command, "--out", place, cwd=tmp_path)
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert re.match(f"hge: out: got {place}, expected a (folder|file) that can be written", done.stderr), (
                command
            )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_process_tells_a_wrong_call_as_main_does(tmp_path: Path) -> None:
    arguments = ("data", "get", "imagenet")  # which needs no torch
    done, here = in_a_process(*arguments, cwd=tmp_path), hge(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", here.stderr)


def test_help_texts(tmp_path: Path) -> None:
    for command in ([], ["run"], ["demo"], ["scenarios"], ["trees"], ["report"]):
        done = hge(*command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert "Usage" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_learned(stop: signal.Signals, tmp_path: Path) -> None:
    settings = ["run", "permuted-digits", "--epochs-scale", "20", "--out", "here"]
    command = [sys.executable, "-m", "hge", *settings]
    # A shell ignores Ctrl-C for what it runs in the background, and so would the run.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed)
    events = tmp_path / "here" / "trace.csv"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (events.exists() and events.stat().st_size > 0):
        time.sleep(0.1)
    process.send_signal(stop)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopped. The events and the trace so far are in here; --resume continues." in out
    assert "Traceback" not in err
    last = events.read_text().splitlines()[-1]
    assert last.count(",") == 6
    assert not (tmp_path / "here" / "result.json").exists()
    [manifest] = (tmp_path / "here" / "checkpoints").glob("*.json")
    assert json.loads(manifest.read_text())["body"]["learner"]["steps"] == int(last.split(",")[0]) + 1
    other = hge(*settings, "--resume", "--seed", "7", cwd=tmp_path)
    assert other.returncode == 2
    assert "other settings" in other.stderr


@pytest.mark.slow
def test_a_run_that_replaces_an_unfinished_one_says_so(tmp_path: Path) -> None:
    settings = ("run", "split-digits", "--epochs-scale", "0.03", "--out", "here")
    with pytest.raises(CutOffError):
        run(build_config("split-digits", epochs_scale=0.03), tmp_path / "here", cut_off_at(17), checkpoint_every=5)
    told = "here has an unfinished run of 15 batches; it is replaced (--resume continues it, with the same settings)."
    first, second = (hge(*settings, cwd=tmp_path) for _ in range(2))
    assert (first.returncode, told in first.stdout) == (0, True)
    assert "unfinished" not in second.stdout, "it replaces a finished one"


@pytest.mark.slow
def test_what_came_to_its_end_is_not_run_again(tmp_path: Path) -> None:
    settings = ["run", "split-digits", "--epochs-scale", "0.05", "--out", "here"]
    first = hge(*settings, "--resume", cwd=tmp_path)
    assert "There is no checkpoint in here: the run starts from the beginning." in first.stdout
    made = (tmp_path / "here" / "trace.csv").stat().st_mtime_ns
    again = hge(*settings, "--resume", cwd=tmp_path)
    assert again.returncode == 0
    assert "is already finished" in again.stdout
    assert "gate accuracy" in again.stdout
    other = hge(*settings, "--resume", "--seed", "7", cwd=tmp_path)
    assert other.returncode == 2
    assert "in here (seed 7 instead of 0), expected the same; to start from the beginning, leave out" in other.stderr
    assert (tmp_path / "here" / "trace.csv").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    ("method", "every", "there_is_one", "can_go_on"),
    [
        ("hge", 2_000, True, True),
        ("hge", 2_000, False, False),
        ("hge", 0, True, False),  # of an older run
        ("tame", 2_000, True, True),
        ("organise", 2_000, False, False),
    ],
)
def test_going_on_is_offered_only_where_it_is_possible(
    method: str,
    every: int,
    there_is_one: bool,
    can_go_on: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "run", interrupted)
    monkeypatch.setattr(cli, "organise", interrupted)
    monkeypatch.setattr(cli, "has_checkpoint", lambda folder: there_is_one)
    for folder, left in ((tmp_path / "none", "Nothing was written."), (tmp_path, f"so far are in {tmp_path}")):
        with pytest.raises(KeyboardInterrupt):
            cli.run_and_show(build_config("split-digits", method), folder, checkpoint_every=every)
        told = capsys.readouterr().out.replace("\n", "")
        assert left in told
    assert ("--resume continues" in told) == can_go_on


@pytest.mark.slow
def test_diverging_run_still_reports(tmp_path: Path) -> None:
    options = ("--tasks", "2", "--epochs-scale", "0.2", "--set", "optimiser.lr=1000000", "--out", "here")
    done = hge("run", "split-digits", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here" / "report.html").exists()


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("brief")
    run(build_config("split-digits", epochs_scale=0.03), folder)
    return folder


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "[]"),
        ("result.json", "{"),
        ("events.jsonl", "{}\n"),
        ("trace.csv", "step\n"),
        ("trace.csv", "a\n1,2\n"),
    ],
)
def test_damaged_run_is_named(file: str, text: str, brief: Path, tmp_path: Path) -> None:
    shutil.copytree(brief, tmp_path, dirs_exist_ok=True)
    (tmp_path / file).write_text(text)
    done = hge("report", ".", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hge: {file}: damaged")
    assert done.stderr.count("\n") == 1


def test_data_commands_on_an_empty_folder(tmp_path: Path) -> None:
    status = hge("data", "status", "--data", "none", cwd=tmp_path)
    assert status.returncode == 0
    assert status.stdout.count(" no ") == 5
    verify = hge("data", "verify", "--data", "none", cwd=tmp_path)
    assert verify.returncode == 0, "what is not there is not damaged"
    assert verify.stdout.count("missing") >= 5
    for arguments, message in (
        (("data", "get", "imagenet"), "name: got 'imagenet', expected one of mnist"),
        (("data", "import", "nowhere"), "nowhere"),
        (("run", "smnist", "--data", "none"), "mnist"),
    ):
        done = hge(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_tree_is_drawn_for_several_runs(tmp_path: Path) -> None:
    for method, recipe in (("hge", "default"), ("hge", "paper")):
        run(build_config("split-digits", method, recipe, epochs_scale=0.1), tmp_path / recipe)
    done = hge("trees", "default", "paper", "--out", "trees.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "├─" in done.stdout
    assert (tmp_path / "trees.html").read_text().count("<svg") == 2
    assert "digraph" in (tmp_path / "default" / "tree-hge.dot").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("score", "ways"), [("sketch", 4), ("autoencoder", 5)])
def test_organise_compares_four_ways_and_a_shortlist_where_scores_are_costly(
    score: str, ways: int, tmp_path: Path
) -> None:
    options = ("--method", "organise", "--score", score, "--epochs-scale", "0.2", "--out", "here")
    done = hge("run", "split-digits", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    found = result["organisation"]
    assert found.keys() == {"ge", "hge", "upper", "selected", "shortlist"} - ({"shortlist"} if ways == 4 else set())
    assert found["ge"]["experts_queried"] == 5
    if ways == 5:
        assert 1 <= found["shortlist"]["experts_queried"] < 5
        assert found["shortlist"]["accuracy"] >= found["ge"]["accuracy"]
    assert result["upper_statistics"]["accuracy"].keys() >= {"pcc", "mean", "std", "median", "iqr", "mad"}
    assert done.stdout.count(" of 5") == ways, "one line each"
    assert (tmp_path / "here" / "report.html").read_text().count("<svg") >= 3


@pytest.mark.slow
def test_streams_of_other_kinds_run(tmp_path: Path) -> None:
    options = ("--mix", "split-digits", "--visits", "0 5 1:0.5 0", "--blend", "5", "--epochs-scale", "0.1")
    done = hge("run", "permuted-digits", "--tasks", "5", *options, "--out", "here", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert (result["protocol"]["mix"], result["protocol"]["blend"]) == ("split-digits", 5)
    wrong = hge("run", "permuted-digits", "--visits", "0 99", cwd=tmp_path)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
