"""`make mutants`: change the code at one place at a time, and count the changes that the nearest tests notice.

Every mutant is a process of its own, forked after torch was loaded; no file is changed. What no test notices is listed
in results/mutants.json.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import os
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch  # noqa: F401  (loaded once, before the forks)

from hge.core.files import write_json
from hge.experiments.run_files import environment

ROOT = Path(__file__).parent.parent
FILES = [
    *sorted((ROOT / "src/hge/gating").glob("*.py")),
    *sorted((ROOT / "src/hge/learning").glob("*.py")),
    ROOT / "src/hge/experiments/metrics.py",
    ROOT / "src/hge/experiments/tree_comparison.py",
]
COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
SECONDS = 60
"""Time after which a mutant counts as noticed: it does not end."""


def mutants(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Apply one change after the other to the tree; yield the line and the change while it is applied."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[op]) if type(op) in COMPARED:
                node.ops = [COMPARED[type(op)]()]
                yield node.lineno, f"{type(op).__name__} -> {type(node.ops[0]).__name__}"
                node.ops = [op]
            case ast.BinOp(op=sign) if type(sign) in COUNTED and not isinstance(
                node.left, ast.Constant | ast.JoinedStr
            ):
                node.op = COUNTED[type(sign)]()
                yield node.lineno, f"{type(sign).__name__} -> {type(node.op).__name__}"
                node.op = sign
            case ast.BoolOp(op=word):
                node.op = ast.Or() if isinstance(word, ast.And) else ast.And()
                yield node.lineno, f"{type(word).__name__} -> {type(node.op).__name__}"
                node.op = word
            case ast.UnaryOp(op=ast.Not()):
                operand, node.operand = node.operand, ast.copy_location(ast.UnaryOp(ast.Not(), node.operand), node)
                yield node.lineno, "Not removed"
                node.operand = operand
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                node.value = value + 1
                yield node.lineno, f"{value} -> {node.value}"
                node.value = value
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                node.value = ast.copy_location(ast.Constant(None), value)
                yield node.lineno, "returns None"
                node.value = value


def nearest_tests(file: Path) -> list[str]:
    """Return the tests named after a file, and those that import it."""
    module = _module(file)
    named = f"test_{file.stem}"
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    near = [str(test) for test in tests if test.stem.startswith(named) or f"{module} import" in test.read_text()]
    return near or [str(ROOT / "tests" / file.parent.name)]


def is_killed(file: Path, source: ast.Module) -> bool:
    """Run the nearest tests, those that are not slow, on the changed file; return whether one of them fails."""
    child = os.fork()
    if child == 0:
        _run_tests(file, source)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"{file}: pytest ended with {code}, expected tests that run")
    return code != pytest.ExitCode.OK


def _run_tests(file: Path, source: ast.Module) -> None:
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
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    code = pytest.main(["-x", "-q", "-m", "not slow and not data", "-p", "no:cacheprovider", *nearest_tests(file)])
    os._exit(code)


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT / "src").with_suffix("").parts)


def main() -> None:
    """Try a sample of all mutants, drawn with a fixed seed, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results/mutants.json")
    options = parser.parse_args()
    places = [(file, n) for file in FILES for n, _ in enumerate(mutants(ast.parse(file.read_text())))]
    chosen = random.Random(options.seed).sample(places, min(options.sample, len(places)))
    survivors: list[str] = []
    for file in sorted({file for file, _ in chosen}):
        if is_killed(file, ast.parse(file.read_text())):
            raise RuntimeError(f"{file}: its tests fail without a change")
    for number, (file, place) in enumerate(chosen, 1):
        source = ast.parse(file.read_text())
        line, change = next(found for n, found in enumerate(mutants(source)) if n == place)
        if not is_killed(file, source):
            survivors.append(f"{file.relative_to(ROOT / 'src')}:{line}: {change}")
            print(survivors[-1], flush=True)
        killed = round(100 * (1 - len(survivors) / number), 1)
        found = {"mutants": len(places), "tried": number, "seed": options.seed, "killed_percent": killed}
        write_json(options.out, found | {"survivors": sorted(survivors), "environment": environment()})
    print(f"{killed} % of {len(chosen)} mutants killed")


if __name__ == "__main__":
    main()
