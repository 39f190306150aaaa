"""What a learner keeps beside its experts' networks to predict well from few rows: companions, and a belief."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hge.core.config import LearnerConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.companions.companion import ROWS_KEPT, Companion, flat
from hge.experts.companions.nearest import FloatRows, LabelledRows, NearestRows, common_scale
from hge.experts.companions.row_novelty import RowNovelty
from hge.experts.networks import Shape
from hge.experts.pool import ExpertPool, class_probabilities
from hge.experts.replay import Expert
from hge.gating.mistakes import evidence_of_change
from hge.gating.stream_belief import StreamBelief
from hge.gating.switch_detection import RecentBuffer
from hge.gating.tree import FloatArray, IntArray
from hge.learning.state import named, part

REHEARSED = 96
"""Remembered rows in a rehearsal step, beside those of the batch."""
STEPS, YOUNG = 4, 40
"""Rehearsal steps for each of an expert's first batches, and the number of these; then ever fewer."""
OBSERVERS = 3
"""The gate, the nearest of all experts' rows, and the inputs that never change."""
OWNED, ALL_OWNED = 256, 8192
"""Rows of each expert, and of all, among which the nearest one is looked for."""
REVIEWED, ALL_REVIEWED = 64, 2048
"""Rows of each expert, and of all, for which the observers choose again once there are further experts."""
NEGLIGIBLE = 0.01
"""Probability below which a hypothesis about a row is ignored."""
UNUSUAL = 0.05
"""Share of the remembered rows that count as novel beside the others."""


class Learned(NamedTuple):
    """Rows that an expert has learned: by which, and where they are among the rows of `StreamMemory._nearest`."""

    by: int
    places: IntArray


class AsideNovelty(NamedTuple):
    """How many of the rows set aside are novel."""

    steps: tuple[int, ...]
    """Of the batches set aside."""
    novelty_of: RowNovelty
    """Of some of the remembered rows: it is needed at once, and only for as long as the batches are set aside."""
    threshold: float
    """Novelty above which a row is novel."""
    share: float
    """Probability that one of the rows set aside is."""


