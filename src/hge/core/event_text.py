"""Decisions in sentences, from events as JSON values (`Event.as_json`, or a line of events.jsonl)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

JsonEvent = Mapping[str, Any]


def describe_events(events: Iterable[JsonEvent]) -> list[dict[str, Any]]:
    """Describe decisions in order, as step, expert, kind and text; single outliers are not described.

    >>> [line] = describe_events([{"event": "expert_created", "step": 40, "expert": 1, "batches": 2}])
    >>> line["step"], line["text"]
    (40, 'Expert 1 was created and trained on the 2 set-aside batches. It is on probation.')
    """
    lines, used = [], {0}
    for event in events:
        returned = event["event"] == "expert_changed" and event["expert"] in used
        text = sentence(event, returned=returned)
        if text:
            lines.append({"step": event["step"], "expert": event.get("expert"), "kind": event["event"], "text": text})
        if event["event"] == "expert_changed":
            used.add(event["previous"])
    return lines


def sentence(event: JsonEvent, *, returned: bool) -> str | None:
    """Describe one decision; `returned`: whether a change of expert is to one that was in use before."""
    e: Any = event.get("expert")
    match event["event"]:
        case "loss_reviewed":
            return _review(event)
        case "expert_created":
            if not event["batches"]:  # created by a baseline
                return f"Expert {e} was created."
            return (
                f"Expert {e} was created and trained on the {event['batches']} set-aside batches. It is on probation."
            )
        case "expert_reused":
            return (
                f"The maximum number of experts is reached: expert {e}, with the lowest loss, was trained on the "
                f"{event['batches']} batches."
            )
        case "batches_reclaimed":
            return (
                f"Expert {e}, in use until then, accepts {event['batches']} of the batches, which the gate had routed "
                "to other experts. It was trained on them, and no expert was created."
            )
        case "expert_promoted":
            return (
                f"Expert {e} was promoted: on {event['rate']:.0%} of the batches that were compared its score was "
                "lower than that of the expert that the gate would have selected."
            )
        case "expert_rolled_back":
            return (
                f"Expert {e} was rolled back to its last good state, {event['batches']} batches earlier: its loss or "
                "its weights were no longer finite, or it had lost what it had learned."
            )
        case "experts_merged":
            return f"Expert {event['merged']} was merged into expert {e}, which explains its whole replay."
        case "shortlist_set":
            return (
                f"Of {event['experts']} experts, the {event['batch']} with the best sketches are queried for a batch, "
                f"{event['row']} for a single row: enough to route the replay to its own experts."
            )
        case "expert_changed" if returned:
            return (
                f"The stream returned to expert {e}, which had been trained on this task before. No expert was created."
            )
        case "batch_skipped":
            return f"A call was skipped: {event['reason']}"
        case "trouble_noticed":
            return str(event["advice"])
    return None


def _review(event: JsonEvent) -> str:
    score = event["z_score"]
    if not event["new_task"]:
        verdict = "not above it: the same task, and training continues"
    elif score is None or score > event["threshold"]:
        verdict = "above it: another task"
    else:
        verdict = "not above it, but the expert predicts these batches far worse than usual: another task"
    return (
        f"The loss stayed high. Expert {event['expert']}: {_shown(event['recent_loss'])} on the set-aside batches, "
        f"{_shown(event['replay_loss'])} on its own replay. Z-score {_shown(event['z_score'])}, threshold "
        f"{event['threshold']:g}: {verdict}."
    )


def _shown(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
