"""Ctrl-C while modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """Let a Ctrl-C inside the block end the program with one line and exit code 130, not with a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        print("hge: stopped before it began", file=sys.stderr)
        sys.exit(130)
