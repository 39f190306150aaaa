"""The fast pool: stacked gates, one slot of fixed memory, CUDA graphs."""
