"""All handling of CUDA graphs and streams. Without a GPU, functions are called directly, one after the other."""

from __future__ import annotations

import gc
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor

CALLS_BEFORE_CAPTURE = 3
"""A shape that does not recur is not worth a graph, and libraries select their kernels during the first calls."""
MAX_GRAPHS = 16
"""Maximum number of graphs kept, each with its own memory; the least recently used one is dropped."""


class Graphs:
    """Device functions, each captured as a CUDA graph after a few calls with inputs of the same shape.

    A function must not synchronise with the host, and must keep its state at fixed addresses. Its result is valid until
    the next call.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.calls: OrderedDict[Hashable, _CachedCall] = OrderedDict()

    def __call__(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Call the function or replay its graph. Calls that do different things must have different keys."""
        if self.device.type != "cuda":
            return function(*inputs)
        key = (key, *(None if i is None else (i.shape, i.dtype) for i in inputs))
        calls = self.calls.setdefault(key, _CachedCall())
        self.calls.move_to_end(key)
        if len(self.calls) > MAX_GRAPHS:
            self.calls.popitem(last=False)
        calls.count += 1
        if calls.count <= CALLS_BEFORE_CAPTURE:
            return function(*inputs)
        with self._device_is_current():
            if calls.graph is None:
                self._capture(calls, function, inputs)
            torch._foreach_copy_(calls.inputs, [i for i in inputs if i is not None])  # type: ignore[arg-type]
            assert calls.graph is not None
            calls.graph.replay()
        return calls.output

    def clear(self) -> None:
        """Drop all graphs, because memory that they use has moved."""
        self.calls.clear()

    def _capture(self, calls: _CachedCall, function: Callable[..., Tensor], inputs: tuple[Tensor | None, ...]) -> None:
        calls.capture(function, inputs, self.device)

    def _device_is_current(self) -> AbstractContextManager[object]:
        """Make the graphs' GPU the current one; a cheap no-op in the usual case that it already is."""
        if self.device.index in (None, torch.cuda.current_device()):
            return nullcontext()
        return torch.cuda.device(self.device)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that all captures on a GPU share; torch's default belongs to the GPU of the first capture."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@dataclass
class _CachedCall:
    count: int = 0
    inputs: Sequence[Tensor] = ()
    """Static inputs of the graph."""
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    graph: torch.cuda.CUDAGraph | None = None

    def capture(self, function: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], device: torch.device) -> None:
        """Capture the function on the current device, without running it."""
        static = [None if i is None else i.clone() for i in inputs]
        self.inputs = [i for i in static if i is not None]
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # garbage-collecting an older graph would abort the capture
        try:
            # thread_local, since other threads may use the GPU meanwhile.
            with torch.cuda.graph(graph, stream=_capture_stream(device), capture_error_mode="thread_local"):
                self.output = function(*static)
        finally:
            gc.enable()
        self.graph = graph


class ResultQueue:
    """FIFO queue of small results copied asynchronously from device to host, in blocks.

    Getting a result waits for its own block only.
    """

    def __init__(self, device: torch.device, blocks: int, results: int, width: int) -> None:
        self.on_gpu = device.type == "cuda"
        self.buffers = list(torch.zeros(blocks, results, width, pin_memory=self.on_gpu))
        self.copied = [torch.cuda.Event() for _ in range(blocks if self.on_gpu else 0)]  # type: ignore[no-untyped-call]
        self.sizes: deque[int] = deque()
        """Number of results in each pending block."""
        self.received: deque[list[float]] = deque()
        self.blocks_put = 0
        self.wait_seconds = 0.0
        """Seconds that the host waited for the last block, per result in it."""

    def __len__(self) -> int:
        return sum(self.sizes) + len(self.received)

    def put(self, results: Tensor, count: int, stream: torch.cuda.Stream | None) -> None:
        """Queue a block of [results, width], of which the first `count` are valid; a buffer must be free."""
        place = self.blocks_put % len(self.buffers)
        self.buffers[place].copy_(results, non_blocking=True)
        if self.on_gpu:
            self.copied[place].record(stream)
        self.sizes.append(count)
        self.blocks_put += 1

    def get(self) -> list[float]:
        """Return the oldest result."""
        if not self.received:
            self._receive_block()
        return self.received.popleft()

    def clear(self) -> None:
        """Discard all pending results."""
        self.sizes.clear()
        self.received.clear()

    def _receive_block(self) -> None:
        place = (self.blocks_put - len(self.sizes)) % len(self.buffers)
        size = self.sizes.popleft()
        if self.on_gpu:
            started = time.perf_counter()
            self.copied[place].synchronize()
            self.wait_seconds = (time.perf_counter() - started) / size
        self.received.extend(self.buffers[place][:size].tolist())
