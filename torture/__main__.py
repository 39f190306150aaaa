"""`python -m torture`: run all robustness tests, and write the figures to results/torture.json."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hge.core.files import read_json, write_json
from hge.experiments.run_files import environment
from torture.bad_inputs import torture_inputs
from torture.flips import torture_flips
from torture.growth import torture_growth
from torture.hostile import torture_hostile
from torture.kills import METHODS, torture_kills
from torture.kills_settings import torture_kills_settings
from torture.outliers import torture_outliers
from torture.saving import torture_saving
from torture.soak import torture_soak

SEED = 20
KILL_SEEDS = (0, 1, 2)
GPU_WORKERS = 4
EXAMPLES, FLIPS, HOSTILE = 14_000, 6_000, 5_000
SOAK, SOAK_EVERY = 200_000, 2_000
EXPERTS, TURNS = 10, 7

Part = Callable[[Path], dict[str, Any]]
PARTS: dict[str, Part] = {
    "inputs": lambda folder: torture_inputs(folder, EXAMPLES, SEED, log),
    "flips": lambda folder: torture_flips(folder, FLIPS, SEED, log),
    "hostile": lambda folder: torture_hostile(folder, HOSTILE, SEED, log),
    "outliers": lambda folder: torture_outliers(log),
    "growth": lambda folder: torture_growth(log),
    "kills": lambda folder: torture_kills(folder, log, KILL_SEEDS, METHODS),
    "kills-settings": lambda folder: torture_kills_settings(folder, log),
    "saving": lambda folder: torture_saving(folder, EXPERTS, TURNS, log),
    "soak": lambda folder: torture_soak(folder, SOAK, SOAK_EVERY, SEED, log),
    "kills-gpu": lambda folder: torture_kills(folder, log, KILL_SEEDS[:1], METHODS, device="cuda", workers=GPU_WORKERS),
}
ALWAYS = [name for name in PARTS if name != "kills-gpu" or torch.cuda.is_available()]
started = time.monotonic()


def log(line: str) -> None:
    """Print a line of progress."""
    print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)


def main() -> int:
    """Run the requested parts; return 1 if any of them found a failure."""
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parts = f"{', '.join(PARTS)}; if none is named, {', '.join(ALWAYS)}"
    parser.add_argument("parts", nargs="*", metavar="PART", help=parts)
    parser.add_argument("--out", type=Path, default=Path("results/torture.json"))
    arguments = parser.parse_args()
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"parts: got {', '.join(unknown)}, expected {', '.join(PARTS)}")
    torch.set_num_threads(1)
    # Parts that are not run now keep their figures: not every machine has a GPU, and the run may be interrupted.
    report = read_json(arguments.out) if arguments.out.is_file() else {}
    for name in arguments.parts or ALWAYS:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = PARTS[name](Path(folder))
        on_gpu = {"gpu": torch.cuda.get_device_name()} if name == "kills-gpu" else {}
        seconds = {"total_seconds": round(time.monotonic() - begun, 1)}
        report[name] = found | seconds | on_gpu | {"environment": environment()}
        write_json(arguments.out, report)
    failures = [text for name in report for text in failures_in(name, report[name])]
    print("\n".join(failures) or "All robustness tests passed.")
    return bool(failures)


def failures_in(name: str, found: dict[str, Any]) -> list[str]:
    """Return the failures in a part's figures."""
    failures = [f"{name}: {text}" for text in found.get("wrong", []) + found.get("differences", [])]
    if name.startswith("kills"):
        failures += [f"{name}: resumed from {place}" for place in found["resumed_from"] if place <= 0]
    if name == "soak" and not found["flat"]:
        failures.append(f"soak: memory grew by {found['growth_bytes']} bytes, handles {found['handles']}")
    if name == "saving" and found["cost_percent"]["median"] >= 5:
        failures.append(f"saving: costs {found['cost_percent']['median']} %")
    return failures


if __name__ == "__main__":
    sys.exit(main())
