"""One expert per task, trained on that task alone, for experiments that compare gates over the same experts."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from hge.core.config import LearnerConfig
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.data.scenarios import Scenario
from hge.experts.pool import ExpertPool
from hge.experts.replay import Expert, ReplayBatch
from hge.gating.tree import FloatArray


class SeparateExperts:
    """Trains the expert of each batch's task; every expert keeps a replay, as in a learner."""

    def __init__(self, config: LearnerConfig, scenario: Scenario, pool: ExpertPool, keys: Keys) -> None:
        self.scenario = scenario
        self.pool = pool
        self.keys = keys
        self.experts = [Expert.of(config, task) for task in range(len(scenario.tasks))]
        for expert in self.experts:
            pool.create(expert.id)

    def train(self, batch_size: int, epochs: int) -> Iterator[tuple[int, int, Batch]]:
        """Train on the whole stream; yield (step, task, batch) after each batch."""
        for step, (task, batch) in enumerate(self.scenario.stream(batch_size, epochs, self.keys)):
            own, expert = batch.to(self.pool.device), self.experts[task]
            expert.losses.update(self.pool.train(task, own, step))
            expert.replay.add(ReplayBatch(step, own), self.keys.integer("replay", step, task))
            yield step, task, own

    def batch_scores(self, x: Tensor) -> FloatArray:
        """Return every expert's score for a batch."""
        return self.pool.batch_scores(range(len(self.experts)), x.to(self.pool.device))
