"""The wheel holds what an installed hge needs: modules, templates, the typing marker, the licence."""

from __future__ import annotations

import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

pytestmark = pytest.mark.slow  # the wheel is built
ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    """Build in a copy, so that the working tree gets no build files."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, copy]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("hge-*.whl")
    return ZipFile(built)


def test_wheel_holds_every_file_of_the_package(wheel: ZipFile) -> None:
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "hge").rglob("*")
        if path.suffix in {".py", ".j2", ".html"} or path.name == "py.typed"
    }
    assert "hge/py.typed" in wanted
    assert "hge/drawing/templates/page.html.j2" in wanted
    assert wanted <= set(wheel.namelist())


def test_wheel_holds_the_licence(wheel: ZipFile) -> None:
    (licence,) = (name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()


def test_metadata_name_the_licence_the_paper_and_the_command(wheel: ZipFile) -> None:
    files = {name.partition("/")[2]: name for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(files["METADATA"]).decode())
    assert f"\nversion: {metadata['Version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Paper, https://arxiv.org/abs/2412.17188" in metadata.get_all("Project-URL", [])
    assert "hge = hge.cli.main:main" in wheel.read(files["entry_points.txt"]).decode()
