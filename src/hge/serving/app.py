"""The HTTP interface of a model: FastAPI in front of a `ModelService`."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sklearn.exceptions import NotFittedError

from hge import __version__
from hge.core.events import Event
from hge.serving.body_limit import BodyLimit
from hge.serving.event_stream import EventStream
from hge.serving.live import page_text
from hge.serving.metrics import RequestMetrics
from hge.serving.requests import FieldError, LabelRequest, LearnRequest, PredictRequest, read_rows
from hge.serving.served_state import model_state
from hge.serving.service import IdInUseError, ModelService, Prediction, UnknownIdError
from hge.serving.waiting_room import Visit

WRITERS_WAITING = 64
"""Requests that may wait to learn; further ones are answered with 503 and should be sent again."""
READERS = 4
T = TypeVar("T")


def build_app(service: ModelService, events: EventStream, token: str, body_bytes: int = 2**23) -> FastAPI:
    """Build the application. It closes the service when it stops; `state.stop` may be called before, at a signal."""
    doors = Doors(service, token)

    def stop() -> None:
        doors.stop()
        events.stop()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        events.start()
        yield
        stop()
        await doors.close()

    app = FastAPI(
        title="hge",
        version=__version__,
        summary="A model that learns from a stream.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's pages are loaded from elsewhere; ours is at /docs, too
        redoc_url=None,
    )
    app.state.stop = stop
    metrics = RequestMetrics()
    _add_reading(app, service, doors, metrics, events)
    _add_learning(app, service, doors)
    _add_errors(app)
    _measure(app, metrics)
    app.add_middleware(BodyLimit, most_bytes=body_bytes)
    return app


class Doors:
    """The ways to the model: one thread that learns, a few that read, and the token of those who may learn."""

    def __init__(self, service: ModelService, token: str) -> None:
        self._writer = ThreadPoolExecutor(1, "hge-learn")
        self._readers = ThreadPoolExecutor(READERS, "hge-read")
        self._waiting = 0
        self._stopped = False
        self._token = token.encode()
        self.service = service

    async def read(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function that does not change the model."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, call, *arguments)

    async def write(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call a function that changes the model, after all others that came before."""
        if self._waiting >= WRITERS_WAITING:
            raise _later(f"{self._waiting} requests wait to be learned")
        self._waiting += 1
        try:
            run = asyncio.get_running_loop().run_in_executor
            # a client that goes away does not stop what has begun
            return await asyncio.shield(run(self._writer, self._unless_stopped, call, *arguments))
        finally:
            self._waiting -= 1

    def stop(self) -> None:
        """Refuse requests to learn that wait or come later; what has begun is finished."""
        self._stopped = True

    def _unless_stopped(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._stopped:
            raise _later("the service is stopping; nothing was learned")
        return call(*arguments)

    def check(self, given: HTTPAuthorizationCredentials | None) -> None:
        """Refuse a request without the token."""
        if given is None or not hmac.compare_digest(given.credentials.encode(), self._token):
            detail = "expected the header `Authorization: Bearer TOKEN`, with the token of this service (HGE_TOKEN)"
            raise HTTPException(401, detail, headers={"WWW-Authenticate": "Bearer"})

    async def close(self) -> None:
        """Close the service once the writer has finished, and end the threads."""
        await asyncio.get_running_loop().run_in_executor(self._writer, self.service.close)
        self._writer.shutdown()
        self._readers.shutdown()


def _later(why: str) -> HTTPException:
    return HTTPException(503, f"{why}; send it again later", headers={"Retry-After": "1"})


Token = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def _add_learning(app: FastAPI, service: ModelService, doors: Doors) -> None:
    @app.post("/predict")
    async def predict(request: PredictRequest, token: Token) -> dict[str, Any]:
        """Predict rows. With an id (which needs the token) they wait for `/label`, also before anything is learned."""
        if request.id is not None:
            doors.check(token)
        rows = read_rows(request.rows, service.row_shape)
        try:
            answer: Prediction | None = await doors.read(service.predict, rows)
        except NotFittedError as error:
            if request.id is None:
                raise HTTPException(409, str(error)) from None
            answer = None
        if request.id is not None:
            await doors.read(service.wait, request.id, Visit(rows, answer.labels if answer else None))
        return {"id": request.id, "labels": None, "confidence": None} | (asdict(answer) if answer else {})

    @app.post("/learn")
    async def learn(request: LearnRequest, token: Token) -> dict[str, Any]:
        """Learn rows. When this answers, they are on disk and learned, or wait for a full batch."""
        doors.check(token)
        rows = read_rows(request.rows, service.row_shape)
        await doors.write(service.learn, rows, request.labels)
        return {"learned": len(rows), "rows_seen": service.rows_seen}

    @app.post("/label")
    async def label(request: LabelRequest, token: Token) -> dict[str, Any]:
        """Learn rows that were predicted under an id, now that their labels are known."""
        doors.check(token)
        learned = await doors.write(service.label, request.id, request.labels)
        return {"learned": learned, "rows_seen": service.rows_seen}


def _add_reading(
    app: FastAPI, service: ModelService, doors: Doors, metrics: RequestMetrics, events: EventStream
) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, Any]:
        """Say that the service is up."""
        return {"status": "ok", "rows_seen": service.rows_seen}

    @app.get("/experts")
    async def experts() -> list[dict[str, Any]]:
        """List the experts."""
        found: list[dict[str, Any]] = (await doors.read(model_state, service))["experts"]
        return found

    @app.get("/events", response_class=StreamingResponse)
    async def event_stream() -> StreamingResponse:
        """Stream the decisions as server-sent events: the last ones, then new ones as they happen."""

        async def past() -> list[Event]:
            return await doors.read(lambda: service.model.events_) if service.started else []

        return StreamingResponse(events.listen(past), media_type="text/event-stream")

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> str:
        """Numbers for Prometheus."""
        return await doors.read(metrics.text, service)

    @app.get("/live")
    async def live() -> dict[str, Any]:
        """Everything that the live page shows."""
        return await doors.read(model_state, service)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def page() -> str:
        return page_text("live")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def interface() -> str:
        return page_text("interface")


