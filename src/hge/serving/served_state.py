"""What the live page shows of a model that is served."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hge.estimator.fair_lock import lock_of
from hge.serving.live import state
from hge.serving.service import ModelService


def model_state(service: ModelService) -> dict[str, Any]:
    """Return the state of a model, all numbers of one moment."""
    model, title = service.model, service.folder.resolve().name
    accuracy = service.right / service.labelled if service.labelled else None
    if not service.started:
        return state({}, [], [], [], title=title, status="serving", rows=0, switches=0, accuracy=accuracy)
    with lock_of(model):
        return state(
            model.history_,
            [event.as_json() for event in model.events_],
            [asdict(expert) for expert in model.experts_],
            model.tree_.as_json(),
            title=title,
            status="serving",
            rows=model.rows_seen_,
            switches=model.n_switches_,
            accuracy=accuracy,
        )
