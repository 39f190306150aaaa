"""A fair lock: threads that share a model are served in order of arrival."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Method = TypeVar("Method", bound=Callable[..., Any])


class FairLock:
    """A fair (FIFO), re-entrant lock.

    Python's own locks are not fair: a thread training in a loop would re-acquire the lock before a waiting one wakes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.waiting: deque[object] = deque()
        """A ticket per waiting thread, in order of arrival."""
        self.owner: int | None = None
        """The thread that holds the lock."""
        self.depth = 0
        """How often the owner has entered."""
        self._process = os.getpid()

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self.owner != me:
                self._wait()
            self.owner, self.depth = me, self.depth + 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.depth -= 1
            if not self.depth:
                self.owner = None
                self._changed.notify_all()

    def let_others_in(self) -> None:
        """Yield to the threads waiting now; the owner calls this when the protected state is consistent."""
        with self._changed:
            if not self.waiting:
                return
            owner, depth, self.owner, self.depth = self.owner, self.depth, None, 0
            self._changed.notify_all()
            interrupt: BaseException | None = None
            while self.owner != owner:
                try:
                    self._wait()
                    self.owner, self.depth = owner, depth
                except BaseException as error:  # re-acquire first: `__exit__` must run as the owner
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    def _wait(self) -> None:
        ticket = object()
        self.waiting.append(ticket)
        try:
            self._changed.wait_for(lambda: self.owner is None and self.waiting[0] is ticket)
        finally:  # a Ctrl-C must not leave a stale ticket in the queue
            self.waiting.remove(ticket)
            self._changed.notify_all()

    def of_this_process(self) -> FairLock:
        """Return this lock or, in a forked process, a new one: the threads that might release this one are not there.

        If another thread was inside when the process was forked, what the lock protects may be half changed: a
        RuntimeError says so.
        """
        if self._process == os.getpid():
            return self
        if self.owner not in (None, threading.get_ident()):
            raise RuntimeError(
                "This process was forked while another thread was using the model, whose copy may be incomplete. Fork "
                "between two calls, or load a saved model in the new process."
            )
        torch.set_num_threads(1)  # torch's own threads were not forked either: it would wait for them for ever
        lock = FairLock()
        lock.owner, lock.depth = self.owner, self.depth
        return lock


def lock_of(model: Any, name: str = "_lock") -> FairLock:
    """Return a model's lock, created on first use: a scikit-learn constructor only stores its parameters."""
    lock: FairLock = vars(model).setdefault(name, FairLock()).of_this_process()
    vars(model)[name] = lock
    return lock


def in_turn(method: Method) -> Method:
    """Decorate a method to run under the model's lock, so that calls on one model do not overlap."""

    @wraps(method)
    def alone(self: Any, *arguments: Any, **named: Any) -> Any:
        with lock_of(self):
            return method(self, *arguments, **named)

    return alone  # type: ignore[return-value]


def learning_in_turn(method: Method) -> Method:
    """Decorate a method that learns: it lets predictions in between two batches, but no other method that learns."""

    @wraps(method)
    def alone(self: Any, *arguments: Any, **named: Any) -> Any:
        with lock_of(self, "_learning_lock"), lock_of(self):
            return method(self, *arguments, **named)

    return alone  # type: ignore[return-value]
