"""Speed and memory, as ratios measured within one run. `hge bench` is the command; see benchmarks/README.md."""
