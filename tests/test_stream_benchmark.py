"""`benchmarks/streams.py` on short streams."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from hge.data import drift_streams as drift
from hge.data.drift_streams import DriftStream
from hge.data.named_streams import STREAMS, NamedStream

ROOT = Path(__file__).parent.parent
METHODS = ["GatedExperts", "window-kNN", "majority"]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("streams", ROOT / "benchmarks" / "streams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


benchmark = load()


def short(seed: int) -> DriftStream:
    return drift.visit([drift.stagger(0), drift.stagger(2)], (0, 1), 100, np.random.default_rng(seed), held_out=40)


def recorded(seed: int) -> DriftStream:
    x, y = drift.stagger(0)(200, np.random.default_rng(0))
    return DriftStream(x, y, np.zeros(200, np.int64), {})


def run(name: str, stream: NamedStream, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(STREAMS, name, stream)
    lines = benchmark.run((name, 3), METHODS, out, {"commit": "0123abcd"})
    assert [line.split(":")[0] for line in lines.splitlines()] == [f"{name} 3 {method}" for method in METHODS]
    result: dict[str, Any] = json.loads((out / f"{name}-seed3.json").read_text())
    return result


def test_a_result_has_all_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("short", NamedStream("two concepts", short), tmp_path, monkeypatch)
    assert {
        name: result[name] for name in ("stream", "rows", "rows_counted", "rows_held_out", "concepts", "visits")
    } == {
        "stream": "short",
        "rows": 200,
        "rows_counted": 200 - 32,
        "rows_held_out": 80,
        "concepts": 2,
        "visits": 2,
    }
    assert (result["protocol"]["seed"], result["protocol"]["commit"]) == (3, "0123abcd")
    assert list(result["methods"]) == METHODS
    for figures in result["methods"].values():
        assert figures["retention"] == pytest.approx(np.mean(figures["by_concept"]), abs=0.01)
        assert 0 < figures["accuracy"] <= 100
        assert figures["cpu_seconds_per_1000_rows"] > 0
    ours, window, majority = result["methods"].values()
    assert ours["experts"] >= 1
    assert isinstance(ours["switches"], list)
    assert ours["rows_kept"] >= 100
    assert (window["rows_kept"], majority["rows_kept"]) == (200, 0)


def test_methods_that_are_not_run_again_keep_their_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run("short", NamedStream("two concepts", short), tmp_path, monkeypatch)["methods"]
    benchmark.run(("short", 3), METHODS[:1], tmp_path, {"commit": "4567cdef"})
    after = json.loads((tmp_path / "short-seed3.json").read_text())["methods"]
    assert {name: figures["commit"] for name, figures in after.items()} == dict.fromkeys(METHODS, "0123abcd") | {
        METHODS[0]: "4567cdef"
    }
    assert all(after[name] == before[name] for name in METHODS[1:])


def test_unknown_concepts_are_replaced_by_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("recorded", NamedStream("recorded", recorded), tmp_path, monkeypatch)
    assert (result["concepts"], result["visits"]) == (None, None)
    assert (result["rows_counted"], result["rows_held_out"]) == (180 - 32, 20)
    assert all(len(figures["by_concept"]) == 10 for figures in result["methods"].values())


def test_a_failure_is_reported() -> None:
    def fail(pair: tuple[str, int]) -> str:
        raise ValueError("no such rows")

    done, text = benchmark.attempt(fail, ("elec", 1))
    assert not done
    assert text.startswith("elec 1: failed")
    assert "no such rows" in text
