"""Sensor drift with late labels: `hge serve` predicts each batch at once, and learns it when the labels are known.

A sensor is exchanged for one of another make, and later put back. Labels come five batches late.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import deque
from typing import Any
from urllib.request import Request, urlopen

import numpy as np

LATE, BATCHES = 5, 90
TOKEN = "only for this example"


def request(url: str, body: dict[str, Any] | None = None) -> Any:
    """Send JSON, or ask for it."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    with urlopen(Request(url, json.dumps(body).encode() if body else None, headers), timeout=60) as answer:
        return json.load(answer)


def readings(sensor: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Four channels of a gas sensor, and which of two gases was there."""
    gas = rng.integers(0, 2, 32)
    channels = rng.normal(size=(32, 4)) + 2.5 * np.outer(gas - 0.5, [1, -1, 1, 1])
    return (channels if sensor == 0 else channels[:, ::-1] * -30 + 200), gas


def stream(url: str) -> None:
    """Predict every batch under an id; send its labels when they are known."""
    rng, laboratory = np.random.default_rng(0), deque[tuple[str, list[int]]]()
    for number in range(BATCHES):
        rows, gas = readings(int(BATCHES // 3 <= number < 2 * BATCHES // 3), rng)
        request(f"{url}/predict", {"rows": rows.tolist(), "id": str(number)})
        laboratory.append((str(number), gas.tolist()))
        if len(laboratory) > LATE:
            name, labels = laboratory.popleft()
            request(f"{url}/label", {"id": name, "labels": labels})
    live = request(f"{url}/live")
    print(f"{live['rows']:,} rows learned by {len(live['experts'])} experts, {live['switches']} changes between them")
    print(f"{100 * live['accuracy']:.1f} % predicted rightly before their label came")
    for decision in live["decisions"]:
        print(f"batch {decision['step']}: {decision['text']}")


def main() -> None:
    """Start a server on an empty folder, stream into it, stop it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hge", "serve", f"{folder}/model", "--port", "0"]
        environment = os.environ | {"HGE_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            try:
                stream(server.stdout.readline().rpartition(" at ")[2].strip())
            finally:
                server.send_signal(signal.SIGTERM)  # it saves the model


if __name__ == "__main__":
    main()
