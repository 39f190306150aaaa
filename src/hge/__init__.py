"""Gated Experts: learn for ever from a stream that nobody has labelled with tasks."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hge.estimator.classifier import GatedExperts

__version__ = "0.1.0"
__all__ = ["GatedExperts", "__version__"]


def __getattr__(name: str) -> object:
    """Import the estimator, and torch with it, when it is first used: `hge --help` does without."""
    if name != "GatedExperts":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hge.estimator.classifier import GatedExperts

    return GatedExperts


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
