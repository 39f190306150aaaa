"""`python -m hge` is the `hge` command."""

from hge.cli.main import main

main()
