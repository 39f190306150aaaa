"""Settings as frozen dataclasses: typed, checked, read from JSON, changed by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

Config = TypeVar("Config")
LARGEST = 1e12
"""Upper limit of the magnitude of any numeric setting."""


def by_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as of `as_json` under the names that `override` takes.

    >>> by_name({"seed": 3, "learner": {"epsilon": 4.0}})
    {'seed': 3, 'learner.epsilon': 4.0}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= {f"{name}.{inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def read_fields(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Return settings made of values by name; missing fields get their defaults."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"{name}: no such setting; expected one of {', '.join(known)}")
    return kind(**values)


def override(config: Config, assignment: str) -> Config:
    """Return `config` with one field changed, as by `--set learner.epsilon=5`.

    >>> from hge.core.config import RunConfig
    >>> override(RunConfig("split-digits"), "learner.epsilon=5").learner.epsilon
    5.0
    >>> override(RunConfig("split-digits"), "learner.epsilom=5")
    Traceback (most recent call last):
    ValueError: learner.epsilom: no such setting; learner has epsilon, alpha, recent_capacity, ...
    """
    path, equals, text = assignment.partition("=")
    if path in ("scenario", "method", "recipe"):
        raise ValueError(f"{path}: cannot be overridden: it determines other settings and has an option of its own")
    if not equals:
        raise ValueError(f"{assignment!r}: expected key=value, for example learner.epsilon=5")
    changed: Config = _override(config, path.split("."), text, path)
    return changed


def _override(config: Any, names: list[str], text: str, path: str) -> Any:
    name, rest = names[0], names[1:]
    known = [f.name for f in fields(config)]
    if name not in known:
        owner = path.rpartition(".")[0] or "a run"
        shown = ", ".join(known[:3]) + (", ..." if len(known) > 3 else "")
        raise ValueError(f"{path}: no such setting; {owner} has {shown}")
    value = getattr(config, name)
    if is_dataclass(value) != bool(rest):
        raise ValueError(f"{path}: expected a setting inside {name}" if not rest else f"{path}: no such setting")
    new = _override(value, rest, text, path) if rest else _parse(text, get_type_hints(type(config))[name], path)
    return replace(config, **{name: new})


def _parse(text: str, expected: Any, path: str) -> Any:
    """Parse `text` as the declared type of the field."""
    try:
        value = json.loads(text.lower())
    except ValueError:
        value = text
    for candidate in (value, text):
        if _fits(candidate, expected):
            wants_float = float in _options(expected) and type(candidate) is int
            return float(candidate) if wants_float else candidate
    raise ValueError(f"{path}: got {text!r}, expected {_describe(expected)}")


def check_types(config: Any) -> None:
    """Raise a ValueError that names the first field whose value is not of its declared type."""
    hints = get_type_hints(type(config))
    for f in fields(config):
        value = getattr(config, f.name)
        if not _fits(value, hints[f.name]):
            raise ValueError(f"{f.name}: got {value!r}, expected {_describe(hints[f.name])}")


def _fits(value: Any, expected: Any) -> bool:
    """Return whether `value` has the declared type. Integers are valid floats; booleans are not numbers."""
    for option in _options(expected):
        if get_origin(option) is Literal:
            fits = value in get_args(option)
        elif option is bool:
            fits = isinstance(value, (bool, np.bool_))
        elif option is int:
            fits = isinstance(value, Integral) and not isinstance(value, bool) and _in_range(value)
        elif option is float:
            fits = isinstance(value, Real) and not isinstance(value, bool) and _in_range(value)
        else:
            fits = isinstance(value, option)
        if fits:
            return True
    return False


def _in_range(value: Any) -> bool:
    """Return whether the number is neither NaN nor larger than `LARGEST`."""
    return bool(-LARGEST <= value <= LARGEST)


def _options(expected: Any) -> tuple[Any, ...]:
    return get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)


def _describe(expected: Any) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}
    literals = [repr(value) for option in _options(expected) for value in get_args(option)]
    return " or ".join([names[option] for option in _options(expected) if option in names] + literals)


def require(holds: bool, name: str, value: object, expected: str) -> None:
    """Raise a ValueError about a field's value unless a condition holds."""
    if not holds:
        raise ValueError(f"{name}: got {value!r}, expected {expected}")
