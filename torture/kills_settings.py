"""Kill -9 and resume runs of other methods, recipes and streams, at random moments; no byte may differ afterwards."""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hge.core.config import RunConfig
from hge.core.settings import override
from hge.experiments.build import build_learner
from hge.experiments.recipes import build_config
from hge.experiments.run_files import EVENTS, TRACE
from hge.experiments.runner import run
from hge.learning.online import OnlineLearner, Step
from torture.digest import snapshot_digest

Log = Callable[[str], None]
FINAL = "final.json"
TIMES = ("samples_per_second", "training_seconds", "cost", "protocol")
"""What differs between two runs of the same stream: times, and what is said of them."""
KILLS_PER_RUN = 3
LONGEST_WAIT = 0.2
"""Longest time from the batch of a kill to the kill, in seconds: it may hit anything, also a checkpoint."""
CHECKPOINT_EVERY = 5
MIX, VISITS, BLEND = "mix=split-digits", "visits=0 1 0:0.5 2 1", "blend=6"
TRACK, ADAM = "track=true", "optimiser.name=adam"
RUNS = (
    ("hge", "default", (TRACK, BLEND)),
    ("hge", "best", (TRACK, VISITS)),
    ("hge", "paper", (TRACK, MIX)),
    ("hge", "best", (ADAM, MIX)),
    ("ge-no-review", "default", (TRACK, BLEND, ADAM)),
    ("ge-no-review", "paper", (TRACK, VISITS)),
    ("ge-no-review", "best", (MIX,)),
    ("ge-no-review", "default", (VISITS, BLEND)),
    ("tame", "default", (BLEND,)),
    ("tame", "paper", (MIX,)),
    ("tame", "best", (VISITS,)),
    ("tame", "default", (ADAM, MIX)),
    ("separate", "default", (MIX,)),
    ("separate", "paper", (BLEND,)),
    ("separate", "best", (VISITS,)),
    ("separate", "default", (ADAM, BLEND)),
)
"""Methods, recipes and settings; three kills each are 48."""


@dataclass(frozen=True)
class Victim:
    """A run, and the batch from which it may be killed."""

    folder: Path
    config: RunConfig
    kill_at: int = -1

    def live(self, parent: Connection) -> None:
        """Run until finished or killed; report the first batch, that of the kill, and the number of batches."""
        torch.set_num_threads(1)
        reporter = _Reporter(self.kill_at, parent)
        with patch("hge.experiments.runner.build_learner", reporter.build):
            result = run(self.config, self.folder, reporter, resume=True, checkpoint_every=CHECKPOINT_EVERY)
        lasting = {k: v for k, v in result.items() if k not in TIMES}
        assert reporter.learner is not None
        final = {"state": snapshot_digest(reporter.learner.snapshot()), "result": lasting}
        (self.folder / FINAL).write_text(json.dumps(final, sort_keys=True))
        reporter.begin(result["batches"])  # nothing was left to learn
        while reporter.armed:  # the kill is on its way: every life but the last ends by it, however fast the machine
            time.sleep(LONGEST_WAIT)
        parent.send(("ended", result["batches"]))


@dataclass
class _Reporter:
    kill_at: int
    parent: Connection
    learner: OnlineLearner | None = None
    begun: bool = False
    armed: bool = False

    def build(self, *arguments: Any) -> OnlineLearner:
        self.learner = build_learner(*arguments)
        return self.learner

    def begin(self, batch: int) -> None:
        if not self.begun:
            self.begun = True
            self.parent.send(("begun", batch))

    def __call__(self, step: Step, total: int, learner: OnlineLearner) -> None:
        self.begin(step.step)
        if step.step == self.kill_at:
            self.armed = True
            self.parent.send(("armed", step.step))
        if self.armed:  # what is left takes longer than the kill's delay, so that most kills meet a run at work
            time.sleep(2 * LONGEST_WAIT / (total - self.kill_at))


def torture_kills_settings(
    folder: Path, log: Log, runs: Sequence[tuple[str, str, tuple[str, ...]]] = RUNS, *, workers: int = 2
) -> dict[str, Any]:
    """Kill every run three times, `workers` runs at once, and compare it with an uninterrupted one."""
    victims = [
        Victim(folder / f"{number}-{method}-{recipe}", _config(method, recipe, settings))
        for number, (method, recipe, settings) in enumerate(runs)
    ]
    kills: list[dict[str, Any]] = []
    differences: list[str] = []
    with ThreadPoolExecutor(workers) as together:
        for (method, recipe, settings), (own, different) in zip(runs, together.map(_compare, victims), strict=True):
            kills += [{"method": method, "recipe": recipe, "settings": list(settings), **kill} for kill in own]
            differences += different
            log(f"kills under {method} {recipe} {' '.join(settings)}: {len(kills)}, {len(differences)} differences")
    return {
        "kills": len(kills),
        "by_method": dict(Counter(kill["method"] for kill in kills)),
        "by_recipe": dict(Counter(kill["recipe"] for kill in kills)),
        "by_setting": dict(Counter(setting.partition("=")[0] for kill in kills for setting in kill["settings"])),
        "resumed_from": [kill["resumed_from"] for kill in kills],
        "differences": differences,
        "log": kills,
    }


def _config(method: str, recipe: str, settings: Sequence[str]) -> RunConfig:
    config = replace(build_config("split-digits", method, recipe, epochs_scale=0.15), tasks=3)
    # Three small tasks of a selector that is trained briefly: the moments matter, not the accuracy.
    for setting in (*settings, "tame.selector_epochs=2", "deterministic=true"):
        config = override(config, setting)
    return config


def _compare(victim: Victim) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the kills, and the files in which the killed run differs from an uninterrupted one."""
    moments = random.Random(victim.folder.name)
    whole, killed = (replace(victim, folder=victim.folder / name) for name in ("whole", "killed"))
    batches = _live(whole, moments)["ended"]
    kills: list[dict[str, Any]] = []
    for number in range(KILLS_PER_RUN + 1):
        # From the first checkpoint on, in the order of the stream, so that each life is longer than the one before.
        part = (batches - 2 * CHECKPOINT_EVERY) // (KILLS_PER_RUN + 1)
        kill_at = CHECKPOINT_EVERY + number * part + moments.randrange(part)
        life = _live(killed if number == KILLS_PER_RUN else replace(killed, kill_at=kill_at), moments)
        if kills:
            kills[-1]["resumed_from"] = life["begun"]
        if "ended" not in life:
            kills.append({"batch": life["armed"]})
    files = (EVENTS, TRACE, FINAL)
    different = [file for file in files if (whole.folder / file).read_bytes() != (killed.folder / file).read_bytes()]
    return kills, [f"{victim.folder.name}: {file}" for file in different]


def _live(victim: Victim, moments: random.Random) -> dict[str, int]:
    """Let a run live until it ends or is killed; return what it reported."""
    # Forked from a server that has imported everything: starting a process anew would take longer than the run.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=victim.live, args=(sender,))
    process.start()
    sender.close()
    reported: dict[str, int] = {}
    try:
        while True:
            event, batch = receiver.recv()
            reported[event] = batch
            if event == "armed":
                time.sleep(moments.uniform(0, LONGEST_WAIT))
                process.kill()
    except EOFError:
        process.join()
    assert process.exitcode == (0 if "ended" in reported else -9), f"{victim}: ended with {process.exitcode}"
    return reported
