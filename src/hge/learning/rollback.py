"""Rollback: an expert that is no longer finite, or has collapsed, is restored to its last good state.

A step whose loss or gradient is not finite is rejected (`pool.py`), but weights can overflow in a step with a finite
loss, and accumulated sums over many steps. So the state of the expert in training is copied periodically, whenever its
loss is finite at that time. There is only one copy: an expert is checked again before another one is trained.

An expert has collapsed if it has lost what it remembers: its loss on its replay is no better than chance, and far above
what it was at the time of the copy. That is tested after every batch that the expert refused but was trained on, and
whenever a copy is due; then its loss on the stream must be no better than chance either, since an expert that follows a
drift may forget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite, isnan, nan
from statistics import median
from typing import Any

import torch
from torch import Tensor

from hge.core.events import Emit, ExpertRolledBack
from hge.core.types import Batch
from hge.experts.optim import check_state
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.switch_detection import LossStats

FAR_ABOVE = 2.0
"""Factor by which the loss on the replay must have grown for a collapse."""
ASKED = 4
"""Batches of the replay on which the loss is computed."""
OVERFLOWING = 1e12
"""A loss on the replay from which on the weights are about to overflow: their gradient has no finite norm."""
KEEP_EVERY = 1_000
"""An expert is copied when its batch count has doubled, or grown by this many, since the last copy."""


@dataclass
class Kept:
    """A copy of an expert's finite state."""

    tensors: dict[str, Tensor]
    losses: LossStats
    trained: int
    """Number of batches it had been trained on."""
    replay_loss: float = nan
    """Its loss on its replay; NaN if unknown."""


class Guard:
    """Keeps a copy of the expert in training, and rolls the expert back when its state is no longer finite."""

    def __init__(self, pool: ExpertPool, emit: Emit) -> None:
        self.pool = pool
        self.emit = emit
        self.expert: Expert | None = None
        """The expert trained last."""
        self.kept = Kept({}, LossStats(), 0)

    def loss(self, expert: Expert, batch: Batch, step: int, now: int) -> float:
        """Return the expert's loss on a batch, after a rollback if the expert's state causes a non-finite loss."""
        loss = self.pool.loss(expert.id, batch, step)
        if not isfinite(loss):
            changed = self.roll_back_if_broken(expert, now)
        elif self.batches_until_due(expert) == 0:
            changed = not self.keep(expert, now)
        else:
            return loss
        return self.pool.loss(expert.id, batch, step) if changed else loss

    def watch(self, expert: Expert, now: int) -> None:
        """Guard the expert to be trained next; check the previous one first, and roll it back if needed."""
        if expert is self.expert:
            return
        if self.expert is not None and not _finite(self.pool.state(self.expert.id, on_host=False)):
            self._roll_back(self.expert, now)
        elif self.expert is not None:
            self.roll_back_if_broken(self.expert, now)
        self.expert = expert
        self._copy(expert, self.pool.state(expert.id, on_host=False))

    def roll_back_if_broken(self, expert: Expert, now: int) -> bool:
        """Roll the expert back if its loss is overflowing on a batch of its replay, too; return whether it was."""
        remembered = expert.replay.kept[:1]
        if expert is not self.expert or not remembered:
            return False
        if self.pool.loss(expert.id, remembered[0].batch, remembered[0].step) < OVERFLOWING:
            return False  # the batch is at fault, not the expert
        self._roll_back(expert, now)
        return True

    def batches_until_due(self, expert: Expert) -> int:
        """Return how many batches the expert may be trained on before a copy is due."""
        if expert is not self.expert:
            return KEEP_EVERY
        due = self.kept.trained + min(max(self.kept.trained, 1), KEEP_EVERY)
        return max(0, due - expert.batches_trained)

    def state(self) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
        """Return the state to save: facts as JSON values, and tensors."""
        if self.expert is None:
            return None, {}
        kept = self.kept
        facts = {
            "expert": self.expert.id,
            "losses": asdict(kept.losses),
            "trained": kept.trained,
            "replay_loss": None if isnan(kept.replay_loss) else kept.replay_loss,
        }
        return facts, {name: tensor.cpu().contiguous() for name, tensor in self.kept.tensors.items()}

    def load_state(self, expert: Expert, facts: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned; raise a ValueError if the tensors do not fit the expert."""
        check_state(tensors, self.pool.state(expert.id))
        self.expert = expert
        loss = nan if facts["replay_loss"] is None else facts["replay_loss"]
        self.kept = Kept(tensors, LossStats(**facts["losses"]), facts["trained"], loss)

    def keep(self, expert: Expert, now: int) -> bool:
        """Copy the expert, or roll it back if it has collapsed or is not finite, although its loss is."""
        state = self.pool.state(expert.id, on_host=False)
        if not _finite(state) or (expert.is_at_chance and self._has_collapsed(expert)):
            self._roll_back(expert, now)
            return False
        self._copy(expert, state)
        self.kept.replay_loss = self._replay_loss(expert)
        return True

    def roll_back_if_collapsed(self, expert: Expert, now: int) -> bool:
        """Roll the expert back if it has lost what it knew when it was copied; return whether it was."""
        collapsed = self._has_collapsed(expert)
        if collapsed:
            self._roll_back(expert, now)
        return collapsed

    def _has_collapsed(self, expert: Expert) -> bool:
        usual = self.kept.replay_loss
        return not isnan(usual) and self._replay_loss(expert) > max(expert.replay.chance, FAR_ABOVE * usual)

    def _replay_loss(self, expert: Expert) -> float:
        """Return the median loss on some batches of the replay; NaN, which is above nothing, if there are too few."""
        losses = [self.pool.loss(expert.id, old.batch, old.step) for old in expert.replay.kept[:ASKED]]
        return median(losses) if len(losses) == ASKED else nan

    def _copy(self, expert: Expert, state: dict[str, Tensor]) -> None:
        self.kept = Kept(state, replace(expert.losses), expert.batches_trained)
        expert.knows_nothing = expert.is_at_chance

    def _roll_back(self, expert: Expert, now: int) -> None:
        kept, undone = self.kept, expert.losses.count - self.kept.losses.count
        self.emit(ExpertRolledBack(now, expert.id, undone))
        self.pool.load_state(expert.id, kept.tensors)
        expert.losses, expert.knows_nothing = replace(kept.losses), False
        # One more than was undone, so that `batches_trained` differs from all earlier states.
        expert.undone += undone + 1
        kept.trained = expert.batches_trained


def _finite(tensors: dict[str, Tensor]) -> bool:
    """Return whether all values are finite; synchronises once per device."""
    found = defaultdict(list)
    for tensor in tensors.values():
        if tensor.is_floating_point():
            found[tensor.device].append(tensor.isfinite().all())
    return all(bool(torch.stack(flags).all()) for flags in found.values())
