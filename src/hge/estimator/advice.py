"""Warnings about trouble that is no error, each given once per model; docs/howto/warnings.md says what to do."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hge.core.events import Emit, TroubleNoticed
from hge.estimator.odd_values import clipped_share, coded_input
from hge.estimator.validation import FloatRows
from hge.experts.inputs import MAX_DEVIATIONS
from hge.experts.replay import Expert
from hge.gating.gradual import evidence_of_fading
from hge.learning.learner import Learner
from hge.learning.online import Step
from hge.learning.stream_memory import StreamMemory

WINDOW, REFUSED_SHARE = 200, 0.125
"""Batches without a new expert, and the share set aside that is too much; random labels have 2 %, single rows 7 %."""
PROBATION_WINDOWS = 4
"""Promotion windows after which an expert that is still on probation is unlikely to be promoted."""
CONSTANT_ROWS = 256
"""Rows, all equal, after which the inputs are said to be constant."""
RISES, STILL = 64, 8
"""Rises of an input that never falls, and batches after which one that has not risen is left out as a constant."""
LARGE_INPUT = 1e12
CLIP_EVERY, CLIPPED_SHARE = 64, 0.05
"""Batches between two checks for clipped values, or for codes, and the share of clipped rows that is too much."""
MANY_EXPERTS, OFTEN_AFTER, BATCHES_PER_EXPERT = 50, 100, 5
"""Most experts; and, after some batches, the fewest batches per expert."""
GATE_ROWS, GATE_BATCHES, GATE_SHARE = 299, 32, 0.6
"""Least rows and batches of the expert in use, and the share of its rows that the gate must send to it."""
FOLLOWED, FEWEST_FOLLOWED, FADING = 24, 8, 7.0
"""Batches after a change of the expert in use that are compared, the fewest, and the evidence (1000 to 1) needed."""


class HgeWarning(UserWarning):
    """Trouble that is no error: learning continues, but is unlikely to go well."""


@dataclass
class Advice:
    """What a model has warned about, and the few numbers from which it does. The fields are saved as JSON."""

    said: list[str] = field(default_factory=list)
    """Troubles already warned about."""
    batches: int = 0
    """Batches since the last new expert, or since the last full window."""
    refused: int = 0
    """Those of them that were set aside."""
    most_refused: int = 0
    """Most batches set aside in a full window."""
    experts: int = 1
    first: list[float] | None = field(default_factory=list)
    """The first row, as long as all rows are equal to it; then None."""
    rows: int = 0
    """Number of equal rows."""
    newest: list[float] | None = field(default_factory=list)
    """The inputs of the last row that have never fallen; None when there is none any more."""
    rising: list[float] = field(default_factory=list)
    """Their numbers."""
    rises: list[float] = field(default_factory=list)
    """How often each of them has risen."""
    clip_checked: int = 0
    """Batches learned at the last check for clipped values."""
    codes_checked: int = 0
    """The same for codes of missing values."""
    gate_checked: int = 0
    """Batches learned at the last comparison of the gate with the labels."""
    in_use: int = 0
    left: int | None = None
    """The expert in use before the last change, while its predictions are followed."""
    left_right: list[float] = field(default_factory=list)
    """In each batch since then, how many rows it predicts rightly."""
    left_rows: list[float] = field(default_factory=list)
    """Their numbers of rows."""
    faded: list[float] = field(default_factory=list)
    """Of a change that was gradual: that expert, its share of right rows at first and at last, and the batches."""

    def count(self, step: Step, learner: Learner) -> None:
        """Count a batch that was learned or set aside; a new expert begins a new window."""
        experts = len(learner.active)
        if experts != self.experts or self.batches >= WINDOW:
            self.experts, self.batches, self.refused = experts, 0, 0
        self.batches += 1
        self.refused += step.set_aside
        if self.batches == WINDOW:
            self.most_refused = max(self.most_refused, self.refused)
        if learner.memory is not None and not self.faded:  # without it several batches may be learned ahead
            self._follow(step, learner)

    def _follow(self, step: Step, learner: Learner) -> None:
        """After the expert in use has changed, count the rows that the one before still predicts rightly."""
        if learner.last_used != self.in_use:
            self._judge_change()
            self.left, self.in_use = self.in_use, learner.last_used
        elif self.left is not None and len(learner.recent) and learner.recent.newest.step == step.step:
            batch = learner.recent.newest.batch
            right = learner.pool.logits(self.left, batch.x).argmax(dim=1) == batch.y
            self.left_right.append(float(right.sum()))
            self.left_rows.append(float(len(batch)))
            if len(self.left_rows) == FOLLOWED:
                self._judge_change()

    def _judge_change(self) -> None:
        """Decide whether the change that was followed was gradual; follow it no longer."""
        right, rows = np.array(self.left_right), np.array(self.left_rows)
        if self.left is not None and len(rows) >= FEWEST_FOLLOWED and evidence_of_fading(right, rows) > FADING:
            third = len(rows) // 3
            first, last = (right[part].sum() / rows[part].sum() for part in (slice(third), slice(-third, None)))
            self.faded = [float(self.left), float(first), float(last), float(len(rows))]
        self.left, self.left_right, self.left_rows = None, [], []

    def give(self, x: FloatRows, learner: Learner, emit: Emit) -> None:
        """Warn of what is new after these rows were learned; if a warning is made an error, the others follow later."""
        texts = {trouble: check(self, x, learner) for trouble, check in CHECKS.items() if trouble not in self.said}
        for trouble, text in texts.items():
            if text:
                self.said.append(trouble)
                emit(TroubleNoticed(learner.steps, trouble, text))
                warnings.warn(text, HgeWarning, stacklevel=_levels_to_caller())


def _refused(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if _at_limit(learner) or advice.most_refused <= REFUSED_SHARE * WINDOW:
        return ""
    return (
        f"{advice.most_refused} of {WINDOW} batches were set aside, but no expert was created: the stream may have no "
        "clear boundaries, or the loss is too noisy to find them. Set batch_size or epsilon higher."
    )


def _probation(advice: Advice, x: FloatRows, learner: Learner) -> str:
    for expert, probation in learner.organisation.probations.items():
        if probation.accepted > PROBATION_WINDOWS * learner.config.promotion_window:
            return (
                f"Expert {expert} is on probation after {probation.accepted} batches: the gate does not prefer it on "
                "its own rows. Set promotion_rate or promotion_window lower, or try another gate_score."
            )
    return ""


def _constant(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if advice.first is None:
        return ""
    rows = x.reshape(len(x), -1)
    advice.first = advice.first or rows[0].tolist()
    if (rows != np.array(advice.first, np.float32)).any():
        advice.first = None
        return ""
    advice.rows += len(x)
    if advice.rows < CONSTANT_ROWS:
        return ""
    return f"All {advice.rows} rows so far are equal, so that X cannot predict the labels. Check how X is made."


def _rising(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if advice.newest is None:
        return ""
    rows = x.reshape(len(x), -1)
    inputs = np.array(advice.rising, int) if advice.newest else np.arange(rows.shape[1])
    rows = rows[:, inputs]
    steps = np.diff(np.concatenate([np.array([advice.newest], np.float32), rows]) if advice.newest else rows, axis=0)
    rises = (steps > 0).sum(axis=0) + (np.array(advice.rises) if advice.newest else 0)
    never_fell = (steps >= 0).all(axis=0) & ((rises > 0) | (learner.steps < STILL))
    advice.rising, advice.rises = inputs[never_fell].tolist(), rises[never_fell].tolist()
    advice.newest = rows[-1, never_fell].tolist() or None
    if max(advice.rises, default=0) < RISES:
        return ""
    return (
        f"Input {advice.rising[int(np.argmax(advice.rises))]} (counted from 0) never falls: a time or a row number."
        " It tells all earlier rows from those to come, which then count as rows of the last task. Leave it out, or "
        "replace it by its differences or the time of day."
    )


def _scale(advice: Advice, x: FloatRows, learner: Learner) -> str:
    largest, remedy = max(float(x.max()), -float(x.min())), "Transform the inputs (logarithms, ranks), and remove codes"
    if largest > LARGE_INPUT:
        return f"X has values of magnitude {largest:.2g}, of which float32 keeps 7 digits. {remedy} for missing values."
    if _at_limit(learner) or learner.steps - advice.clip_checked < CLIP_EVERY:
        return ""
    advice.clip_checked, share = learner.steps, clipped_share(learner)
    if share <= CLIPPED_SHARE:
        return ""
    return (
        f"{share:.0%} of an expert's rows have values beyond {MAX_DEVIATIONS:g} standard deviations, which are clipped."
        f" {remedy} for missing values."
    )


def _codes(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if learner.steps - advice.codes_checked < CLIP_EVERY:
        return ""
    advice.codes_checked = learner.steps
    found = coded_input(learner.experts[learner.last_used])
    if found is None:
        return ""
    column, value, share = found
    return (
        f"Input {column} (counted from 0) is {value:g} in {share:.0%} of an expert's rows, far from all other values: "
        "a code for missing ones? It makes the others look alike. Replace it, by the median of the others say, and add "
        "an input that says where it was."
    )


def _many_experts(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if learner.config.max_experts or len(learner.active) <= MANY_EXPERTS:
        return ""
    return (
        f"There are {len(learner.active)} experts, and memory grows with each. If there are fewer tasks, set epsilon "
        "higher or error_rate lower; max_experts limits the number."
    )


def _often_new(advice: Advice, x: FloatRows, learner: Learner) -> str:
    experts, batches = len(learner.active), learner.steps
    if batches < OFTEN_AFTER or experts * BATCHES_PER_EXPERT <= batches:
        return ""
    return (
        f"{experts} experts in {batches} batches: each learns from few rows. Set epsilon higher, error_rate lower or "
        "batch_size higher; max_experts limits the number."
    )


def _gate(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if _at_limit(learner) or learner.memory is None or len(learner.active) == 1 or learner.memory.belief.switched:
        return ""
    belief = learner.memory.belief
    used, chosen = belief.in_use, belief.counts[belief.most_reliable, belief.in_use]
    if learner.experts[used].batches_trained < GATE_BATCHES or chosen.sum() < GATE_ROWS:
        return ""
    if chosen[used] >= GATE_SHARE * chosen.sum() or learner.steps - advice.gate_checked < GATE_BATCHES:
        return ""
    advice.gate_checked, share = learner.steps, _contradicted_share(learner, learner.experts[used], learner.memory)
    if share <= 1 - GATE_SHARE:
        return ""
    return (
        f"The gate would send {share:.0%} of the rows of expert {used} to experts that contradict their labels: the "
        'inputs do not tell the tasks apart. Predict right after partial_fit, with routing="stream", or add inputs '
        "that tell them apart; predictions of single rows of mixed tasks cannot be right."
    )


def _contradicted_share(learner: Learner, expert: Expert, memory: StreamMemory) -> float:
    """Return the share of the rows in an expert's replay that would be sent to experts that refuse the batch.

    An expert that accepts the batch is no worse: its task came back while this one was in use.
    """
    rows = contradicted = 0
    for old in expert.replay.kept:
        sent = np.bincount(memory.choices(old.batch.x, len(learner.experts))[memory.belief.most_reliable])
        for other in (learner.experts[i] for i in np.flatnonzero(sent) if i != expert.id):
            refuses = learner.pool.loss(other.id, old.batch, old.step) > other.losses.bound(learner.config.epsilon)
            contradicted += int(sent[other.id]) * refuses
        rows += len(old.batch)
    return contradicted / rows


def _gradual(advice: Advice, x: FloatRows, learner: Learner) -> str:
    if _at_limit(learner) or not advice.faded:
        return ""
    expert, first, last, batches = advice.faded
    return (
        "This stream has no hard boundaries: the share of rows that "
        f"expert {expert:.0f} predicts rightly fell little by little after another replaced it, from {first:.0%} to "
        f"{last:.0%} in {batches:.0f} batches. Experts learn rows of both tasks. Set memory_rows higher, and compare "
        "with one expert for all rows (max_experts=1)."
    )


def _at_limit(learner: Learner) -> bool:
    """Return whether `max_experts` is reached: a new task creates no expert, and an expert may have several tasks."""
    return len(learner.active) == learner.config.max_experts


CHECKS: dict[str, Callable[[Advice, FloatRows, Learner], str]] = {
    "refused": _refused,
    "probation": _probation,
    "constant": _constant,
    "rising": _rising,
    "scale": _scale,
    "codes": _codes,
    "many-experts": _many_experts,
    "often-new": _often_new,
    "gate": _gate,
    "gradual": _gradual,
}
"""By trouble: a function that returns the warning, or nothing."""


def _levels_to_caller() -> int:
    """Return the `stacklevel` of the first function outside this package, for a warning of the calling function."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("hge."):
        frame, level = frame.f_back, level + 1
    return level
