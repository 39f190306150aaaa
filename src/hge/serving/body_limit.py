"""A limit on the size of request bodies, counted as they arrive."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Middleware that answers larger requests with 413, before they are read as a whole."""

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self.app, self.most_bytes = app, most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, its body collected, unless it is too large."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        body = None if self._announces_more(scope) else await self._collect(receive)
        if body is None:
            refusal = JSONResponse({"detail": f"expected a body of at most {self.most_bytes} bytes"}, 413)
            await refusal(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)

    def _announces_more(self, scope: Scope) -> bool:
        length = Headers(scope=scope).get("content-length", "0")
        return not length.isdecimal() or int(length) > self.most_bytes

    async def _collect(self, receive: Receive) -> bytes | None:
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.most_bytes:
                return None
            if message["type"] != "http.request" or not message.get("more_body"):
                return bytes(body)
