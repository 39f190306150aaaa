"""`make mutants`: change the code at one place at a time, and count the changes that a test notices.

Every mutant is a process of its own, forked after what takes long was loaded; no file is changed. It meets the tests
that run the changed line (covering_tests.py): the fastest, and the fastest of those named after the file, for `BUDGET`
seconds each. What no test notices is listed in results/mutants.json.

What is changed: comparisons, arithmetic, `and`/`or`, `not`, numbers, what is returned. A whole number below 8 counts
something and becomes one more. A larger one or a fraction is a limit or a weight, of which one more may be as good: it
is doubled. Left out, since they are not behaviour:

- `raise` statements: wording, and the figures in it;
- annotations;
- numbers up to 1e-6, other than 0: they keep a denominator or a logarithm from 0, and any such number will do.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import os
import random
import resource
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import hypothesis.extra.numpy  # like hge.estimator: loads what takes long, once, before the forks
import pytest
from covering_tests import LONGEST, OPTIONS, CoveringTest, record

import hge.estimator  # noqa: F401
from hge.core.files import write_json
from hge.experiments.run_files import environment

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "src/hge/gating").glob("*.py")),
    *sorted((ROOT / "src/hge/learning").glob("*.py")),
    ROOT / "src/hge/experiments/metrics.py",
    ROOT / "src/hge/experiments/tree_comparison.py",
]
TESTS = [
    *(f"{place}/{part}" for part in ("gating", "learning", "estimator") for place in ("tests", "src/hge")),
    "tests/experts/joint",
    "tests/experts/companions",
    *map(str, sorted((ROOT / "tests/experiments").glob("test_*.py"))),
]
"""What further tests run of these files, these do, too."""
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
BUDGET = 20.0
"""Seconds of tests for one mutant."""
MEMORY = 8 * 2**30
"""Bytes that a mutant may take."""


@dataclass(frozen=True)
class Mutant:
    """A change of a file: at which line, what, and the lines of which a test must run one to notice it."""

    line: int
    change: str
    within: frozenset[int]


def mutants(tree: ast.Module) -> Iterator[Mutant]:
    """Apply one change after the other to the tree; yield each while it is applied."""
    for node, within in _places(tree, tree, frozenset()):
        for change in _changes(node):
            yield Mutant(node.lineno, change, within)


def _places(
    node: ast.AST, tree: ast.Module, within: frozenset[int]
) -> Iterator[tuple[ast.expr | ast.stmt, frozenset[int]]]:
    """Yield the nodes that may be changed, with the lines of the innermost statement around each."""
    if isinstance(node, ast.Raise):
        return
    if isinstance(node, ast.stmt):
        within = frozenset(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if node in tree.body and isinstance(node, ast.Assign | ast.AnnAssign):
            within = _mentions(tree, {name.id for name in ast.walk(node) if isinstance(name, ast.Name)})
    if isinstance(node, ast.expr | ast.stmt):
        yield node, within
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _places(child, tree, within)


def _mentions(tree: ast.Module, names: Collection[str]) -> frozenset[int]:
    """Return the lines that read a constant of the module, which its own line does only at import."""
    return frozenset(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    )


def _changes(node: ast.expr | ast.stmt) -> Iterator[str]:
    """Change a node, yield what was changed, and change it back."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARED:
            node.ops = [COMPARED[type(op)]()]
            yield f"{type(op).__name__} -> {type(node.ops[0]).__name__}"
            node.ops = [op]
        case ast.BinOp(op=sign) if type(sign) in COUNTED and not isinstance(node.left, ast.JoinedStr):
            node.op = COUNTED[type(sign)]()
            yield f"{type(sign).__name__} -> {type(node.op).__name__}"
            node.op = sign
        case ast.BoolOp(op=word):
            node.op = ast.Or() if isinstance(word, ast.And) else ast.And()
            yield f"{type(word).__name__} -> {type(node.op).__name__}"
            node.op = word
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            node.operand = ast.copy_location(ast.UnaryOp(ast.Not(), operand), node)
            yield "Not removed"
            node.operand = operand
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and not 0 < value <= 1e-6:
            node.value = value + 1 if value in range(8) else 2 * value
            yield f"{value} -> {node.value}"
            node.value = value
        case ast.Return(value=ast.Constant(value=bool() as truth) as result):
            result.value = not truth  # None would be as good as False
            yield f"returns {result.value}"
            result.value = truth
        case ast.Return(value=ast.expr() as result) if not (isinstance(result, ast.Constant) and result.value is None):
            node.value = ast.copy_location(ast.Constant(None), result)
            yield "returns None"
            node.value = result