class StreamMemory:
    """The companions of all experts, rehearsal of their rows, and the belief about the next rows of the stream."""

    def __init__(self, config: LearnerConfig, pool: ExpertPool, keys: Keys) -> None:
        self.rows, self.pool, self.keys = config.memory_rows, pool, keys
        self.companions: dict[int, Companion] = {}
        self.belief = StreamBelief(OBSERVERS)
        self._owners: LabelledRows | None = None
        self._chosen: tuple[Any, IntArray] | None = None
        """Rows, and what the observers chose for them, until something is learned: often rows are predicted first."""
        self._network: tuple[tuple[int, int], Batch, FloatArray] | None = None
        """An expert, its number of batches, a batch, and what its network says of it: often that is learned next."""
        self._aside: tuple[tuple[int, ...], NearestRows] | None = None
        """The expert in use and the batches set aside, and the rows of these."""
        self._row_novelty: RowNovelty | None = None
        self._aside_novelty: AsideNovelty | None = None
        self.rows_limited = 0
        """Number of rows that were too far from the others of their expert, and were clipped."""
        self.classes = 0
        """Number of outputs whose labels have been seen."""
        self._shape: Shape = ()
        """Shape of one input of the batch learned last."""

    def learn(self, expert: Expert, batch: Batch) -> None:
        """Train an expert's companion on a batch; to be called before its network is trained on it."""
        x, y = flat(batch.x), batch.y.cpu().numpy()
        self._shape = tuple(batch.x.shape[1:])
        self.classes = max(self.classes, int(y.max()) + 1)
        wrong = self._wrong_share(expert, batch)
        if wrong is not None:
            expert.mistakes.update(wrong, rising=True)
        own = self.companions.setdefault(expert.id, Companion(x.shape[1], self.rows))
        network = self._network_probabilities(expert, batch)
        others = self._rows_of_others(expert.id) if own.nearest.scale is None else None
        self.rows_limited += own.learn(x, y, network, others)
        self._forget_comparisons()

    def _forget_comparisons(self) -> None:
        """Forget what was kept of the remembered rows, since they have changed."""
        self._owners = self._row_novelty = self._aside_novelty = self._chosen = None

    def evidence_of_change(self, expert: Expert, batch: Batch) -> float:
        """Return the evidence, from the rows of a batch that an expert predicts wrongly, that its task has changed."""
        wrong = self._wrong_share(expert, batch)
        return 0.0 if wrong is None else evidence_of_change(expert.mistakes, wrong, expert.labels.guessing, len(batch))

    def _wrong_share(self, expert: Expert, batch: Batch) -> float | None:
        """Return the share of the rows that an expert predicts wrongly; None if it has learned nothing."""
        own = self.companions.get(expert.id)
        if own is None:
            return None
        predicted = own.probabilities(flat(batch.x), self._network_probabilities(expert, batch)).argmax(axis=1)
        return float((predicted != batch.y.cpu().numpy()).mean())

    def _network_probabilities(self, expert: Expert, batch: Batch) -> FloatArray:
        """Return [rows, classes]: the class probabilities of an expert's network for a batch."""
        state = expert.id, expert.batches_trained
        if self._network is None or self._network[0] != state or self._network[1] is not batch:
            outputs = max(self.classes, int(batch.y.max()) + 1)
            self._network = state, batch, class_probabilities(self.pool, expert.id, batch.x, outputs)
        return self._network[2]

    @property
    def _memories(self) -> dict[int, NearestRows]:
        return {expert: own.nearest for expert, own in self.companions.items()}

    def _rows_of_others(self, expert: int) -> FloatRows | None:
        """Return some rows that other experts remember, with which an expert's inputs are compared."""
        memories = [own.nearest for other, own in self.companions.items() if other != expert and len(own.nearest)]
        each = max(1, OWNED // max(1, len(memories)))
        return np.concatenate([own.x[:: -(-len(own) // each)] for own in memories]) if memories else None

    def companion_as_is(self, expert: int) -> Companion | None:
        """Return a copy of an expert's companion, to be put back if what it learns next is undone."""
        return deepcopy(self.companions.get(expert))

    def put_back(self, expert: int, companion: Companion | None) -> None:
        """Replace an expert's companion by an earlier copy of it, or by none."""
        self.companions.pop(expert, None)
        if companion is not None:
            self.companions[expert] = companion
        self._forget_comparisons()

    def rehearse(self, expert: Expert, batch: Batch, step: int) -> None:
        """Train an expert's network further on the batch and on remembered rows: often while it is young."""
        trained, nearest = expert.batches_trained, self.companions[expert.id].nearest
        steps = _steps_until(trained + 1) - _steps_until(trained)
        drawn = self.keys.integers(len(nearest), steps * REHEARSED, "rehearsal", step, expert.id)
        for rows in drawn.reshape(steps, REHEARSED):
            x = torch.from_numpy(nearest.x[rows]).view(-1, *batch.x.shape[1:]).to(batch.x)
            y = torch.from_numpy(nearest.y[rows]).to(batch.y)
            self.pool.rehearse(expert.id, Batch(torch.cat([batch.x, x]), torch.cat([batch.y, y])), step)

    def after_batch(self, accepted_by: int | None, choices: IntArray, experts: int, chance: float) -> None:
        """Note which expert was trained on a batch, or that none was, and the choices for its rows before.

        `chance`: probability that the last batches are refused although the task has not changed.
        """
        self._chosen = None  # an expert may have been rolled back, although nothing was learned
        if accepted_by is None:
            self.belief.set_aside(choices, experts, chance)
            return
        left, known = self.belief.in_use, len(self.belief.met)
        self.belief.learned(accepted_by, choices, experts)
        if 0 < known <= accepted_by:
            self.belief.chosen_since(self._choices_for_remembered(accepted_by, experts, REVIEWED))
        batches = int(self.companions[accepted_by].linear.statistics.rows) // choices.shape[1]
        if accepted_by != left or batches.bit_count() == 1:  # whenever its batches have doubled
            self._choose_again(experts)

    def _choose_again(self, experts: int) -> None:
        """Let the observers choose for rows of the experts that are not in use and have not met all others."""
        belief = self.belief
        met = [expert for expert in self.companions if expert != belief.in_use and belief.met[expert] < experts]
        each = max(1, min(REVIEWED, ALL_REVIEWED // max(1, len(met))))
        for expert in met:
            belief.met_later(expert, self._choices_for_remembered(expert, experts, each))

    def _choices_for_remembered(self, expert: int, experts: int, rows: int) -> IntArray:
        """Return the observers' choices for at most so many rows that an expert remembers, as if they were new."""
        owners = self._nearest(experts)
        own = np.flatnonzero(owners.y == expert)
        places = own[:: -(-len(own) // rows)]
        x = torch.from_numpy(owners.x[places]).view(-1, *self._shape).to(self.pool.device)
        return self._choices(x, experts, Learned(expert, places))

    @property
    def row_novelty(self) -> RowNovelty:
        """All remembered rows, to recognise rows that are like none of them."""
        if self._row_novelty is None:
            self._row_novelty = RowNovelty(self._memories)
        return self._row_novelty

    @property
    def rows_kept(self) -> int:
        """Number of rows that the companions remember."""
        return sum(len(own.nearest) for own in self.companions.values())

    def merged(self, expert: int, into: int) -> None:
        """Forget an expert in whose place there is another, which was trained on its replay."""
        self.companions.pop(expert, None)
        self.belief.merged(expert, into)
        self._forget_comparisons()

    def choices(self, x: Tensor, experts: int) -> IntArray:
        """Return [observers, rows]: the experts that the observers choose, newcomers included.

        Inputs that were the same in all of an expert's rows, such as the number of a site, speak against it in a row
        where they differ. The third observer chooses the nearest of the experts against which they speak least.
        """
        if experts == 1:
            return np.zeros((OBSERVERS, len(x)), np.int64)
        if len(x) > ROWS_KEPT:
            return self._choices(x, experts)
        key = experts, self.pool.space.fixed, x.dtype, flat(x).tobytes()
        if self._chosen is None or self._chosen[0] != key:
            self._chosen = key, self._choices(x, experts)
        return self._chosen[1]

    def _choices(self, x: Tensor, experts: int, learned: Learned | None = None) -> IntArray:
        """Return the same; `learned`: whose rows they are, if an expert has learned them."""
        rows, contradictions = flat(x), np.zeros((experts, len(x)))
        shares = self._nearest(experts).probabilities(rows, experts, None if learned is None else learned.places)
        scores = self.pool.scores(range(experts), x)
        if learned is not None:
            scores[learned.by] += self.pool.optimism(learned.by)
        for expert, own in self.companions.items():
            contradictions[expert] = own.nearest.contradictions(rows)
        silent = self.belief.merged_experts
        shares[:, silent], scores[silent], contradictions[silent] = -1.0, np.inf, np.inf
        least = np.where(contradictions == contradictions.min(axis=0), shares.T, -1.0)
        return np.stack([scores.argmin(axis=0), shares.argmax(axis=1), least.argmax(axis=0)])

    def _nearest(self, experts: int) -> LabelledRows:
        """Return some rows of each expert, with the experts as their labels."""
        if self._owners is None:
            each = max(1, min(OWNED, ALL_OWNED // experts))
            memories = self._memories
            some = {expert: memory.x[:: -(-len(memory) // each)] for expert, memory in memories.items()}
            owners = np.repeat(list(some), [len(rows) for rows in some.values()])
            self._owners = LabelledRows(np.concatenate([*some.values()]), owners, common_scale([*memories.values()]))
        return self._owners

    def probabilities(self, expert: int, x: Tensor, outputs: int) -> FloatArray:
        """Return [rows, outputs]: an expert's class probabilities, its companion's opinion included."""
        network = class_probabilities(self.pool, expert, x, outputs)
        own = self.companions.get(expert)
        return network if own is None else own.probabilities(flat(x), network)

    def mixture(
        self, x: Tensor, posterior: FloatArray, outputs: int, rows_aside: Callable[[], NearestRows]
    ) -> FloatArray:
        """Return [rows, outputs]: the probabilities of the experts and of the rows set aside, by the belief in each."""

        def ask(hypothesis: int, x: Tensor) -> FloatArray:
            aside = hypothesis == len(posterior) - 1
            return rows_aside().probabilities(flat(x), outputs) if aside else self.probabilities(hypothesis, x, outputs)

        weight = np.where(posterior < NEGLIGIBLE, 0.0, posterior)
        believed = np.flatnonzero(weight.any(axis=1)).tolist()
        if len(believed) == 1:
            return ask(believed[0], x)
        result = np.zeros((len(x), outputs))
        for hypothesis in believed:
            rows = np.flatnonzero(weight[hypothesis])
            asked = x if len(rows) == len(x) else x[torch.from_numpy(rows)]
            result[rows] += weight[hypothesis, rows, None] * ask(hypothesis, asked)
        mixed: FloatArray = result / result.sum(axis=1, keepdims=True)
        return mixed

    def rows_aside(self, recent: RecentBuffer[Batch], last_used: Expert) -> NearestRows:
        """Return the rows that no expert has accepted so far, for prediction.

        If most of their labels are known to the expert in use, and others are new, they add to what it knows: its rows
        are among them. If all labels are known, the loss was too high, and they contradict it.
        """
        key = (last_used.id, last_used.batches_trained, *(entry.step for entry in recent if entry.high_loss))
        if self._aside is None or self._aside[0] != key:
            self._aside = key, self._made_of_rows_aside(recent, last_used)
        return self._aside[1]

    def unlike_learned(self, x: Tensor, recent: RecentBuffer[Batch]) -> FloatArray:
        """Return [rows]: log-ratio by which a row's novelty makes it more probable that it is like the rows set aside.

        These may be noise, or rows of a new task, and rows that are not novel are unlike them. Or they are known rows
        with other labels, and novelty says nothing.
        """
        batches = [entry for entry in recent if entry.high_loss]
        steps = tuple(entry.step for entry in batches)
        if self._aside_novelty is None or self._aside_novelty.steps != steps:
            memories = self._memories
            novelty_of = RowNovelty(memories, most=min(ALL_OWNED, OWNED * len(memories)))
            usual = novelty_of.usual if len(novelty_of.usual) else np.zeros(1)
            threshold = float(np.quantile(usual, 1 - UNUSUAL))
            aside = novelty_of(np.concatenate([flat(entry.batch.x) for entry in batches])) > threshold
            share = float((aside.sum() + 0.5) / (len(aside) + 1))
            self._aside_novelty = AsideNovelty(steps, novelty_of, threshold, share)
        _, novelty_of, threshold, share = self._aside_novelty
        if not len(novelty_of.usual):
            return np.zeros(len(x))
        novel = novelty_of(flat(x)) > threshold
        evidence: FloatArray = np.where(novel, log(share / UNUSUAL), log((1 - share) / (1 - UNUSUAL)))
        return evidence

    def _made_of_rows_aside(self, recent: RecentBuffer[Batch], last_used: Expert) -> NearestRows:
        batches, aside = [entry.batch for entry in recent if entry.high_loss], NearestRows(2 * self.rows)
        new = [label not in last_used.labels for batch in batches for label in batch.y.tolist()]
        if last_used.id in self.companions and 0 < sum(new) < len(new) / 2:
            known = self.companions[last_used.id].nearest
            aside.add(known.x, known.y)
        for batch in batches:
            aside.add(flat(batch.x), batch.y.cpu().numpy())
        return aside

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return the state to save: JSON values, and tensors."""
        tensors: dict[str, Tensor] = {}
        for expert, own in self.companions.items():
            tensors |= named(str(expert), own.state())
        return {"belief": self.belief.state(), "classes": self.classes, "limited": self.rows_limited}, tensors

    def load_state(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.belief.load_state(facts["belief"])
        self.classes, self.rows_limited = facts["classes"], facts["limited"]
        for expert in sorted({int(name.partition(".")[0]) for name in tensors}):
            own = part(str(expert), tensors)
            self.companions[expert] = Companion(len(own["linear.mean"]), self.rows)
            self.companions[expert].load_state(own)


def _steps_until(batches: int) -> int:
    """Return the number of rehearsal steps of an expert that was trained on this many batches.

    >>> [_steps_until(n) for n in (0, 1, 40, 120, 1000)]
    [0, 4, 160, 336, 675]
    """
    return round(STEPS * (min(batches, YOUNG) + YOUNG * log(max(batches, YOUNG) / YOUNG)))
