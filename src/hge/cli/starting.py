"""Handling of Ctrl-C while modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """Exit with one line and code 130, without a traceback, on Ctrl-C inside the block."""
    try:
        yield
    except KeyboardInterrupt:
        print("hge: interrupted while starting", file=sys.stderr)
        sys.exit(130)
