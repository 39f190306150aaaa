"""Short runs that are interrupted, and the files they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.lasting import lasting
from hge.core.config import RunConfig
from hge.experiments.recipes import build_config


class CutOffError(Exception):
    pass


def config_of(method: str, recipe: str = "default") -> RunConfig:
    return build_config("recurring-digits", method, recipe, epochs_scale=0.1)


def cut_off_at(last: int) -> Any:
    def on_step(step: Any, total: int, learner: Any) -> None:
        if step.step == last:
            raise CutOffError

    return on_step


def outcome(folder: Path, result: dict[str, Any]) -> tuple[bytes, bytes, dict[str, Any]]:
    return (folder / "events.jsonl").read_bytes(), (folder / "trace.csv").read_bytes(), lasting(result)
