"""Gated Experts: learn for ever from a stream that nobody has labelled with tasks."""

__version__ = "0.1.0"
