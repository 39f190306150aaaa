"""A run that is killed at a certain kind of moment: `python -m torture.victim ORDER`, with the order in JSON.

It prints on standard output where it began, and its state when it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from hge.core.randomness import Keys
from hge.experiments.build import build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.runner import run
from hge.experts.optim import deterministic_algorithms
from hge.learning.checkpoint import Checkpoints
from hge.learning.learner import Learner
from hge.learning.online import Step
from hge.learning.state import Snapshot
from torture.digest import answers_digest, state_digest

Kind = Literal["none", "random", "probation", "set-aside", "renaming"]


@dataclass(frozen=True)
class Order:
    """Which run to make, and when to kill it."""

    folder: str
    method: str
    recipe: str
    seed: int
    kind: Kind = "none"
    moment: int = 0
    """Batches to wait after the required state; for renaming, the number of the checkpoint's file."""
    scenario: str = "recurring-digits"
    epochs_scale: float = 0.25
    checkpoint_every: int = 5
    device: str = "cpu"

    def as_json(self) -> str:
        """Return the order as one command-line argument."""
        return json.dumps(asdict(self))


RENAMED = ("state-", "expert-", "checkpoint-")
"""Prefixes of a checkpoint's files, in the order in which they are renamed."""
CHECKPOINTS_BEFORE = 4
"""Checkpoints of a process before the one that is interrupted between writing and renaming."""


class Killer:
    """Kills this process at the ordered moment."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.learner: Learner | None = None
        self.saved: dict[str, int] = {}
        """Counts in the newest checkpoint of this process: newcomers on probation, batches that are set aside."""
        self.checkpoints = 0
        self.countdown = -1
        self._begun = self._armed = False

    def on_step(self, step: Step, total: int, learner: Any) -> None:
        """Check after a batch whether the moment has come."""
        self._begin(step.step)
        if self.order.kind == "random" and not self._armed and self.saved:
            send_event("armed")  # the parent process kills this one at a random moment from now on
            self._armed = True
        if self._state_reached():
            self.countdown = self.order.moment if self.countdown < 0 else self.countdown - 1
            if self.countdown <= 0:
                self.kill(step=step.step)

    def on_end(self, learner: Learner) -> None:
        """Keep the learner at the end of the stream; a run that resumes there learns no batch."""
        self._begin(learner.steps)
        self.learner = learner

    def _begin(self, step: int) -> None:
        if not self._begun:
            send_event("begun", step=step)
            self._begun = True

    def on_checkpoint(self, snapshot: Snapshot) -> None:
        """Record what was saved."""
        self.checkpoints += 1
        recent = snapshot.facts["recent"]["entries"]
        set_aside = sum(expert is None for _, expert, _ in recent)
        self.saved = {"probation": len(snapshot.facts["organisation"]["probations"]), "set-aside": set_aside}

    def kill(self, **facts: Any) -> None:
        """Report the state, then kill -9."""
        send_event("dies", **facts)
        os.kill(os.getpid(), signal.SIGKILL)

    def _state_reached(self) -> bool:
        return self.saved.get(self.order.kind, 0) > 0


def send_event(event: str, **facts: Any) -> None:
    """Report an event to the parent process."""
    print(json.dumps({"event": event} | facts), flush=True)


def install(killer: Killer) -> None:
    """Notify `killer` when checkpoints are written and renamed, and at the end of the stream."""
    write, rename, end = Checkpoints.write, Path.replace, Learner.end_stream

    def writing(self: Checkpoints, snapshot: Snapshot, facts: Any) -> Path:
        path = write(self, snapshot, facts)
        killer.on_checkpoint(snapshot)
        return path

    def renaming(self: Path, target: Path) -> Path:
        name = RENAMED[killer.order.moment % len(RENAMED)]
        wanted = killer.order.kind == "renaming" and Path(target).name.startswith(name)
        if wanted and killer.checkpoints == CHECKPOINTS_BEFORE:
            killer.kill(renaming=Path(target).name.partition("-")[0])
        return rename(self, target)

    def ending(self: Learner) -> None:
        end(self)
        killer.on_end(self)

    Checkpoints.write, Path.replace = writing, renaming  # type: ignore[method-assign,assignment]
    Learner.end_stream = ending  # type: ignore[method-assign]


def main(order: Order) -> None:
    """Run until finished or killed; at the end, write the digests of weights and predictions."""
    torch.set_num_threads(1)
    config = build_config(order.scenario, order.method, order.recipe, epochs_scale=order.epochs_scale)
    config = replace(config, seed=order.seed, device=order.device, deterministic=True)
    killer, folder = Killer(order), Path(order.folder)
    install(killer)
    run(config, folder, killer.on_step, resume=True, checkpoint_every=order.checkpoint_every)
    assert killer.learner is not None
    scenario = build_scenario(config, Keys(config.seed), None)
    with deterministic_algorithms(enabled=True):
        final = {"weights": state_digest(killer.learner), "answers": answers_digest(killer.learner, scenario)}
    (folder / "final.json").write_text(json.dumps(final))


if __name__ == "__main__":
    main(Order(**json.loads(sys.argv[1])))
