"""The Dockerfile and the workflows, as far as they can be checked without building anything."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hge.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent


def lines() -> list[str]:
    """Return the Dockerfile's instructions, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_runs_a_command_that_exists_as_a_user_without_rights() -> None:
    found = dict(line.split(maxsplit=1) for line in lines())
    assert found["USER"] not in ("root", "0")
    assert list(found).index("USER") > list(found).index("RUN")
    program, command, *_ = json.loads(found["ENTRYPOINT"])
    assert (program, command in COMMANDS) == ("hge", True)
    assert not re.search(r"HGE_TOKEN", "".join(lines())), "a token does not belong in an image"


def test_the_image_is_given_nothing_but_the_wheel() -> None:
    assert (ROOT / ".dockerignore").read_text().split() == ["*", "!dist/hge-*.whl"]
    assert [line for line in lines() if line.startswith(("COPY", "ADD"))] == ["COPY dist/hge-*.whl /tmp/"]


@pytest.mark.parametrize(("name", "target"), [("test", "test"), ("docs", "docs")])
def test_a_workflow_calls_a_target_of_the_makefile(name: str, target: str) -> None:
    text = (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    assert f"- run: make {target}\n" in text
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "contents: read" in text
