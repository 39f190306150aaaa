"""Names from strangers: folders, classes and scenarios called by markup, formulas or bytes that are no text."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.command import hge
from hge.cli.console import PlainConsole
from hge.experiments.results import Line, as_latex, as_markdown, build_table

NAMES = (b"[red]x", b"$x^$ | y", b"<script>alert(1)", b"\xff\xfe \x1b[31m", b"a\nb\\", "数".encode())


@pytest.mark.slow
def test_classes_of_any_name_make_a_report(tmp_path: Path) -> None:
    rng, data = np.random.default_rng(0), tmp_path / "[bold]$\udcff"
    for name in NAMES:
        folder = os.fsencode(data) + b"/" + name
        os.makedirs(folder)
        for number in range(40):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(os.fsdecode(folder) + f"/{number}.png")
    out = tmp_path / "[/bold]out"
    options = ["--data", str(data), "--tasks", "6", "--out", str(out), "--epochs-scale", "0.01", "--set", "net=mlp"]
    done = hge("run", "image-folder", "--method", "ge", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert f"Report: {out}" in done.stdout.replace("\n", "")
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page
    assert "$x^$ | y" in page


def test_errors_show_names_as_they_are_and_control_nothing(tmp_path: Path) -> None:
    done = hge("report", str(tmp_path / "[red]a\x1b]0;b\udcff"), cwd=tmp_path)
    assert done.returncode == 2
    assert "[red]a�]0;b�" in done.stderr


def test_the_console_takes_no_text_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    PlainConsole(width=60).print("[red]x[/] [/nothing] :smile: a\x1b[31mb \udcff")
    assert capsys.readouterr().out == "[red]x[/] [/nothing] :smile: a�[31mb �\n"


@pytest.fixture
def strange_line() -> Line:
    line = build_table(4, [])[0]
    return replace(line, scenario="a|b\\c $d$ <script>\n[e](f) {g} #h ~i ^j &k 50%")


def test_markdown_shows_names_as_they_are(strange_line: Line) -> None:
    row = as_markdown(4, [strange_line]).splitlines()[4]
    assert r"a\|b\\c \$d\$ &lt;script> \[e\](f) {g}" in row


def test_latex_shows_names_as_they_are(strange_line: Line) -> None:
    row = as_latex(4, [strange_line]).splitlines()[6]
    assert r"a|b\textbackslash{}c \$d\$ <script> [e](f) \{g\} \#h" in row
    assert r"\textasciitilde{}i \textasciicircum{}j \&k 50\%" in row
