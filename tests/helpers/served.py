"""A server in a process of its own, and requests to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

TOKEN = "a token for tests"


class Served:
    """A running `hge serve`."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "hge", "serve", str(folder), "--port", "0", *options]
        environment = os.environ | {"HGE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if " at http" not in line:
            raise AssertionError(line + self.process.communicate(timeout=20)[1])
        self.url = line.rpartition(" at ")[2].strip()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request with the token; return the answer."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        request = Request(self.url + path, json.dumps(body).encode(), headers)
        with urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def get(self, path: str) -> Any:
        """Return JSON."""
        with urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the process and wait until it has ended."""
        self.process.send_signal(number)
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def served(folder: Path, *options: str) -> Iterator[Served]:
    """Run a server; kill it at the end, if it still runs."""
    server = Served(folder, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)
