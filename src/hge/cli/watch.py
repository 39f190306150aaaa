"""The `hge watch` command: the live page of a run's folder or of a served model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from hge.cli.console import PlainConsole
from hge.serving.watch import served_state, watch_server

console = PlainConsole()


def watch_command(
    source: Annotated[str, typer.Argument(metavar="RUN_OR_URL", help="Folder of a run, or URL of `hge serve`.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page; 0 for any free one.")] = 8001,
) -> None:
    """Show a run's folder, finished or not, or a served model on a page that grows as the stream goes."""
    if source.startswith(("http://", "https://")):
        state = partial(served_state, source)
    else:
        from hge.serving.run_state import check_run, run_state  # imports torch, which takes time

        check_run(Path(source))
        state = partial(run_state, Path(source))
    with watch_server(state, port) as server:
        console.print(f"Watching {source} at http://127.0.0.1:{server.server_port}; Ctrl-C ends it", soft_wrap=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("Ended.")
