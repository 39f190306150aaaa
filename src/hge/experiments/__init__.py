"""Runs of a method on a scenario: settings, metrics, files, and the paper's tables."""