def _add_errors(app: FastAPI) -> None:
    def answer(status: int, field: str, message: str) -> JSONResponse:
        return JSONResponse({"detail": [{"loc": ["body", field], "msg": message, "type": "value_error"}]}, status)

    @app.exception_handler(FieldError)
    async def field(request: Request, error: FieldError) -> Response:
        return answer(422, error.field, str(error))

    @app.exception_handler(IdInUseError)
    async def in_use(request: Request, error: IdInUseError) -> Response:
        return answer(409, "id", str(error))

    @app.exception_handler(UnknownIdError)
    async def unknown(request: Request, error: UnknownIdError) -> Response:
        return answer(404, "id", error.args[0])

    @app.exception_handler(ValueError)
    async def refused(request: Request, error: ValueError) -> Response:
        message = str(error)
        return answer(422, "rows" if message.startswith(("X", "features")) else "labels", message)

    @app.exception_handler(OSError)
    async def disk(request: Request, error: OSError) -> Response:
        return JSONResponse({"detail": f"the rows could not be written to disk: {error.strerror or error}"}, 507)

    @app.exception_handler(RequestValidationError)
    async def schema(request: Request, error: RequestValidationError) -> Response:
        found = [
            {name: value for name, value in item.items() if name in ("loc", "msg", "type")} for item in error.errors()
        ]
        return JSONResponse({"detail": found}, 422)


def _measure(app: FastAPI, metrics: RequestMetrics) -> None:
    @app.middleware("http")
    async def measure(request: Request, go_on: Callable[[Request], Awaitable[Response]]) -> Response:
        started, status = time.perf_counter(), 500  # unless there is a response
        try:
            response = await go_on(request)
            status = response.status_code
            return response
        finally:
            route = request.scope.get("route")
            metrics.add(route.path if route else "other", status, time.perf_counter() - started)
