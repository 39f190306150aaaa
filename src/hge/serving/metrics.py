"""Numbers of a service in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

from hge.serving.service import ModelService

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets of response times."""


class RequestMetrics:
    """Requests by path and status, and how long they took."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._seconds: Counter[str] = Counter()

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        with self._guard:
            self._requests[path, status] += 1
            self._buckets[path][bisect_left(SECONDS, seconds)] += 1
            self._seconds[path] += seconds  # type: ignore[assignment]

    def text(self, service: ModelService) -> str:
        """Return all numbers, those of the service included."""
        with self._guard:
            lines = [*self._of_requests(), *_of_service(service)]
        return "\n".join(lines) + "\n"

    def _of_requests(self) -> Iterator[str]:
        yield "# TYPE hge_requests_total counter"
        for (path, status), count in sorted(self._requests.items()):
            yield f'hge_requests_total{{path="{path}",status="{status}"}} {count}'
        yield "# TYPE hge_request_seconds histogram"
        for path, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*SECONDS, "+Inf"), buckets, strict=True):
                total += count
                yield f'hge_request_seconds_bucket{{path="{path}",le="{bound}"}} {total}'
            yield f'hge_request_seconds_sum{{path="{path}"}} {self._seconds[path]}'
            yield f'hge_request_seconds_count{{path="{path}"}} {total}'


def _of_service(service: ModelService) -> Iterator[str]:
    model, started = service.model, service.started
    counters = {
        "rows_learned_total": (service.rows_seen, "Rows received to be learned."),
        "switches_total": (model.n_switches_ if started else 0, "Changes of the expert in use."),
        "labelled_total": (service.labelled, "Rows whose label came after their prediction."),
        "labelled_right_total": (service.right, "Rows of these that were predicted rightly."),
        "saves_failed_total": (service.saves_failed, "Saves of the model that failed, such as on a full disk."),
        "dropped_total": (service.room.dropped, "Predictions whose label did not come in time."),
    }
    gauges = {
        "experts": (model.n_experts_ if started else 0, "Experts of the model."),
        "waiting_for_label_rows": (service.room.rows, "Predicted rows whose label has not come yet."),
        "journal_bytes": (service.journal.size, "Length of the journal."),
        "rows_since_save": (service.rows_since_save, "Rows to be learned again after a crash."),
        "save_seconds": (service.save_seconds, "Time that the last save of the model took."),
    }
    for kind, numbers in (("counter", counters), ("gauge", gauges)):
        for name, (value, what) in numbers.items():
            yield f"# HELP hge_{name} {what}"
            yield f"# TYPE hge_{name} {kind}"
            yield f"hge_{name} {value}"
