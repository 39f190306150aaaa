"""The `hge serve` command: a model behind HTTP."""

from __future__ import annotations

import json
import os
import secrets
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

import typer

from hge.cli.console import PlainConsole
from hge.cli.places import folder_to_write

console = PlainConsole()
GRACE = 10
"""Seconds for the requests that have begun when the service is stopped."""


def serve_command(
    folder: Annotated[
        Path,
        typer.Argument(help="Folder of a saved model, or a new one.", show_default=False, callback=folder_to_write),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; others than this machine's need HGE_TOKEN.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 for any free one.")] = 8000,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Parameter of a new model, as in GatedExperts; repeatable."),
    ] = None,
    save_every: Annotated[int, typer.Option(min=1, help="Rows learned between two saves of the model.")] = 2000,
    waiting_rows: Annotated[int, typer.Option(min=1, help="Most predicted rows that wait for their labels.")] = 10_000,
    body_bytes: Annotated[int, typer.Option(min=1024, help="Largest request, in bytes.")] = 2**23,
) -> None:
    """Serve a model over HTTP: it predicts, learns on, and survives being killed.

    POST /predict, /learn and /label; GET /experts, /events, /metrics, /healthz; a live page at /, the interface at
    /docs. Requests that learn need the token in HGE_TOKEN; without that variable one is made and shown.
    """
    try:
        import uvicorn

        from hge.serving.app import build_app
    except ModuleNotFoundError as error:
        raise ValueError(f"hge serve needs {error.name}; install it with: pip install 'hge[serve]'") from None
    from hge.serving.event_stream import EventStream
    from hge.serving.service import ModelService, ServiceSettings

    given = _given_token(host)
    listener = _listen(host, port)
    events = EventStream()
    settings = ServiceSettings(save_every, waiting_rows)
    service = ModelService(folder, dict(map(_parameter, parameter or [])), settings, events)
    token = given or secrets.token_urlsafe(18)
    app = build_app(service, events, token, body_bytes)

    class Server(uvicorn.Server):
        def handle_exit(self, *signal: Any) -> None:
            app.state.stop()  # before the open requests are waited for
            super().handle_exit(*signal)

    server = Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=GRACE))
    if not given:
        console.print(f"Token for requests that learn (set HGE_TOKEN to choose one): {token}", soft_wrap=True)
    console.print(f"Serving {folder} ({service.rows_seen:,} rows learned) at {_url(listener)}", soft_wrap=True)
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        if not service.rows_since_save:  # else a warning has said why
            console.print("Saved.")


def _given_token(host: str) -> str | None:
    given = os.environ.get("HGE_TOKEN") or None
    if given is None and not _is_loopback(host):
        raise ValueError(f"host: got {host}, which others can reach, without HGE_TOKEN; expected a token of your own")
    return given


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=256)
    except OSError as error:
        raise ValueError(f"host, port: got {host}:{port}, {error.strerror or error}; expected a free one") from None
    # asyncio sets it only for sockets whose protocol is given; without it an answer waits 40 ms for the client's ACK
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _parameter(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; the value is JSON, or a text.

    >>> _parameter("max_experts=20"), _parameter("organisation=lca")
    (('max_experts', 20), ('organisation', 'lca'))
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"set: got {text!r}, expected NAME=VALUE")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
