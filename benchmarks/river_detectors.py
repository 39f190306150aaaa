"""Drift detectors of river, and `hge.river.LossSwitchDetector`, on synthetic streams with known changes.

    python benchmarks/river_detectors.py    writes results/river/detectors.json

A naive-Bayes classifier predicts each row and learns it. A detector gets its errors (0 or 1); when it detects drift,
the classifier is replaced by a new one. The concept changes every 2000 rows. The first detection after a change, before
the next one, finds it; every other detection is a false alarm. All detectors have their default parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any

from river.datasets import synth

from hge.core.files import write_json
from hge.experiments.run_files import environment
from hge.river import LossSwitchDetector
from river import drift, naive_bayes

ROWS, SEEDS = 2000, range(5)
STREAMS: dict[str, list[Callable[[int], Any]]] = {
    "SEA": [lambda seed, v=v: synth.SEA(variant=v, seed=seed) for v in (0, 2, 1, 3)],
    "Sine": [lambda seed, v=v: synth.Sine(classification_function=v, seed=seed) for v in (0, 1, 2, 3)],
    "STAGGER": [lambda seed, v=v: synth.STAGGER(classification_function=v, seed=seed) for v in (0, 1, 2, 0)],
    "Agrawal": [lambda seed, v=v: synth.Agrawal(classification_function=v, seed=seed) for v in (0, 2, 4, 6)],
    "Mixed": [lambda seed, v=v: synth.Mixed(classification_function=v, seed=seed) for v in (0, 1, 0, 1)],
}


class AlwaysFires:
    """The detector that misses nothing."""

    drift_detected = True

    def update(self, x: float) -> None:
        """Learn nothing."""


class NeverFires(AlwaysFires):
    """The detector that raises no false alarm."""

    drift_detected = False


DETECTORS: dict[str, Callable[[], Any]] = {
    "LossSwitchDetector": LossSwitchDetector,
    "ADWIN": drift.ADWIN,
    "KSWIN": lambda: drift.KSWIN(seed=0),
    "PageHinkley": drift.PageHinkley,
    "always fires": AlwaysFires,
    "never fires": NeverFires,
}


def rows(stream: str, seed: int) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the rows of all concepts."""
    for number, concept in enumerate(STREAMS[stream]):
        yield from islice(concept(100 * seed + number), ROWS)


def detections(stream: str, seed: int, detector: Any) -> tuple[list[int], int]:
    """Return the steps of the detections, and the number of right predictions."""
    found, right, model = [], 0, naive_bayes.GaussianNB()
    for step, (x, y) in enumerate(rows(stream, seed)):
        x = {name: float(hash_of(value)) for name, value in x.items()}
        wrong = model.predict_one(x) != y
        right += not wrong
        model.learn_one(x, y)
        detector.update(float(wrong))
        if detector.drift_detected:
            found.append(step)
            model = naive_bayes.GaussianNB()
    return found, right


def hash_of(value: Any) -> float:
    """Return a number for a category: its letters, added up."""
    return sum(map(ord, value)) if isinstance(value, str) else value


def judge(found: list[int], changes: list[int], end: int) -> dict[str, Any]:
    """Count what was found, and how late."""
    delays = []
    for change, following in zip(changes, [*changes[1:], end], strict=True):
        inside = [step - change for step in found if change <= step < following]
        delays += inside[:1]
    return {"false_alarms": len(found) - len(delays), "missed": len(changes) - len(delays), "delays": delays}


def main() -> None:
    """Measure and write."""
    table, around = [], environment()  # read first: the files may change during the run
    for stream, concepts in STREAMS.items():
        for name, make in DETECTORS.items():
            outcomes, right = [], 0
            changes, end = [ROWS * n for n in range(1, len(concepts))], ROWS * len(concepts)
            for seed in SEEDS:
                found, correct = detections(stream, seed, make())
                outcomes.append(judge(found, changes, end))
                right += correct
            delays = [delay for outcome in outcomes for delay in outcome["delays"]]
            table.append(
                {
                    "stream": stream,
                    "detector": name,
                    "changes": len(changes) * len(SEEDS),
                    "missed": sum(outcome["missed"] for outcome in outcomes),
                    "false_alarms": sum(outcome["false_alarms"] for outcome in outcomes),
                    "mean_delay": round(mean(delays), 1) if delays else None,
                    "accuracy_percent": round(100 * right / (end * len(SEEDS)), 2),
                }
            )
            print(table[-1])
    out = Path(__file__).parent.parent / "results" / "river" / "detectors.json"
    protocol = {
        "command": "python benchmarks/river_detectors.py",
        "rows_per_concept": ROWS,
        "seeds": list(SEEDS),
        "classifier": "river.naive_bayes.GaussianNB",
        "river": version("river"),
        **around,
    }
    write_json(out, {"protocol": protocol, "detectors": table})


if __name__ == "__main__":
    main()
