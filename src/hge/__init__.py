"""Gated Experts: learn for ever from a stream that nobody has labelled with tasks."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hge.estimator.advice import HgeWarning
    from hge.estimator.classifier import GatedExperts

__version__ = "0.1.0"
__all__ = ["GatedExperts", "HgeWarning", "__version__"]

_HOMES = {"GatedExperts": "hge.estimator.classifier", "HgeWarning": "hge.estimator.advice"}

logging.getLogger("hge").addHandler(logging.NullHandler())  # silent unless the application configures logging


def __getattr__(name: str) -> object:
    """Import the estimator, and torch with it, when it is first used: `hge --help` does without."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
