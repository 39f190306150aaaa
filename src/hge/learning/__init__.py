"""Algorithm 1, its state, and the routing of rows to experts."""
