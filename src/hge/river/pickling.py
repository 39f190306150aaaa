"""Pickles of objects with tensors that are the same bytes whenever the objects are the same, as river expects."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.storage import TypedStorage, UntypedStorage


def pickled(value: Any) -> bytes:
    """Return an object as bytes for `pickle.loads`.

    >>> numbers = [torch.arange(3), {"more": torch.ones(2)}]
    >>> pickled(numbers) == pickled(numbers), pickle.loads(pickled(numbers))
    (True, [tensor([0, 1, 2]), {'more': tensor([1., 1.])}])
    """
    content = io.BytesIO()
    _Pickler(content, pickle.HIGHEST_PROTOCOL).dump(value)
    return content.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Save what tensors are made of in torch's newer format: the older one, of its pickles, has addresses."""
        if not isinstance(value, TypedStorage | UntypedStorage):
            return NotImplemented
        content = io.BytesIO()
        torch.save(value, content)
        return _storage, (content.getvalue(),)


def _storage(content: bytes) -> Any:
    return torch.load(io.BytesIO(content), weights_only=False)
