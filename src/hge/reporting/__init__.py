"""HTML pages and figures of runs and results."""
