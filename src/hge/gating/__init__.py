"""Decisions about numbers: which expert, a new task or not, promoted or not. No tensors here."""
