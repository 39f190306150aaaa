"""Sets of runs: planning, parallel execution and time estimates."""
