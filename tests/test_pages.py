"""The Python code of README and of every page in docs runs, and shows what it prints."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hge.data.catalogue import SCENARIOS
from hge.experiments.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))
    if "```python\n" in path.read_text(encoding="utf-8")
)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, in one namespace, in an empty folder; what they register is taken back."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "page"}
    text = (ROOT / page).read_text(encoding="utf-8")
    with mock.patch.dict(SCENARIOS), mock.patch.dict(METHODS):
        for block in FENCE.finditer(text):
            run(block[1], namespace, page, text.count("\n", 0, block.start()) + 1)


def run(code: str, namespace: dict[str, Any], page: str, line: int) -> None:
    """Run a block: a session with prompts, whose output is compared, or plain code."""
    if not code.startswith(">>>"):
        exec(compile("\n" * line + code, page, "exec"), namespace)
        return
    session = doctest.DocTestParser().get_doctest(code, namespace, page, page, line)
    report: list[str] = []
    failed = doctest.DocTestRunner(verbose=False).run(session, out=report.append, clear_globs=False).failed
    namespace.update(session.globs)  # doctest runs in a copy
    assert not failed, "".join(report)


def test_pages_have_code() -> None:
    assert {"README.md", "docs/tutorial.md", "docs/howto/network.md"} <= set(PAGES)


def test_output_that_differs_is_noticed() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run(">>> 1 + 1\n3\n", {}, "page.md", 1)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page: str) -> None:
    """The build of the docs checks their links, not those of pages outside of docs."""
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / page).read_text(encoding="utf-8"))
    here = [link for link in links if "://" not in link]
    assert here
    assert [link for link in here if not (ROOT / link).exists()] == []


def test_every_package_is_described() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "src/hge").glob("*/__init__.py")]
    assert packages
    assert [name for name in packages if f"| `hge.{name}` |" not in text] == []


def test_files_that_the_page_of_the_paper_names_are_there() -> None:
    text = (ROOT / "docs/paper.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z_]+/[a-z_/]+(?:\.py|/))`", text)
    assert "learning/learner.py" in named
    assert [name for name in named if not ((ROOT / "src/hge" / name).exists() or (ROOT / name).exists())] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
