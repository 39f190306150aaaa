"""Reader of CIFAR's Python batches: pickles of a dict of texts, numbers, lists and uint8 arrays.

It interprets the few opcodes that such files contain and calls nothing. Python's own unpickler, even one that looks up
no names, takes a gigabyte for nine bytes of a hostile file (`LONG_BINPUT`), or for ever (hashes of nested tuples).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

MOST_OPCODES = 1_000_000
"""The largest official file, CIFAR-100's training part, has a quarter of a million."""

_MARK = object()
_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): "array",
    ("numpy._core.multiarray", "_reconstruct"): "array",
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
}
"""Globals that may occur. None is looked up: `_reduce` knows what they stand for."""


class PickledArray:
    """A uint8 array, empty until the pickle sets its state."""

    pixels: npt.NDArray[np.uint8] | None = None


class _Global(str):
    """What a name of `_NAMES` stands for."""


class _Uint8:
    """numpy's dtype "u1"."""


def read_batch(raw: bytes) -> tuple[object, int]:
    """Return the value of a pickle, and where it ends; raise a ValueError that says what cannot be read.

    >>> read_batch(b"\\x80\\x02}U\\x06labels](K\\x03K\\x05es.")
    ({'labels': [3, 5]}, 20)
    """
    return _Machine(raw).run()


class _Machine:
    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = memoryview(raw), 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> tuple[object, int]:
        for _ in range(MOST_OPCODES):
            opcode = bytes(self.take(1))
            if opcode == b".":
                return self.pop(object), self.at
            if opcode not in _OPCODES:
                raise ValueError(f"the opcode {opcode!r} at byte {self.at - 1}")
            _OPCODES[opcode](self)
        raise ValueError(f"more than {MOST_OPCODES:,} opcodes")

    def take(self, count: int) -> memoryview:
        piece = self.raw[self.at : self.at + count]
        if len(piece) < count:
            raise ValueError("it is cut off")
        self.at += count
        return piece

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def line(self) -> str:
        end = bytes(self.raw[self.at : self.at + 100]).find(b"\n")
        text = self.take(max(end, 0) + 1)[:-1]
        return bytes(text).decode("ascii")

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self, kind: type[Any]) -> Any:
        value = self.stack.pop() if self.stack else _MARK
        if value is _MARK or not isinstance(value, kind):
            raise ValueError(f"a {kind.__name__} is missing at byte {self.at}")
        return value

    def top(self, kind: type[Any]) -> Any:
        self.push(value := self.pop(kind))
        return value

    def since_mark(self) -> list[Any]:
        for place in range(len(self.stack) - 1, -1, -1):
            if self.stack[place] is _MARK:
                values = self.stack[place + 1 :]
                del self.stack[place:]
                return values
        raise ValueError(f"a mark is missing at byte {self.at}")

    def last(self, count: int) -> list[Any]:
        return [self.pop(object) for _ in range(count)][::-1]

    def append(self, values: list[Any]) -> None:
        self.top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target, keys = self.top(dict), values[::2]
        if len(values) % 2 or not all(isinstance(key, str) for key in keys):
            raise ValueError("a dict whose keys are not texts")
        target.update(zip(keys, values[1::2], strict=True))

    def remember(self, number: int) -> None:
        self.memo[number] = self.top(object)

    def recall(self, number: int) -> None:
        if number not in self.memo:
            raise ValueError(f"nothing was stored under {number}")
        self.push(self.memo[number])

    def name(self, module: str, name: str) -> None:
        if (module, name) not in _NAMES:
            raise ValueError(f"it refers to {module}.{name}")
        self.push(_Global(_NAMES[module, name]))

    def stack_name(self) -> None:
        name, module = self.pop(str), self.pop(str)
        self.name(module[:100], name[:100])

    def reduce(self) -> None:
        arguments, function = self.pop(tuple), self.pop(_Global)
        if function == "array":
            self.push(PickledArray())
        elif function == "dtype" and arguments and arguments[0] in ("u1", "|u1"):
            self.push(_Uint8())
        else:
            code = arguments[0] if function == "dtype" and arguments else None
            raise ValueError(f"an array of {code[:20]!r}" if isinstance(code, str) else "a call that makes no array")

    def build(self) -> None:
        state = self.pop(tuple)
        target = self.top(object)
        if isinstance(target, PickledArray):
            target.pixels = _pixels(state)
        elif not isinstance(target, _Uint8) or state[1:5] != ("|", None, None, None):
            raise ValueError("a state of something other than a uint8 array")


def _pixels(state: tuple[Any, ...]) -> npt.NDArray[np.uint8]:
    _, shape, dtype, fortran, data = state if len(state) == 5 else (None,) * 5
    if not isinstance(dtype, _Uint8) or fortran is not False or not isinstance(data, memoryview):
        raise ValueError("an array that is not uint8 in C order")
    if not isinstance(shape, tuple) or len(shape) > 4 or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("an array whose shape is not one to four sizes")
    if math.prod(shape) != len(data):
        raise ValueError(f"an array of shape {shape} with {len(data):,} bytes")
    return np.frombuffer(data, np.uint8).reshape(shape)


_Step = Callable[[_Machine], None]
_OPCODES: dict[bytes, _Step] = {
    b"\x80": lambda m: None if m.number(1) <= 5 else _refuse("a protocol above 5"),
    b"\x95": lambda m: None if m.number(8) <= len(m.raw) else _refuse("it is cut off"),
    b"(": lambda m: m.push(_MARK),
    b"}": lambda m: m.push({}),
    b"]": lambda m: m.push([]),
    b")": lambda m: m.push(()),
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number(1)),
    b"M": lambda m: m.push(m.number(2)),
    b"J": lambda m: m.push(m.number(4, signed=True)),
    b"\x8a": lambda m: m.push(m.number(m.number(1), signed=True)),
    b"U": lambda m: m.push(bytes(m.take(m.number(1))).decode("latin1")),
    b"X": lambda m: m.push(bytes(m.take(m.number(4))).decode()),
    b"\x8c": lambda m: m.push(bytes(m.take(m.number(1))).decode()),
    # Python 2 wrote an array's bytes as a long string.
    b"T": lambda m: m.push(m.take(m.number(4))),
    b"B": lambda m: m.push(m.take(m.number(4))),
    b"C": lambda m: m.push(m.take(m.number(1))),
    b"\x8e": lambda m: m.push(m.take(m.number(8))),
    b"a": lambda m: m.append(m.last(1)),
    b"e": lambda m: m.append(m.since_mark()),
    b"s": lambda m: m.set_items(m.last(2)),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"\x85": lambda m: m.push(tuple(m.last(1))),
    b"\x86": lambda m: m.push(tuple(m.last(2))),
    b"\x87": lambda m: m.push(tuple(m.last(3))),
    b"q": lambda m: m.remember(m.number(1)),
    b"r": lambda m: m.remember(m.number(4)),
    b"\x94": lambda m: m.remember(len(m.memo)),
    b"h": lambda m: m.recall(m.number(1)),
    b"j": lambda m: m.recall(m.number(4)),
    b"c": lambda m: m.name(m.line(), m.line()),
    b"\x93": lambda m: m.stack_name(),
    b"R": lambda m: m.reduce(),
    b"b": lambda m: m.build(),
}


def _refuse(why: str) -> None:
    raise ValueError(why)
