"""An estimator's public summaries: of its experts, in a line, and in a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from hge.core.event_text import describe_events

DECISIONS_SHOWN = 5


@dataclass(frozen=True)
class ExpertSummary:
    """Summary of one expert."""

    id: int
    promoted: bool
    """False while it is on probation."""
    batches_trained: int
    loss: float
    """Running mean of its training loss."""
    bound: float
    """Batches with a higher loss are not accepted."""


def summary(model: Any) -> str:
    """Return a fitted model in a line; without waiting for its lock, since a debugger may ask at any time."""
    learner, record = model._learner, model._events
    probation = f" ({len(learner.newcomers)} on probation)" if learner.newcomers else ""
    parts = [
        _counted(record.rows, "row"),
        _counted(len(learner.active), "expert") + probation,
        _counted(record.switched, "switch", "es"),
    ]
    waiting = len(model._waiting)
    return ", ".join(parts + ([f"{_counted(waiting, 'row')} waiting"] if waiting else []))


def _counted(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def decisions(model: Any) -> list[dict[str, Any]]:
    """Return the model's last decisions in sentences, oldest first."""
    return describe_events(event.as_json() for event in model.events_)


def notebook_view(model: Any) -> str:
    """Return a fitted model as HTML for a notebook: counts, experts, the last decisions."""
    experts = "".join(
        f"<tr><td>{e.id}</td><td>{'promoted' if e.promoted else 'on probation'}</td><td>{e.batches_trained:,}</td>"
        f"<td>{e.loss:.3g}</td><td>{e.bound:.3g}</td></tr>"
        for e in model.experts_
    )
    last = "".join(
        f"<li>batch {line['step']}: {escape(line['text'])}</li>" for line in decisions(model)[-DECISIONS_SHOWN:]
    )
    return (
        f"<p><b>{escape(summary(model))}</b></p><table><thead><tr><th>expert</th><th></th><th>batches</th><th>loss</th>"
        f"<th>bound</th></tr></thead><tbody>{experts}</tbody></table>" + (f"<ul>{last}</ul>" if last else "")
    )
