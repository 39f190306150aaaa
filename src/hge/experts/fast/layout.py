"""Contiguous memory for each expert, so that one copy moves an expert into the slot where it is trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

ALIGNMENT = 64
"""Alignment in bytes, for kernels with vectorised reads."""


class Layout:
    """Positions of several tensors in one contiguous block of memory.

    >>> layout = Layout([torch.zeros(3), torch.zeros(2, 2, dtype=torch.int64)])
    >>> memory = layout.allocate(torch.device("cpu"))
    >>> layout.views(memory)[1].fill_(7).shape, layout.bytes
    (torch.Size([2, 2]), 128)
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self.like = [torch.empty_like(t, device="meta", requires_grad=False) for t in tensors]
        sizes = [-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in self.like]
        self.ends = list(accumulate(sizes))
        self.bytes = self.ends[-1] if self.ends else 0

    def allocate(self, device: torch.device, *, pinned: bool = False) -> Tensor:
        """Return zeroed memory for one expert."""
        return torch.zeros(self.bytes, dtype=torch.uint8, device=device, pin_memory=pinned)

    def views(self, memory: Tensor) -> list[Tensor]:
        """Return the tensors in `memory`, which may be shorter than the layout; strides are preserved."""
        starts = [0, *self.ends]
        parts = [
            (memory[start : start + like.nbytes].view(like.dtype), like)
            for start, end, like in zip(starts, self.ends, self.like, strict=False)
            if end <= len(memory)
        ]
        return [part.as_strided(like.shape, like.stride(), part.storage_offset()) for part, like in parts]

    def fill(self, memory: Tensor, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors' values into `memory`."""
        for view, tensor in zip(self.views(memory), tensors, strict=True):
            view.copy_(tensor.detach())


def rebind_storage(tensors: Sequence[Tensor], views: Sequence[Tensor]) -> None:
    """Move the storage of parameters, buffers and other tensors to `views`, keeping their values."""
    with torch.no_grad():
        for tensor, view in zip(tensors, views, strict=True):
            view.copy_(tensor)
            tensor.data = view


class Stack:
    """Tensors of many experts, stacked by name; the capacity doubles when it is full."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        self.count = self.capacity

    @property
    def capacity(self) -> int:
        """Number of experts for which memory is allocated."""
        return len(next(iter(self.tensors.values())))

    @property
    def bytes(self) -> int:
        """Allocated memory in bytes."""
        return sum(t.nbytes for t in self.tensors.values())

    def append(self, rows: dict[str, Tensor]) -> bool:
        """Add an expert; return whether the memory has moved."""
        moved = self.count == self.capacity
        if moved:
            self.tensors = {n: torch.cat([t, torch.zeros_like(t)]) for n, t in self.tensors.items()}
        self.count += 1
        self.write(self.count - 1, rows)
        return moved

    def write(self, expert: int, rows: dict[str, Tensor]) -> None:
        """Replace an expert's tensors."""
        _copy([self.tensors[name][expert] for name in rows], list(rows.values()))

    def read(self, expert: int, into: dict[str, Tensor]) -> None:
        """Copy an expert's tensors out."""
        _copy(list(into.values()), [self.tensors[name][expert] for name in into])

    def of(self, experts: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors of some experts, without a copy if the experts are contiguous."""
        first, count = experts[0], len(experts)
        if list(experts) == list(range(first, first + count)):
            return {name: t[first : first + count] for name, t in self.tensors.items()}
        index = torch.tensor(experts, device=next(iter(self.tensors.values())).device)
        return {name: t[index] for name, t in self.tensors.items()}


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    with torch.no_grad():
        torch._foreach_copy_(targets, sources)
