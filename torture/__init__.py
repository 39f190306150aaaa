"""Robustness tests: kills, bad inputs, corrupted files, long runs. `make torture` runs all of them."""
