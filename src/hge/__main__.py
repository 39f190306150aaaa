"""`python -m hge` is the `hge` command."""

from hge.cli import main

main()
