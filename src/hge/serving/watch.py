"""A local server of the live page, for whatever has a state: a run's folder, or a service elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from hge.serving.live import page_text

State = Callable[[], dict[str, Any]]


def served_state(url: str) -> dict[str, Any]:
    """Return the state of a service at a URL."""
    with urlopen(url.rstrip("/") + "/live", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def watch_server(state: State, port: int) -> ThreadingHTTPServer:
    """Return a server on this machine's own address; `serve_forever` runs it."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with the page, or with the state that it asks for."""
            if self.path == "/":
                self._send(200, "text/html; charset=utf-8", page_text("live"))
            elif self.path == "/live":
                try:
                    self._send(200, "application/json", json.dumps(state()))
                except (OSError, ValueError, KeyError) as error:  # half a file, or no answer: the page asks again
                    self._send(503, "application/json", json.dumps({"detail": str(error)}))
            else:
                self._send(404, "text/plain", "not found")

        def _send(self, status: int, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Print nothing."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)
