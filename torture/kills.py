"""Kill -9 and resume runs repeatedly, then compare every byte with an uninterrupted run."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hge.experiments.run_files import CHECKPOINTS
from torture.victim import Kind, Order

Log = Callable[[str], None]
METHODS = (("ge", "default"), ("hge", "default"), ("ge", "paper"), ("hge", "paper"))
COMPARED = ("events.jsonl", "trace.csv", "final.json")
LONGEST_WAIT = 0.8
"""Longest time from a checkpoint to a random kill, in seconds."""


def torture_kills(
    folder: Path,
    log: Log,
    seeds: Sequence[int],
    methods: Sequence[tuple[str, str]],
    *,
    device: str = "cpu",
    workers: int = 1,
) -> dict[str, Any]:
    """Kill runs of every method and seed a few times each, `workers` runs at once; return the outcomes."""
    orders = [
        Order(str(folder / f"{method}-{recipe}-{seed}"), method, recipe, seed, device=device)
        for seed in seeds
        for method, recipe in methods
    ]
    kills: list[dict[str, Any]] = []
    differences: list[str] = []
    with ThreadPoolExecutor(workers) as together:
        for own, different in together.map(partial(compare, log=log), orders):
            kills += own
            differences += different
            log(f"kills: {len(kills)}, {len(differences)} differences")
    return {
        "kills": len(kills),
        "by_kind": dict(Counter(kill["kind"] for kill in kills)),
        "resumed_from": [kill["resumed_from"] for kill in kills],
        "with_newcomers": sum(bool(kill["saved"]["newcomers"]) for kill in kills),
        "with_set_aside": sum(bool(kill["saved"]["set_aside"]) for kill in kills),
        "between_writing_and_renaming": dict(Counter(k["renaming"] for k in kills if "renaming" in k)),
        "differences": differences,
        "log": kills,
    }


def compare(order: Order, log: Log) -> tuple[list[dict[str, Any]], list[str]]:
    """Kill a run repeatedly; return the kills, and the files in which it differs from an uninterrupted run."""
    whole, killed = (replace(order, folder=f"{order.folder}-{part}") for part in ("whole", "killed"))
    run_until_end(whole, random.Random())
    name = Path(order.folder).name
    kills = kill_repeatedly(killed, random.Random(name), log)
    return kills, [f"{name}: {file}" for file in COMPARED if _bytes(whole, file) != _bytes(killed, file)]


def kill_repeatedly(order: Order, moments: random.Random, log: Log) -> list[dict[str, Any]]:
    """Kill one run at a random moment, in a delicate state, and between writing and renaming; then let it finish."""
    # GE by default promotes newcomers so soon that no checkpoint falls into their probation; the others do not.
    soon = (order.method, order.recipe) == ("ge", "default")
    delicate: Kind = "set-aside" if soon or order.seed % 3 == 0 else "probation"
    kinds: tuple[Kind, ...] = ("random", delicate, "renaming", "none")
    kills: list[dict[str, Any]] = []
    for kind in kinds:
        attempt = run_until_end(replace(order, kind=kind, moment=moments.randrange(3)), moments)
        if kills:
            kills[-1]["resumed_from"] = attempt["begun"]
            log(f"  {order.method} {order.recipe} {order.seed}: {kills[-1]['kind']}, resumed from {attempt['begun']}")
        if attempt["ended"]:
            return kills
        kills.append(attempt | {"saved": _saved(order)})
    raise AssertionError(f"{order}: the last attempt did not finish")


def run_until_end(order: Order, moments: random.Random) -> dict[str, Any]:
    """Run until killed or finished; return what the run reported."""
    process = _start(order)
    facts: dict[str, Any] = {"kind": order.kind, "method": order.method, "recipe": order.recipe, "seed": order.seed}
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        event = message.pop("event")
        if event == "begun":
            facts["begun"] = message["step"]
        elif event == "dies":
            facts |= message
        elif event == "armed":
            time.sleep(moments.uniform(0, LONGEST_WAIT))
            process.kill()
    process.stdout.close()
    facts["ended"] = process.wait() == 0
    assert facts["ended"] or process.returncode == -9, f"{order}: ended with {process.returncode}"
    return facts


def _saved(order: Order) -> dict[str, Any]:
    """Return the state in the newest checkpoint of a killed run."""
    manifests = (Path(order.folder) / CHECKPOINTS).glob("checkpoint-*.json")
    newest = max(manifests, key=lambda path: int(path.stem.partition("-")[2]))
    learner = json.loads(newest.read_text())["body"]["learner"]
    set_aside = sum(expert is None for _, expert, _ in learner["recent"]["entries"])
    return {
        "position": learner["steps"],
        "newcomers": list(learner["organisation"]["probations"]),
        "set_aside": set_aside,
    }


def _start(order: Order) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torture.victim", order.as_json()]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def _bytes(order: Order, file: str) -> bytes:
    return (Path(order.folder) / file).read_bytes()
