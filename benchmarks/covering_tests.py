"""Which tests run which lines of some files, and how long each takes: what `make mutants` chooses its tests by."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

LONGEST = 10.0
"""Seconds after which a test is no longer waited for: it is not chosen."""

OPTIONS = ["-q", "-m", "not data", "-o", "timeout_func_only=true", "-p", "no:cacheprovider", "--assert=plain"]
"""Of pytest. Assertions are plain, else pytest would read files with doctests by itself, without a mutant's change."""


@dataclass(frozen=True)
class CoveringTest:
    """A test that passes, the time it takes, and the lines that it runs of each watched file."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]

    def runs(self, file: Path, lines: Iterable[int]) -> bool:
        """Return whether the test runs one of the lines of the file."""
        return not self.lines.get(str(file), frozenset()).isdisjoint(lines)


def record(files: Iterable[Path], tests: Iterable[str]) -> list[CoveringTest]:
    """Run the tests once, in a process of their own; return those that pass and run a line of one of the files."""
    with tempfile.NamedTemporaryFile(suffix=".json") as found:
        child = os.fork()
        if child == 0:
            recorder = _Recorder({str(file) for file in files})
            pytest.main([f"--timeout={LONGEST}", *OPTIONS, *tests], plugins=[recorder])
            Path(found.name).write_text(json.dumps(recorder.passed()))
            os._exit(0)
        os.waitpid(child, 0)
        told = json.loads(Path(found.name).read_text())
    return [
        CoveringTest(name, seconds, {file: frozenset(lines) for file, lines in ran.items()})
        for name, (seconds, ran) in told.items()
    ]


class _Recorder:
    """A plugin of pytest that notes the lines that run within each test.

    What a fixture of a module does counts for all tests of the module, and what a test module keeps with
    `functools.cache` is made anew in every test: else only the first test would be seen to run it.
    """

    def __init__(self, files: set[str]) -> None:
        self._files = files
        self._in_setup: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._in_test: dict[str, set[tuple[str, int]]] = defaultdict(set)
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        for kept in list(vars(getattr(item, "module", None) or object).values()):
            if callable(getattr(kept, "cache_clear", None)):
                kept.cache_clear()
        self._seconds[item.nodeid] = -time.perf_counter()
        return (yield from self._watched(self._in_setup[_module(item.nodeid)]))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        try:
            return (yield from self._watched(self._in_test[item.nodeid]))
        finally:
            self._seconds[item.nodeid] += time.perf_counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._failed.add(report.nodeid)

    def passed(self) -> dict[str, tuple[float, dict[str, list[int]]]]:
        """Return, by the name of each test that passed: its seconds, and its lines by file."""
        found = {}
        for name, ran in self._in_test.items():
            by_file: dict[str, list[int]] = defaultdict(list)
            for file, line in sorted(ran | self._in_setup[_module(name)]):
                by_file[file].append(line)
            if name not in self._failed and by_file and self._seconds[name] < LONGEST:
                found[name] = (round(self._seconds[name], 3), dict(by_file))
        return found

    def _watched(self, ran: set[tuple[str, int]]) -> Generator[None, Any, Any]:
        """Note the lines that run, in all threads, until the wrapped hook is done."""

        def in_function(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line":
                ran.add((frame.f_code.co_filename, frame.f_lineno))
            return in_function

        def trace(frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
            return in_function if frame.f_code.co_filename in self._files else None

        sys.settrace(trace)
        threading.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)


def _module(test: str) -> str:
    return test.split("::")[0]
