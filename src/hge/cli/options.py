"""Checks of options that several commands have."""

from __future__ import annotations

import typer

EXECUTORS = ("local", "ray")


def not_empty(option: typer.CallbackParam, text: str | None) -> str | None:
    """Return a text that was given, or None; an empty one is an error, not the same as none."""
    if text is not None and not text.strip():
        raise ValueError(f"{option.name}: got {text!r}, expected a value; without one, leave out {option.opts[0]}")
    return text


def check_executor(executor: str, ray_address: str | None) -> None:
    """Raise an error for an unknown executor, and for the address of a cluster that would not be used."""
    if executor not in EXECUTORS:
        raise ValueError(f"executor: got {executor!r}, expected one of {', '.join(EXECUTORS)}")
    if ray_address is not None and executor != "ray":
        raise ValueError(f"ray_address: got {ray_address!r} with executor {executor}, expected --executor ray with it")
