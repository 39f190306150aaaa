"""Data sets, and the streams of tasks that are made of them."""
