"""What is quick to start, and why: torch, scikit-learn and matplotlib are imported by what needs them."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import hge
from helpers.dataset_files import write_mnist
from hge.cli.main import COMMANDS
from hge.cli.scenarios import BUNDLED, build_and_count, scenarios_command

QUICK = {
    "import": ["-c", "import hge"],
    "--help": ["-m", "hge", "--help"],
    "--version": ["-m", "hge", "--version"],
    "scenarios": ["-m", "hge", "scenarios", "--data", "."],
}
SLOW_PACKAGES = {"torch", "sklearn", "scipy", "matplotlib"}
CPU_SECONDS = {"import": 0.3, "--help": 0.8, "--version": 0.8, "scenarios": 1.2}
"""Well above what was measured (0.04, 0.35, 0.15 and 0.6) and well below torch's share (more than 3)."""
ATTEMPTS = 3
"""A busy machine makes a process costlier, never cheaper: one quick start of these is enough."""


def python(*arguments: str, path: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run Python, with modules of `path` in front of installed ones."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    # A shell ignores Ctrl-C for what it runs in the background, and so would the command.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, preexec_fn=heed, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", QUICK)
def test_slow_packages_are_not_imported(start: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    done = python("-X", "importtime", *QUICK[start], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert "hge" in imported
    assert imported.isdisjoint(SLOW_PACKAGES)


@pytest.mark.slow
@pytest.mark.parametrize("start", QUICK)
def test_start_is_quick(start: str, tmp_path: Path) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    spent = []
    for _ in range(ATTEMPTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python(*QUICK[start], cwd=tmp_path)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0, done.stderr
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if spent[-1] < CPU_SECONDS[start]:
            return
    pytest.fail(f"took {spent} CPU-seconds, expected less than {CPU_SECONDS[start]}")


@pytest.mark.slow
@pytest.mark.parametrize("entry", [["-m", "hge"], ["-c", "from hge.cli.main import main; main()"]])
@pytest.mark.parametrize("package", ["typer", "torch"])
def test_ctrl_c_during_imports_ends_with_one_line(entry: list[str], package: str, tmp_path: Path) -> None:
    (tmp_path / f"{package}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = python(*entry, "demo", path=tmp_path, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hge: interrupted while starting\n")


def test_version(tmp_path: Path) -> None:
    done = python("-m", "hge", "--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hge {hge.__version__}\n", "")


def test_the_estimator_is_an_attribute_of_the_package() -> None:
    from hge.estimator.classifier import GatedExperts

    assert hge.GatedExperts is GatedExperts
    assert set(hge.__all__) <= set(dir(hge))
    with pytest.raises(AttributeError, match="module 'hge' has no attribute 'Gates'"):
        hge.Gates  # noqa: B018


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_help(name: str) -> None:
    command = COMMANDS[name]
    assert command.load(name).help.splitlines()[0] == command.summary


@pytest.mark.parametrize("name", BUNDLED)
def test_counts_of_bundled_scenarios_are_theirs(name: str, tmp_path: Path) -> None:
    assert build_and_count(name, tmp_path) == BUNDLED[name]


@pytest.mark.parametrize(("count", "columns"), [(False, "5 40 yes"), (True, "5 10 12 40 200 yes")])
def test_images_are_counted_on_request(
    count: bool, columns: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_mnist(tmp_path / "MNIST" / "raw")
    scenarios_command(tmp_path, count=count)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith(f"smnist {columns}") for line in lines), lines
