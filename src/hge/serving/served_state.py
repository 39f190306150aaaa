"""What the live page shows of a model that is served."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hge.estimator.fair_lock import lock_of
from hge.serving.live import state
from hge.serving.service import ModelService


def model_state(service: ModelService) -> dict[str, Any]:
    """Return the state of a model, all numbers of one moment."""
    model = service.model
    facts: dict[str, Any] = {
        "title": service.folder.resolve().name,
        "status": "serving",
        "accuracy": service.right / service.labelled if service.labelled else None,
        "accuracy_name": "predicted rightly, before the label came",
    }
    if not service.started:
        return state({}, [], [], [], batches=0, rows=0, switches=0, **facts)
    with lock_of(model):
        return state(
            model.history_,
            [event.as_json() for event in model.events_],
            [asdict(expert) for expert in model.experts_],
            model.tree_.as_json(),
            batches=model.learner_.steps,
            rows=model.rows_seen_,
            switches=model.n_switches_,
            **facts,
        )
