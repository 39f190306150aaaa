"""Data sets, and the streams of tasks built from them."""
