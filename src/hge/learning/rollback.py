"""The last good weights: an expert whose loss is no longer a number is taken back to them, and the learner goes on.

A step is refused where its loss or gradient is not a number (`pool.py`), but weights can leave the range of numbers by
a step that looked harmless, and sums by many. So the state of the expert in training is copied now and then, each time
at a moment when its loss is a number. There is one copy: an expert is looked at once more before another is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from hge.core.events import Emit, ExpertRolledBack
from hge.core.types import Batch
from hge.experts.optim import check_state
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert
from hge.gating.switch_detection import LossStats

KEEP_EVERY = 1_000
"""An expert is copied when it has been trained on twice as many batches as at the last copy, or on so many more."""


@dataclass
class Kept:
    """An expert when it was good."""

    tensors: dict[str, Tensor]
    losses: LossStats
    trained: int
    """Batches on which it had been trained."""


class Guard:
    """Watches over the expert in training."""

    def __init__(self, pool: ExpertPool, emit: Emit) -> None:
        self.pool = pool
        self.emit = emit
        self.expert: Expert | None = None
        """The one that was trained last."""
        self.kept = Kept({}, LossStats(), 0)

    def loss(self, expert: Expert, batch: Batch, step: int, now: int) -> float:
        """Return the expert's loss on a batch; if that is not a number and the expert is to blame, after a rollback."""
        loss = self.pool.loss(expert.id, batch, step)
        if not isfinite(loss):
            changed = self.mend(expert, now)
        elif self.quiet(expert) == 0:
            changed = not self._keep(expert, now)
        else:
            return loss
        return self.pool.loss(expert.id, batch, step) if changed else loss

    def take(self, expert: Expert, now: int) -> None:
        """Take an expert in hand that is trained next; the one before it must be good when it is left."""
        if expert is self.expert:
            return
        if self.expert is not None and not _finite(self.pool.state(self.expert.id, on_host=False)):
            self._roll_back(self.expert, now)
        elif self.expert is not None:
            self.mend(self.expert, now)
        self.expert = expert
        self._copy(expert, self.pool.state(expert.id, on_host=False))

    def mend(self, expert: Expert, now: int) -> bool:
        """Roll the expert back if its loss is no number even on a batch that it remembers; return whether it was."""
        remembered = expert.replay.kept[:1]
        if expert is not self.expert or not remembered:
            return False
        if isfinite(self.pool.loss(expert.id, remembered[0].batch, remembered[0].step)):
            return False  # then it is the batch that is odd
        self._roll_back(expert, now)
        return True

    def quiet(self, expert: Expert) -> int:
        """Return on how many batches the expert may be trained before a copy is due."""
        if expert is not self.expert:
            return KEEP_EVERY
        due = self.kept.trained + min(max(self.kept.trained, 1), KEEP_EVERY)
        return max(0, due - expert.batches_trained)

    def state(self) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
        """Return what must be kept: facts as JSON values, and tensors."""
        if self.expert is None:
            return None, {}
        facts = {"expert": self.expert.id, "losses": asdict(self.kept.losses), "trained": self.kept.trained}
        return facts, {name: tensor.cpu().contiguous() for name, tensor in self.kept.tensors.items()}

    def load_state(self, expert: Expert, facts: Mapping[str, Any], tensors: dict[str, Tensor]) -> None:
        """Guard an expert as `state` said; raise a ValueError if the tensors are not such an expert's."""
        check_state(tensors, self.pool.state(expert.id))
        self.expert = expert
        self.kept = Kept(tensors, LossStats(**facts["losses"]), facts["trained"])

    def _keep(self, expert: Expert, now: int) -> bool:
        """Copy the expert; or roll it back, where its loss does not show that sums or statistics are no numbers."""
        state = self.pool.state(expert.id, on_host=False)
        if not _finite(state):
            self._roll_back(expert, now)
            return False
        self._copy(expert, state)
        return True

    def _copy(self, expert: Expert, state: dict[str, Tensor]) -> None:
        self.kept = Kept(state, replace(expert.losses), expert.batches_trained)

    def _roll_back(self, expert: Expert, now: int) -> None:
        kept, undone = self.kept, expert.losses.count - self.kept.losses.count
        self.emit(ExpertRolledBack(now, expert.id, undone))
        self.pool.load_state(expert.id, kept.tensors)
        expert.losses = replace(kept.losses)
        # One more than was undone: it is another expert than a moment ago.
        expert.undone += undone + 1
        kept.trained = expert.batches_trained


def _finite(tensors: dict[str, Tensor]) -> bool:
    """Say whether there is nothing but numbers; each device is asked once."""
    found = defaultdict(list)
    for tensor in tensors.values():
        if tensor.is_floating_point():
            found[tensor.device].append(tensor.isfinite().all())
    return all(bool(torch.stack(flags).all()) for flags in found.values())