def nearest_tests(file: Path, mutant: Mutant, tests: Sequence[CoveringTest]) -> list[str]:
    """Return the tests that run a changed line, or if there is none, any of the file; as many as the budget allows."""
    running = [test for test in tests if test.runs(file, mutant.within)]
    running = running or [test for test in tests if str(file) in test.lines]
    named = [test for test in running if f"/test_{file.stem}" in test.name]
    return list(dict.fromkeys(name for tests in (named, running) for name in _fastest(tests)))


def _fastest(tests: Sequence[CoveringTest]) -> list[str]:
    """Return the names of the fastest tests that take as long as the budget at most."""
    ordered = sorted(tests, key=lambda test: test.seconds)
    until = accumulate(test.seconds for test in ordered)
    return [test.name for test, seconds in zip(ordered, until, strict=True) if seconds <= BUDGET]


def killed_by(file: Path, source: ast.Module, tests: Sequence[str]) -> str | None:
    """Run tests on the changed file; return the one that fails, "" if none could be run, None if none fails."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _run_tests(file, source, tests, write)
    os.close(write)
    with os.fdopen(read) as told:
        name = told.read()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise RuntimeError(f"{file}: pytest found none of {tests}")
    return None if code == pytest.ExitCode.OK else name


class _TellsFailure:
    """A plugin of pytest that writes the name of the test that failed."""

    def __init__(self, write: int) -> None:
        self._write = write

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            os.write(self._write, report.nodeid.encode())


def _run_tests(file: Path, source: ast.Module, tests: Sequence[str], write: int) -> None:
    """In a child: import the changed file instead of the one on disk, and end with pytest's code."""
    read = importlib.machinery.SourceFileLoader.get_code

    def get_code(loader: importlib.machinery.SourceFileLoader, name: str) -> object:
        return compile(source, str(file), "exec") if name == _module(file) else read(loader, name)

    importlib.machinery.SourceFileLoader.get_code = get_code  # type: ignore[assignment,method-assign]
    for name in [name for name in sys.modules if name.split(".")[0] == "hge"]:
        del sys.modules[name]
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    once = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # the smallest example is of no interest
    hypothesis.settings.register_profile("mutants", phases=once, derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    options = ["-x", "--tb=no", f"--timeout={3 * LONGEST}", *OPTIONS]
    os._exit(pytest.main([*options, *tests], plugins=[_TellsFailure(write)]))


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)


def main() -> None:
    """Try a sample of all mutants, drawn with a fixed seed, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants.json")
    options = parser.parse_args()
    os.chdir(ROOT)
    places = [(file, n) for file in FILES for n, _ in enumerate(mutants(ast.parse(file.read_text())))]
    chosen = random.Random(options.seed).sample(places, min(options.sample, len(places)))
    tests = record(FILES, TESTS)
    survivors: list[str] = []
    killers: set[str] = set()
    for number, (file, place) in enumerate(chosen, 1):
        source = ast.parse(file.read_text())
        mutant = next(found for n, found in enumerate(mutants(source)) if n == place)
        killer = killed_by(file, source, nearest_tests(file, mutant, tests))
        if killer is None:
            survivors.append(f"{file.relative_to(ROOT / 'src')}:{mutant.line}: {mutant.change}")
            print(survivors[-1], flush=True)
        killers |= {killer} if killer else set()
        killed = round(100 * (1 - len(survivors) / number), 1)
        found = {"mutants": len(places), "tried": number, "seed": options.seed, "killed_percent": killed}
        write_json(options.out, found | {"survivors": sorted(survivors), "environment": environment()})
    failing = killed_by(FILES[0], ast.parse(FILES[0].read_text()), sorted(killers))
    if failing is not None:
        raise RuntimeError(f"{failing} fails without a change")
    print(f"{killed} % of {len(chosen)} mutants killed")


if __name__ == "__main__":
    main()
