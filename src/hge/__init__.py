"""Gated Experts: learn for ever from a stream that nobody has labelled with tasks."""

from hge.estimator.classifier import GatedExperts

__version__ = "0.1.0"
__all__ = ["GatedExperts", "__version__"]
