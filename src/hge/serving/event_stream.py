"""Events of a model for the clients that listen, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

from hge.core.event_text import describe_events
from hge.core.events import Event

BEHIND = 1000
"""Events that may wait for a slow client before it is disconnected."""
KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy closes the connection."""


class EventStream:
    """Passes events from the thread that learns to the clients that listen."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: set[asyncio.Queue[Event | None]] = set()

    def start(self) -> None:
        """Begin to pass events on; called in the event loop."""
        self._loop = asyncio.get_running_loop()

    def __call__(self, event: Event) -> None:
        """Pass an event on; called by any thread."""
        if self._loop is not None and self._queues:
            self._loop.call_soon_threadsafe(self._publish, event)

    def stop(self) -> None:
        """End all streams; called by any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._publish, None)

    async def listen(self, past: Callable[[], Awaitable[list[Event]]]) -> AsyncIterator[str]:
        """Yield past events, then new ones as they happen; none is left out, or sent twice, in between."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(BEHIND)
        self._queues.add(queue)
        try:
            first = await past()
            yield "".join(map(_message, first)) or ": no events yet\n\n"
            while queue in self._queues:
                try:
                    event = await asyncio.wait_for(queue.get(), KEEP_ALIVE)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if event is None:
                    return
                if not any(event is known for known in first):
                    yield _message(event)
        finally:
            self._queues.discard(queue)

    def _publish(self, event: Event | None) -> None:
        for queue in list(self._queues):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                self._queues.discard(queue)


def _message(event: Event) -> str:
    values = event.as_json()
    described = describe_events([values])
    text = described[0]["text"] if described else None
    return f"event: {event.kind()}\ndata: {json.dumps(values | {'text': text})}\n\n"
