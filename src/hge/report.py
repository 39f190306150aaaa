"""One self-contained HTML file that tells a stranger what a run did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from hge.figures import expert_colour, loss_figure, routing_figure, switch_figure
from hge.record import RunRecord


def write_report(folder: Path) -> Path:
    """Read a run's files and write report.html beside them."""
    record = RunRecord.read(folder)
    created = [e["step"] for e in record.events if e["event"] == "expert_created"]
    pages = Environment(loader=PackageLoader("hge", ""), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    html = pages.get_template("report.html.j2").render(
        result=record.result,
        config=record.config,
        protocol=record.result["protocol"],
        learner=record.config["learner"],
        loss_svg=Markup(loss_figure(record)),
        switch_svg=Markup(switch_figure(record, created[0])) if created else None,
        first_creation=created[0] if created else None,
        routing_svg=Markup(routing_figure(record, record.config["routing"])),
        story=story(record),
        expert_colour=expert_colour,
    )
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    return path


def story(record: RunRecord) -> list[dict[str, Any]]:
    """Tell the run's decisions in plain sentences, in order; single outliers are left to the figure."""
    events, lines = record.events, []
    for index, event in enumerate(events):
        text = _sentence(event, events[:index])
        if text:
            lines.append({"step": event["step"], "expert": event["expert"], "kind": event["event"], "text": text})
    return lines


def _sentence(event: dict[str, Any], before: list[dict[str, Any]]) -> str | None:
    e = event["expert"]
    match event["event"]:
        case "loss_reviewed":
            verdict = (
                "far above it: the data are of another task"
                if event["new_task"]
                else "within it: the same task, and training goes on"
            )
            return (
                f"The loss stayed high. Expert {e}: {_shown(event['recent_loss'])} on the set-aside batches, "
                f"{_shown(event['replay_loss'])} on its own replay. Z-score {_shown(event['z_score'])}, threshold "
                f"{event['threshold']:g}: {verdict}."
            )
        case "expert_created":
            return f"Expert {e} was created and learned the {event['batches']} set-aside batches. It is on probation."
        case "expert_promoted":
            return (
                f"Expert {e} was promoted: on {event['rate']:.0%} of its last batches its score was lower than that "
                "of the expert the gate had chosen."
            )
        case "expert_changed" if _known(e, before):
            return f"The stream went back to expert {e}, which had learned this task before. No expert was created."
    return None


def _shown(value: float | None) -> str:
    if value is None:
        return "not a number"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _known(expert: int, before: list[dict[str, Any]]) -> bool:
    """Was this expert in use before, or has it only just been created?"""
    return expert == 0 or any(b["event"] == "expert_changed" and b["previous"] == expert for b in before)
