"""A served model from start to end: a recorded walk through a stream with a kill in the middle, and a load test.

    PYTHONPATH=tests python benchmarks/serving.py [--pictures FOLDER]    writes results/serving.json

The walk: `hge serve` on an empty folder; recurring-digits, one pass, batches of 32; each batch is predicted under an
id, and its labels come four batches later. Once without a kill, once with kill -9 in the middle and a second start.
With `--pictures`, the live page is shown in headless Chromium and written to a PNG file at three moments.

The load: clients on the loopback address ask for predictions as fast as they are answered, without and with one more
client that sends batches of 32 rows to learn. The server and the clients share the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from helpers.browser import Page, browser
from helpers.served import TOKEN, Served, served
from hge.core.files import write_json
from hge.core.randomness import Keys
from hge.experiments.build import build_scenario
from hge.experiments.recipes import build_config
from hge.experiments.run_files import environment

ROOT = Path(__file__).parent.parent
BATCH, LATE, SAVE_EVERY = 32, 4, 500
CLIENTS, SECONDS = 4, 8.0
Answers = list[list[int] | None]


def batches() -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield the rows and labels of recurring-digits, one pass over every visit."""
    config = build_config("recurring-digits")
    keys = Keys(config.seed)
    for _, batch in build_scenario(config, keys, None).stream(BATCH, 1, keys):
        yield batch.x.flatten(1).tolist(), batch.y.tolist()


def walk(folder: Path, kill_at: int | None, pictures: Path | None = None) -> dict[str, Any]:
    """Stream all batches into a server that is killed before one of them; return its answers and figures."""
    stream, answers, found = list(batches()), Answers(), {}
    moments = {len(stream) // 4: "early", len(stream) // 2 + LATE: "after-the-kill", len(stream) - 1: "late"}
    with ExitStack() as stack:
        page = stack.enter_context(browser(folder.with_name("profile"))) if pictures else None
        server = stack.enter_context(served(folder, "--save-every", str(SAVE_EVERY)))
        for number, (rows, _) in enumerate(stream):
            if number == kill_at:
                server.end(signal.SIGKILL)
                began = time.monotonic()
                server = stack.enter_context(served(folder, "--save-every", str(SAVE_EVERY)))
                found["restart_seconds"] = round(time.monotonic() - began, 1)
                found["killed_after_rows"] = server.get("/healthz")["rows_seen"]
            answers.append(server.post("/predict", rows=rows, id=str(number))["labels"])
            label(server, stream, number - LATE)
            if page and pictures and number in moments:
                photograph(page, server, pictures / f"{moments[number]}.png")
        for number in range(len(stream) - LATE, len(stream)):
            label(server, stream, number)
        live = server.get("/live")
        server.end()
    found |= {name: live[name] for name in ("rows", "switches", "accuracy")} | {"experts": len(live["experts"])}
    return found | {"answers": answers}


def label(server: Served, stream: list[tuple[list[Any], list[Any]]], number: int) -> None:
    """Send the labels of a batch that was predicted earlier, if there is one."""
    if number >= 0:
        server.post("/label", id=str(number), labels=stream[number][1])


def photograph(page: Page, server: Served, path: Path) -> None:
    """Show the live page and write it to a file once it has the server's numbers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    page.size(1200, 1250)
    page.open(server.url)
    page.wait_for(f"document.getElementById('rows').textContent === '{server.get('/healthz')['rows_seen']:,}'")
    page.screenshot(path)


def load(folder: Path) -> list[dict[str, Any]]:
    """Measure predictions of one row and of 32, without and with learning."""
    stream = list(batches())
    with served(folder, "--save-every", str(SAVE_EVERY)) as server:
        for rows, labels in stream[:60]:
            server.post("/learn", rows=rows, labels=labels)
        return [
            {"rows": rows, "learning": learning, **measure(server, stream, rows, learning)}
            for rows in (1, BATCH)
            for learning in (False, True)
        ]


def measure(server: Served, stream: list[tuple[list[Any], list[Any]]], rows: int, learning: bool) -> dict[str, Any]:
    """Ask for predictions for some seconds; return requests per second and response times."""
    predicted: list[float] = []
    learned: list[float] = []
    end = time.monotonic() + SECONDS
    asked = [("/predict", {"rows": some[:rows]}) for some, _ in stream]
    threads = [threading.Thread(target=client, args=(server.url, asked, end, predicted)) for _ in range(CLIENTS)]
    if learning:
        taught = [("/learn", {"rows": some, "labels": labels}) for some, labels in stream]
        threads.append(threading.Thread(target=client, args=(server.url, taught, end, learned)))
    for act in (threading.Thread.start, threading.Thread.join):
        for thread in threads:
            act(thread)
    figures = times("predict", predicted)
    return figures | (times("learn", learned) if learning else {})


def client(url: str, requests: list[tuple[str, dict[str, Any]]], end: float, seconds: list[float]) -> None:
    """Send requests one after the other over one connection until the time is up; append how long each took."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    bodies = [(path, json.dumps(body)) for path, body in requests]
    number = 0
    while time.monotonic() < end:
        path, body = bodies[number % len(bodies)]
        started = time.perf_counter()
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        seconds.append(time.perf_counter() - started)
        if answer.status != 200:
            raise RuntimeError(f"{path}: got status {answer.status}, expected 200")
        number += 1
    connection.close()


def times(name: str, seconds: list[float]) -> dict[str, Any]:
    """Return requests per second and quantiles of the response time."""
    p50, p99 = (round(1000 * float(value), 1) for value in np.quantile(seconds, [0.5, 0.99]))
    return {
        f"{name}_requests": len(seconds),
        f"{name}_per_second": round(len(seconds) / SECONDS, 1),
        f"{name}_p50_ms": p50,
        f"{name}_p99_ms": p99,
        f"{name}_longest_ms": round(1000 * max(seconds), 1),
    }


def main() -> None:
    """Walk twice, compare the answers, measure the load, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=Path, help="folder for pictures of the live page; needs Chromium")
    pictures = parser.parse_args().pictures
    protocol = {
        "command": "PYTHONPATH=tests python benchmarks/serving.py",
        "scenario": "recurring-digits",
        "batch_size": BATCH,
        "labels_late_by_batches": LATE,
        "save_every": SAVE_EVERY,
        "clients": CLIENTS,
        "seconds": SECONDS,
        "load_average": os.getloadavg()[0],
        **environment(),
    }
    with tempfile.TemporaryDirectory() as place:
        whole = walk(Path(place, "whole"), None)
        killed = walk(Path(place, "killed"), len(whole["answers"]) // 2, pictures)
        pairs = list(zip(whole.pop("answers"), killed.pop("answers"), strict=True))
        comparison = {"predictions": len(pairs), "different": sum(one != other for one, other in pairs)}
        loads = load(Path(place, "load"))
    figures = {"walk": {"without_a_kill": whole, "with_a_kill": killed, "answers": comparison}, "load": loads}
    print(json.dumps(figures, indent=2))
    write_json(ROOT / "results" / "serving.json", {"protocol": protocol, **figures})


if __name__ == "__main__":
    main()
