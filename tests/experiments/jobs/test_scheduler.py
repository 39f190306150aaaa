"""The runs that tables need: which they are, and that each is made once, whatever happens to the others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.command import hge
from helpers.lasting import lasting
from helpers.places import ROOT
from hge.core.settings import override
from hge.experiments import run_files as record
from hge.experiments.jobs import worker as jobs
from hge.experiments.jobs.eta import Forecast
from hge.experiments.jobs.local import LocalExecutor, read_outcome
from hge.experiments.jobs.plan import (
    Job,
    build_jobs,
    filter_runs,
    missing_jobs,
    read_jobs,
    required_runs,
    table_numbers,
)
from hge.experiments.jobs.scheduler import SUBFOLDER, reproduce
from hge.experiments.jobs.worker import Progress, Workspace, read_progress, run_job
from hge.experiments.paper_tables import paper_table
from hge.experiments.recipes import build_config
from hge.experiments.runner import protocol, run


def jobs_of(chosen: list[tuple[str, str]], **settings: Any) -> list[Job]:
    return build_jobs(chosen, **({"recipe": "paper", "seeds": 1, "epochs_scale": 0.1, "device": "cpu"} | settings))


def test_subjects_follow_the_papers_tables() -> None:
    scenarios = {cell.scenario for number in (4, 5) for cell in paper_table(number)}
    assert len(scenarios) == 11
    assert set(required_runs([1])) == {(s, m) for s in scenarios for m in ("ge", "ge-no-review", "tame")}
    assert set(required_runs([2])) == set(required_runs([3])) == {(s, "organise") for s in scenarios}
    assert {m for s, m in required_runs([4]) if s == "smnist"} == {"separate", "ge", "hge", "tame"}
    assert {m for s, m in required_runs([4]) if s == "imgnet-20"} == {"separate", "ge", "hge"}  # TAME: N/A
    assert {m for _, m in required_runs([5])} == {"separate", "ge", "hge"}
    assert required_runs([], [1, 2]) == [("smnist", "hge"), ("cif10-inv", "organise"), ("mnist-kmnist", "organise")]
    everything = required_runs(table_numbers("all"), [1, 2])
    assert len(everything) == len(set(everything)) == 11 * 6  # six methods, TAME by Table 1


def test_narrowing_down() -> None:
    needed = required_runs([4])
    assert filter_runs(needed, ["smnist"], ["ge", "hge"]) == [("smnist", "ge"), ("smnist", "hge")]
    assert filter_runs([], ["split-digits", "split-digits"], ["ge"]) == [("split-digits", "ge")]
    with pytest.raises(ValueError, match="scenario: got 'cif10-inv', expected one of pmnist"):
        filter_runs(needed, ["cif10-inv"], [])
    with pytest.raises(ValueError, match="method: got 'organise', expected one of"):
        filter_runs(needed, [], ["organise"])
    with pytest.raises(ValueError, match="method: got tame, expected one needed for imgnet-10"):
        filter_runs(needed, ["imgnet-10"], ["tame"])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["paper", "best"])
def test_jobs_are_plain_json_and_have_names_of_their_own(recipe: str) -> None:
    made = jobs_of(required_runs([1, 2, 3, 4, 5]), recipe=recipe, seeds=2, track=True)
    assert len({job.name for job in made}) == len(made)
    for job in made:
        assert Job.from_json(json.loads(json.dumps(job.as_json()))) == job
    assert {job.config.precision for job in jobs_of([("smnist", "ge")], precision="tf32")} == {"tf32"}
    with pytest.raises(ValueError, match="precision: got 'tea', expected 'fp32' or 'tf32' or 'bf16'"):
        jobs_of([("smnist", "ge")], precision="tea")
    with pytest.raises(ValueError, match="epsilom: no such setting"):
        Job.from_json(jobs_of([("smnist", "ge")])[0].as_json() | {"settings": {"learner.epsilom": 5}})


def test_every_setting_of_a_job_survives_json() -> None:
    config = replace(build_config("split-digits", "tame", "paper"), visits="A B A", device="cuda", seed=3)
    config = override(override(config, "tame.window=7"), "learner.epsilon=5")
    job = Job.of(config)
    assert Job.from_json(json.loads(json.dumps(job.as_json()))) == job
    assert "epsilon" in job.name
    assert job.as_json()["settings"]["visits"] == "A B A"


def test_what_is_there_is_not_made_again() -> None:
    first, second = jobs_of([("smnist", "ge")], seeds=2)
    there = {"protocol": protocol(first.config)}
    assert missing_jobs([first, second], [there]) == [second]
    assert missing_jobs([replace(first, config=replace(first.config, device="cuda"))], [there]) == []
    for change in (
        {"epochs": 40},
        {"tasks": 3},
        {"score": "sketch"},
        {"precision": "bf16"},
        {"changed": {"learner.epsilon": 5.0}},
    ):
        assert missing_jobs([first], [{"protocol": there["protocol"] | change}]) == [first]
    del there["protocol"]["precision"]  # an old result, of fp32
    assert missing_jobs([first], [there]) == []
    tracked = replace(first, config=replace(first.config, track=True))
    assert missing_jobs([tracked], [there]) == [tracked]
    assert missing_jobs([tracked], [there | {"tracked": {}}, there]) == []


def test_a_changed_recipe_is_another_run() -> None:
    (usual,) = jobs_of([("smnist", "ge")])
    (plain,) = jobs_of([("smnist", "ge")], assignments=["score.variational=false"])
    assert plain.name == "smnist-ge-paper-epochs4-score.variational-False-seed0"
    assert not plain.config.score.variational
    assert missing_jobs([plain], [{"protocol": protocol(usual.config)}]) == [plain]
    assert missing_jobs([plain], [{"protocol": protocol(plain.config)}]) == []


def test_whatever_decides_a_runs_outcome_is_in_its_name() -> None:
    changes = ("tasks=3", "batch_size=64", "test_batch_size=64", "mix=pmnist", "blend=5", "visits=0 1", "visits=0:1")
    variants: list[dict[str, Any]] = [{"assignments": [change]} for change in changes]
    names = [jobs_of([("smnist", "ge")], **more)[0].name for more in ({}, {"precision": "bf16"}, *variants)]
    assert len(set(names)) == len(names)
    assert names[:3] == [
        "smnist-ge-paper-epochs4-seed0",
        "smnist-ge-paper-epochs4-precision-bf16-seed0",
        "smnist-ge-paper-epochs4-tasks-3-seed0",
    ]
    assert not set(" :/").intersection("".join(names))


@pytest.mark.slow
def test_results_that_are_there_have_the_names_of_their_runs() -> None:
    for file in (ROOT / "results" / SUBFOLDER).glob("*.json"):
        told = json.loads(file.read_text())["protocol"]
        scale = told["epochs"] / build_config(told["scenario"], told["method"], told["recipe"]).epochs
        made = jobs_of(
            [(told["scenario"], told["method"])],
            recipe=told["recipe"],
            seeds=told["seed"] + 1,
            epochs_scale=scale,
            precision=told["precision"],
            assignments=[f"{name}={json.dumps(value)}" for name, value in told["changed"].items()],
        )
        assert file.stem == made[-1].name


def test_jobs_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    made = jobs_of([("smnist", "ge"), ("smnist", "tame")], seeds=2)
    file.write_text("\n\n".join(json.dumps(job.as_json()) for job in made))
    assert read_jobs(file) == made
    edited = made[0].as_json()
    edited["settings"]["seed"] = 3  # whoever changes a setting by hand need not think of the name
    file.write_text(json.dumps(edited))
    assert [job.name for job in read_jobs(file)] == ["smnist-ge-paper-epochs4-seed3"]


def job_line(**changed: object) -> str:
    return json.dumps({"scenario": "smnist", "method": "ge", "recipe": "default", "settings": {}} | changed) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no job"),
        ("{", "line 1: expected a job"),
        ("[]", "line 1: expected a job"),
        ('\n{"scenario": "smnist"}', "line 2: expected a job"),
        (job_line(scenario="nowhere"), "line 1: expected a job.*'nowhere'"),
        (job_line(settings={"seed": "a"}), "line 1: expected a job.*seed"),
        (job_line(settings=[]), "line 1: expected a job.*settings"),
        (job_line() * 2, "line 2: got smnist-ge-default-.* again"),
    ],
)
def test_a_file_of_jobs_that_cannot_be_read(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=f"jobs.jsonl.*{message}"):
        read_jobs(file)


@pytest.mark.parametrize("setting", ["seed=7", "device=cuda", "track=true", "precision=bf16", "epochs=4"])
def test_what_has_an_option_of_its_own_is_not_set(setting: str) -> None:
    with pytest.raises(ValueError, match=f"^{setting.partition('=')[0]}: not allowed in --set; use --"):
        jobs_of([("smnist", "ge")], assignments=[setting])


@pytest.mark.slow
def test_one_that_fails_or_dies_leaves_the_others_alone(tmp_path: Path) -> None:
    good, dying = jobs_of([("split-digits", "ge")], seeds=2, epochs_scale=0.03)
    [failing] = jobs_of([("smnist", "ge")])  # of which there are no data
    workspace = Workspace(tmp_path / "work", data=tmp_path)
    executor = LocalExecutor(workspace, workers=2)

    def kill_one(ended: list[Any]) -> None:
        for process in multiprocessing.active_children():
            if process.name == dying.name:
                process.kill()

    outcomes = reproduce([dying, failing, good], executor, tmp_path / "results", kill_one)
    by_name = {outcome.name: outcome for outcome in outcomes}
    assert len(outcomes) == 3
    assert by_name[dying.name].error == "the process died with exit code -9"
    assert "mnist" in by_name[failing.name].error
    assert "Traceback" in (workspace.folder(failing.name) / "error.txt").read_text()
    [file] = (tmp_path / "results" / SUBFOLDER).iterdir()
    assert file.name == f"{good.name}.json"
    assert lasting(json.loads(file.read_text())) == lasting(run(good.config, tmp_path / "alone"))


def test_a_process_that_dies_while_it_tells_its_result(tmp_path: Path) -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    os.write(there.fileno(), struct.pack("!i", 1000) + b"the first of a thousand bytes")
    there.close()
    process = multiprocessing.get_context("spawn").Process(target=os._exit, name="job", args=(3,))
    process.start()
    outcome = read_outcome(here, process)
    assert (outcome.name, outcome.result, outcome.error) == ("job", None, "the process died with exit code 3")


@pytest.mark.slow
def test_a_run_whose_end_was_not_heard_of_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=0.05)
    workspace = Workspace(tmp_path, runs_at_once=3)
    made = run_job(job, workspace)
    assert made.result is not None
    assert made.result["protocol"]["runs_at_once"] == 3
    monkeypatch.setattr(jobs, "run", None)
    again = run_job(job, workspace).result
    assert again is not None
    del made.result["protocol"]["runs_at_once"]  # nobody knows any more
    assert again == made.result
    other = replace(job, config=replace(job.config, seed=7))  # of the same name
    assert "NoneType" in run_job(other, Workspace(tmp_path)).error


@pytest.mark.slow
def test_the_commit_is_that_of_the_code_which_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=0.05)

    class CutOffError(Exception):
        pass

    def change_the_files(step: Any, total: int, learner: Any) -> None:
        monkeypatch.setenv("HGE_COMMIT", "later")

    def cut_off(step: Any, total: int, learner: Any) -> None:
        if step.step == 30:
            raise CutOffError

    monkeypatch.setenv("HGE_COMMIT", "one")
    assert run(job.config, tmp_path / "whole", change_the_files)["protocol"]["commit"] == "one"
    monkeypatch.setenv("HGE_COMMIT", "one")
    with pytest.raises(CutOffError):
        run(job.config, tmp_path / "cut", cut_off, checkpoint_every=20)
    with pytest.raises(CutOffError):
        run(job.config, tmp_path / "cut", cut_off, resume=True, checkpoint_every=1)
    monkeypatch.setenv("HGE_COMMIT", "another")
    told = run(job.config, tmp_path / "cut", resume=True, checkpoint_every=20)["protocol"]
    assert (told["commit"], told["earlier_commits"]) == ("another", ["one"])


@pytest.mark.slow
def test_a_result_of_another_commit_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=0.05)
    for commit in ("one", "another"):
        monkeypatch.setenv("HGE_COMMIT", commit)
        result = run_job(job, Workspace(tmp_path)).result
        assert result is not None
        assert result["protocol"]["commit"] == commit


def test_the_commit_is_that_of_the_package_and_of_no_tree_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HGE_COMMIT", raising=False)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "file").touch()
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(tmp_path), "add", "file"], check=True)
    subprocess.run(["git", "-C", str(tmp_path), *who, "commit", "-qm", "theirs"], check=True)
    monkeypatch.setattr(record, "__file__", str(tmp_path / "record.py"))
    assert record.commit() == "unknown"
    (tmp_path / "record.py").touch()
    assert record.commit() == "unknown", "not theirs either"
    monkeypatch.setenv("HGE_COMMIT", "told")
    assert record.commit() == "told"


def test_a_run_that_failed_or_went_on_near_its_end_tells_no_times() -> None:
    forecast = Forecast(["a", "b", "c"], [("smnist", "ge")] * 3)
    forecast.update("a", Progress(0, 1000, 0), now=0.0)
    forecast.ended("a", now=5.0, whole=False)
    assert forecast.status(1) == "1 of 3 ended"
    forecast.update("b", Progress(998, 1000, 997), now=5.0)
    forecast.update("b", Progress(999, 1000, 997), now=6.0)
    forecast.ended("b", now=66.0)
    assert forecast.status(1) == "2 of 3 ended"


def test_an_older_attempt_gives_way_to_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=0.05)
    monkeypatch.setattr(jobs, "PROGRESS_INTERVAL", 0.0)
    write_atomically = jobs.write_atomically

    def write(path: Path, text: str) -> None:
        write_atomically(path, text)
        if path.name == jobs.PROGRESS and json.loads(text)["done"] == 20:
            write_atomically(path.with_name(jobs.ATTEMPT), "another")

    monkeypatch.setattr(jobs, "write_atomically", write)
    outcome = run_job(job, Workspace(tmp_path))
    assert (outcome.result, "attempt: got a newer one" in outcome.error) == (None, True)


def test_dry_run_prints_jobs_and_writes_nothing(tmp_path: Path) -> None:
    done = hge("reproduce", "--table", "4", "--scenario", "smnist", "--seeds", "2", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = [Job.from_json(json.loads(line)) for line in done.stdout.splitlines()]
    assert {(job.config.method, job.config.seed) for job in listed} == {
        (method, seed) for method in ("separate", "ge", "hge", "tame") for seed in (0, 1)
    }
    assert {job.config.epochs for job in listed} == {build_config("smnist", recipe="paper").epochs}
    assert "To run: 8; already in results: 0" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_failure_has_an_exit_code_and_nothing_to_do_is_no_failure(tmp_path: Path) -> None:
    options = ("--method", "ge", "--seeds", "1", "--epochs-scale", "0.05", "--device", "cpu", "--data", ".")
    for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        file = tmp_path / "MNIST" / "raw" / f"{part}-ubyte"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"torn")
    done = hge("reproduce", "--scenario", "split-digits", "--scenario", "smnist", *options, cwd=tmp_path)
    assert done.returncode == 1
    assert "1 of 2 runs failed" in done.stdout
    done = hge("reproduce", "--scenario", "split-digits", *options, cwd=tmp_path)
    assert (done.returncode, "Runs: 1; already in results: 1" in done.stdout) == (0, True)


@pytest.mark.slow
def test_what_a_dry_run_prints_can_be_run(tmp_path: Path) -> None:
    options = ("--scenario", "split-digits", "--method", "ge", "--seeds", "2", "--epochs-scale", "0.05")
    listed = hge("reproduce", *options, "--device", "cpu", "--dry-run", cwd=tmp_path).stdout.splitlines()
    (tmp_path / "second.jsonl").write_text(listed[1])
    refused = hge("reproduce", "--jobs", "second.jsonl", "--device", "nowhere", cwd=tmp_path)
    assert "device: got 'nowhere'" in refused.stderr
    done = hge("reproduce", "--jobs", "second.jsonl", "--device", "auto", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [file.stem for file in (tmp_path / "results" / SUBFOLDER).iterdir()] == [
        Job.from_json(json.loads(listed[1])).name
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "table: got nothing, expected --table, --figure, --jobs, or --scenario with --method"),
        (
            ["--jobs", "some.jsonl", "--seeds", "5"],
            "jobs: got --seeds with --jobs, expected only options of where and how jobs run",
        ),
        (["--jobs", "missing.jsonl"], "missing.jsonl"),
        (
            ["--table", "4", "--data", ".", "--seeds", "1"],
            "data: got no cifar10, cifar100, mnist, tiny-imagenet in ., expected all",
        ),
        (["--scenario", "split-digits", "--method", "ge", "--set", "tasks=9"], "tasks: got 9, expected at most 5"),
        (["--scenario", "split-digits", "--method", "ge", "--results", "/dev/null/x"], "/dev/null/x/reproduced"),
        (["--scenario", "split-digits", "--method", "ge", "--work", "/dev/null/x"], "/dev/null/x"),
        (
            ["--scenario", "split-digits", "--method", "ge", "--precision", "bf16", "--device", "cpu"],
            "precision: got 'bf16', expected fp32 on a CPU",
        ),
        (["--table", "6"], "table: got '6', expected 1 to 5, or all"),
        (["--figure", "3"], "figure: got 3, expected one of 1, 2"),
        (["--table", "1", "--recipe", "default"], "recipe: got 'default', expected one of paper, best"),
    ],
)
def test_wrong_calls_end_with_one_line(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = hge("reproduce", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes there")
def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    options = ["--scenario", "split-digits", "--method", "ge", "--seeds", "1", "--device", "cpu"]
    command = [sys.executable, "-m", "hge", "reproduce", *options, "--checkpoint-every", "20"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, start_new_session=True)
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=1.0)
    folder, deadline = tmp_path / "runs" / "reproduce" / job.name, time.monotonic() + 60
    while read_progress(folder) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()

    while workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers_of(process.pid)
    assert not (folder / "result.json").exists(), "it was in the middle of its work"


def workers_of(group: int) -> list[Path]:
    """Return the worker processes of a process group."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            own = int((process / "stat").read_text().rpartition(")")[2].split()[2])
            if own == group and b"spawn_main" in (process / "cmdline").read_bytes():
                found.append(process)
        except OSError:  # it has just ended
            continue
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_ctrl_c_leaves_a_state_to_go_on_from(tmp_path: Path) -> None:
    [job] = jobs_of([("split-digits", "ge")], epochs_scale=0.1)
    options = ["--scenario", "split-digits", "--method", "ge", "--seeds", "1", "--epochs-scale", "0.1"]
    command = [sys.executable, "-m", "hge", "reproduce", *options, "--device", "cpu", "--checkpoint-every", "100000"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
    )
    folder, deadline = tmp_path / "runs" / "reproduce" / job.name, time.monotonic() + 60
    while (reached := read_progress(folder)) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: parent and workers
    assert process.wait(30) == 130
    assert not list((tmp_path / "results").rglob("*.json"))
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=120).returncode == 0
    progress = read_progress(folder)
    assert progress is not None
    assert reached is not None
    assert progress.began_at >= reached.done, "the worker took a checkpoint before it ended"
    result = json.loads((tmp_path / "results" / SUBFOLDER / f"{job.name}.json").read_text())
    assert lasting(result) == lasting(run(job.config, tmp_path / "whole"))
