"""Headless Chromium through the DevTools protocol over a pipe: no package is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Page:
    """One tab."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out, self._in = to_browser, os.fdopen(from_browser, "rb", buffering=0)
        self._number, self._rest, self._session = 0, b"", None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.send("Page.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                found: dict[str, Any] = answer["result"]
                return found

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = self._in.read(2**16)
            assert part, "the browser has ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """Set the size of the window and the preferred colours."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str) -> None:
        """Load a page."""
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        return self.send("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait_for(self, script: str, seconds: float = 10.0) -> float:
        """Wait until an expression is true; return the seconds that it took."""
        started = time.monotonic()
        while not self.value(script):
            assert time.monotonic() - started < seconds, f"not within {seconds} s: {script}"
            time.sleep(0.02)
        return time.monotonic() - started

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """Write what is seen, or the whole page, to a PNG file."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(picture))


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start a browser, or skip the test where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    read_there, write_here = os.pipe()
    read_here, write_there = os.pipe()

    def connect() -> None:  # DevTools reads descriptor 3 and writes descriptor 4
        copies = os.dup(read_there), os.dup(write_there)
        os.dup2(copies[0], 3)
        os.dup2(copies[1], 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=connect,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_there)
    os.close(write_there)
    try:
        page = Page(write_here, read_here)
        yield page
        page._in.close()
    finally:
        process.kill()
        process.wait(timeout=20)
        os.close(write_here)
