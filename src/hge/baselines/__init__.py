"""Baselines from the paper's tables, one method per file."""
