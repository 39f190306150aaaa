"""The `hge` command: a file for each group of commands."""
