"""All care for CUDA graphs and streams is here. Without a GPU, functions are just called, one after the other."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

CALLS_BEFORE_CAPTURE = 3
"""A shape that does not come back is not worth a graph; and libraries choose their kernels in the first calls."""
MOST_GRAPHS = 16
"""Graphs that are kept, each with memory of its own; the one that was not used for longest goes."""


class Graphs:
    """Functions on the device, each captured as a CUDA graph once it was called a few times with inputs of one shape.

    A function must not make the host wait, and must keep its state in memory that stays where it is. What it returns
    is valid until the next call.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls: OrderedDict[Hashable, _Calls] = OrderedDict()

    def __call__(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Call the function, or let its graph run. The key tells calls apart that do different things."""
        if self.device.type != "cuda":
            return function(*inputs)
        key = (key, *(None if i is None else (i.shape, i.dtype) for i in inputs))
        calls = self.calls.setdefault(key, _Calls())
        self.calls.move_to_end(key)
        if len(self.calls) > MOST_GRAPHS:
            self.calls.popitem(last=False)
        calls.count += 1
        if calls.count <= CALLS_BEFORE_CAPTURE:
            return function(*inputs)
        with self._device_is_current():
            if calls.graph is None:
                calls.capture(function, inputs, self.device)
            torch._foreach_copy_(calls.inputs, [i for i in inputs if i is not None])  # type: ignore[arg-type]
            assert calls.graph is not None
            calls.graph.replay()
        return calls.output

    def forget(self) -> None:
        """Drop all graphs, since memory that they use has moved."""
        self.calls.clear()

    def _device_is_current(self) -> AbstractContextManager[object]:
        """Capture and start graphs on their own GPU; it nearly always is the current one, and then this is cheap."""
        if self.device.index in (None, torch.cuda.current_device()):
            return nullcontext()
        return torch.cuda.device(self.device)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that all captures on a GPU share; torch's own belongs to the GPU that was first captured on."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass
class _Calls:
    count: int = 0
    inputs: Sequence[Tensor] = ()
    """Where the graph reads."""
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    graph: torch.cuda.CUDAGraph | None = None

    def capture(self, function: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], device: torch.device) -> None:
        """Record what the function does on the current device; nothing runs yet."""
        static = [None if i is None else i.clone() for i in inputs]
        self.inputs = [i for i in static if i is not None]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # an older graph that is collected during a capture ends the capture
        try:
            # Other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, stream=_capture_stream(device), capture_error_mode="thread_local"):
                self.output = function(*static)
        finally:
            gc.enable()
        self.graph = graph


class Side:
    """A second stream: what is in its blocks may overlap with what follows them, until `join`.

    Every block must be joined before the function ends; then no memory is used again too early.
    """

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Run the block beside the current stream, after all that is on it so far."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        """Let the current stream wait for the blocks."""
        if self.stream is not None:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


class Mailbox:
    """Small results on their way from the device to the host, in order; taking one waits for its letter only."""

    def __init__(self, device: torch.device, places: int, results: int, width: int) -> None:
        self.on_gpu = device.type == "cuda"
        self.letters = list(torch.zeros(places, results, width, pin_memory=self.on_gpu))
        self.arrived = [torch.cuda.Event() for _ in range(places if self.on_gpu else 0)]  # type: ignore[no-untyped-call]
        self.sizes: deque[int] = deque()
        """How many results are in each letter that was not opened yet."""
        self.opened: deque[list[float]] = deque()
        self.sent = 0
        self.waited = 0.0
        """Seconds that the host waited for the last letter, per result in it."""

    def __len__(self) -> int:
        return sum(self.sizes) + len(self.opened)

    def send(self, results: Tensor, count: int, stream: torch.cuda.Stream | None) -> None:
        """Send a letter of [results, width] that the stream computes, so many of them; there must be a free place."""
        place = self.sent % len(self.letters)
        self.letters[place].copy_(results, non_blocking=True)
        if self.on_gpu:
            self.arrived[place].record(stream)
        self.sizes.append(count)
        self.sent += 1

    def take(self) -> list[float]:
        """Return the oldest result."""
        if not self.opened:
            self._open()
        return self.opened.popleft()

    def clear(self) -> None:
        """Throw away what was not taken."""
        self.sizes.clear()
        self.opened.clear()

    def _open(self) -> None:
        place = (self.sent - len(self.sizes)) % len(self.letters)
        size = self.sizes.popleft()
        if self.on_gpu:
            started = time.perf_counter()
            self.arrived[place].synchronize()
            self.waited = (time.perf_counter() - started) / size
        self.opened.extend(self.letters[place][:size].tolist())
