"""The files that one accepted batch of a run passes through are those that docs/architecture.md lists."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

import hge
from helpers.places import ROOT
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.learning.online import OnlineLearner, Step

SOURCES = Path(hge.__file__).parent
MOST_FILES = 21
"""More are a sign of a batch that is handed on without need."""


@contextmanager
def noting_files(entered: set[str]) -> Iterator[None]:
    """Add to `entered` the modules of hge whose functions are called inside the block."""
    names = {str(path): ".".join(path.relative_to(SOURCES).with_suffix("").parts) for path in SOURCES.rglob("*.py")}

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename in names:
            entered.add(names[frame.f_code.co_filename])

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.slow
def test_the_page_lists_the_files_of_an_accepted_batch(tmp_path: Path) -> None:
    entered: set[str] = set()
    paths = Counter[frozenset[str]]()

    def on_step(step: Step, total: int, learner: OnlineLearner) -> None:
        if step.trained == ((step.step, step.expert),):  # accepted, and nothing else was trained on
            paths[frozenset(entered)] += 1
        entered.clear()

    with noting_files(entered):
        run(replace(build_config("split-digits"), tasks=2, epochs=20), tmp_path / "run", on_step)
    (usual, _), *_ = paths.most_common(1)
    assert usual == listed()
    assert len(usual) <= MOST_FILES


def listed() -> set[str]:
    """Return the files of the page's table."""
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = page.partition("| what happens | files |")[2].partition("\n\n")[0]
    return set(re.findall(r"`([a-z_.]+)`", table))
