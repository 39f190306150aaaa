"""Short runs that are interrupted, and the files they leave."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from helpers.lasting import lasting
from hge.core.config import RunConfig
from hge.core.settings import override
from hge.experiments.recipes import build_config
from hge.experiments.runner import run


class CutOffError(Exception):
    pass


def config_of(method: str, recipe: str = "default") -> RunConfig:
    config = build_config("recurring-digits", method, recipe, epochs_scale=0.1)
    return override(config, "tame.selector_epochs=2")  # TAME's only; by far the longest part of its run


def cut_off_at(last: int) -> Any:
    def on_step(step: Any, total: int, learner: Any) -> None:
        if step.step == last:
            raise CutOffError

    return on_step


Outcome = tuple[bytes, bytes, dict[str, Any]]


@cache
def whole_outcome(method: str, recipe: str = "default") -> Outcome:
    """What a run without checkpoints leaves, to which nothing happened; made once for all tests of a process."""
    with TemporaryDirectory() as folder:
        return outcome(Path(folder), run(config_of(method, recipe), Path(folder), checkpoint_every=0))


def outcome(folder: Path, result: dict[str, Any]) -> Outcome:
    return (folder / "events.jsonl").read_bytes(), (folder / "trace.csv").read_bytes(), lasting(result)
