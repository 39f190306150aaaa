"""Decisions from scores and losses: routing, task switches, promotion. No tensors here."""
