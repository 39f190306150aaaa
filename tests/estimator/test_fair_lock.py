"""Threads share a model: every answer is that of one state between two batches, and nobody waits for ever."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import pytest

from helpers.digits import digits
from hge import GatedExperts
from hge.estimator.fair_lock import FairLock, lock_of


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[list[BaseException]]:
    """Repeat some work in another thread until the block ends; the list holds what it raised."""
    done, errors = threading.Event(), []

    def repeat() -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=repeat)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield errors
    finally:
        done.set()
        thread.join(30)
        sys.setswitchinterval(interval)
    assert not thread.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{}, {"organisation": "tree"}, {"gate_score": "autoencoder", "pool": "eager"}])
def test_predictions_are_of_one_state(parameters: dict[str, Any]) -> None:
    """Whatever is predicted while another thread learns is what some state between two batches predicts."""
    low, high = digits(low=True), digits(low=False)
    X = np.concatenate([low[0][:40], high[0][:40]])
    calls = [(X_[i : i + 32], y_[i : i + 32]) for X_, y_ in (low, high, low) for i in range(0, 640, 32)]
    alone = GatedExperts(**parameters).partial_fit(*calls[0])
    possible = {alone.predict_proba(X).tobytes()}
    for call in calls[1:]:
        possible.add(alone.partial_fit(*call).predict_proba(X).tobytes())
    model = GatedExperts(**parameters).partial_fit(*calls[0])
    seen: list[bytes] = []
    with beside(lambda: seen.append(model.predict_proba(X).tobytes())) as errors:
        for call in calls[1:]:
            model.partial_fit(*call)
    assert not errors
    assert len(set(seen)) > 2, "it must have learned meanwhile"
    assert set(seen) <= possible
    assert model.predict_proba(X).tobytes() == alone.predict_proba(X).tobytes()


def test_a_long_call_lets_others_in() -> None:
    X, y = digits()
    model = GatedExperts(batch_size=4, memory_rows=0).partial_fit(X[:4], y[:4])
    call = threading.Thread(target=model.partial_fit, args=(X[4:484], y[4:484]))
    answers = 0
    call.start()
    while call.is_alive():
        model.predict(X[:5])
        answers += 1
    assert model.rows_waiting_ < 4
    assert answers >= 5, "a call of 120 batches lets others in every 16 batches"


@pytest.mark.slow
def test_two_threads_in_fit_come_one_after_the_other() -> None:
    """The model is that of the fit that came last, as if it had been alone."""
    tasks = [digits(low=low) for low in (True, False)]
    alone = [GatedExperts(epochs=2).fit(*task).predict_proba(digits()[0]) for task in tasks]
    model = GatedExperts(epochs=2)
    threads = [threading.Thread(target=model.fit, args=task) for task in tasks]
    for thread in threads:
        thread.start()
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert any(np.array_equal(model.predict_proba(digits()[0]), own) for own in alone)
    assert len(model.classes_) == 5


FORKING = """
import os, signal, sys, threading, time, warnings
import numpy as np, torch
from sklearn.datasets import load_digits
from hge import GatedExperts

torch.set_num_threads(2)
X, y = load_digits(return_X_y=True)
model = GatedExperts(memory_rows=100).partial_fit(X[:320], y[:320])
expected = model.predict(X[:50])
learning = threading.Event()

def learn():
    while True:
        learning.set()
        model.partial_fit(X[:960], y[:960])

if sys.argv[1] == "learning":
    threading.Thread(target=learn, daemon=True).start()
    learning.wait()
outcomes = []
for _ in range(4):
    time.sleep(0.03)
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            found = model.predict(X[:50])
            code = 0 if sys.argv[1] == "learning" or np.array_equal(found, expected) else 2
            for _ in range(2):
                model.partial_fit(X[:64], y[:64])
        except RuntimeError as error:
            code = 3 if "forked while another thread" in str(error) else 4
        os._exit(code)
    outcomes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*outcomes)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(("when", "possible"), [("learning", {0, 3}), ("idle", {0})])
def test_a_forked_process_can_predict_or_is_told_why_not(when: str, possible: set[int]) -> None:
    run = subprocess.run([sys.executable, "-c", FORKING, when], capture_output=True, text=True, timeout=300)
    assert {int(code) for code in run.stdout.split()} <= possible, run.stderr
    assert len(run.stdout.split()) == 4, run.stderr


def test_who_has_waited_longest_goes_first() -> None:
    lock, order = FairLock(), []

    def enter(name: int) -> None:
        with lock:
            order.append(name)

    threads = []
    with lock, lock:
        for name in range(5):
            threads.append(threading.Thread(target=enter, args=(name,)))
            threads[-1].start()
            while len(lock.waiting) <= name:
                time.sleep(0.001)
        lock.let_others_in()
        assert order == list(range(5)), "and who let them in goes on after them"
        assert lock.depth == 2
    for thread in threads:
        thread.join()


def test_an_interrupt_while_others_are_let_in_leaves_the_lock_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, inside = FairLock(), []
    wait_for = threading.Condition.wait_for
    interrupts = [KeyboardInterrupt(), KeyboardInterrupt()]

    def interrupted(condition: threading.Condition, predicate: Callable[[], bool]) -> bool:
        if threading.current_thread() is threading.main_thread() and interrupts:
            raise interrupts.pop()
        return wait_for(condition, predicate)

    def enter() -> None:
        with lock:
            inside.append(lock.depth)

    thread = threading.Thread(target=enter, daemon=True)
    with lock, lock:
        monkeypatch.setattr(threading.Condition, "wait_for", interrupted)
        thread.start()
        while not lock.waiting:
            time.sleep(0.001)
        with pytest.raises(KeyboardInterrupt):
            lock.let_others_in()
        assert inside == [1], "who waited was let in"
        assert (lock.owner, lock.depth) == (threading.get_ident(), 2)
    thread.join(5)
    assert (lock.owner, lock.depth, len(lock.waiting)) == (None, 0, 0)


def test_copies_have_a_lock_of_their_own_and_pickles_none() -> None:
    X, y = digits(low=True)
    model = GatedExperts().partial_fit(X, y)
    with lock_of(model):
        copies = [deepcopy(model), pickle.loads(pickle.dumps(model))]
    for copy in copies:
        assert lock_of(copy) is not lock_of(model)
        np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
