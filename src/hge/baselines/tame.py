"""TAME (Zhu et al. 2022), the baseline of Sections 3 and 5.1: one active expert, a bound on its smoothed loss.

Followed, from the paper's description and TAME's public code: the loss of the active expert is smoothed (EWMA, weight
0.2 for the newest) and compared with mean + 3 standard deviations (floored at 0.005) of the losses in a moving window.
Above it, every expert is evaluated; one whose own smoothed loss is within its own bound becomes active, else a new one
is created. Samples of the experts' training data (5 000 in all) train a selector network after the stream.

Chosen where the sources differ: a window of 100, as in TAME's paper and for all but one data set of its code (35 for
Split MNIST: `--set tame.window=35`). A weight of 0.2 everywhere, where the code has 0.1 for CIFAR-10
(`tame.smoothing`). 200 epochs for the selector, as in the code for CIFAR.

Not followed: experts and selector are not pruned; the selector is not pretrained, but a network like the experts',
trained by their optimiser; of several experts that fit, the one with the lowest loss is taken, not the first. Losses
are those of training mode. A bound needs two of them (docs/paper.md, reading 15); TAME's code starts an expert's window
with ln(classes per task), so that there is a bound at once. An expert's smoothed loss here covers the batches it was
trained on; in TAME's code also those it was evaluated on while another one was active. The experts have equal shares of
the samples (TAME's code: the classes); until the selector is trained, a share is rounded up to whole batches. Batch
testing is ours.

Accuracy here is over all classes of the scenario. TAME's code numbers the labels within each task, so a sample routed
to the wrong expert may still be counted as correct: its published figures are not directly comparable.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil, inf, isfinite

import numpy as np
import torch
from torch import Tensor

from hge.core.config import TameConfig
from hge.core.events import Emit, ExpertChanged, ExpertCreated, UpdateSkipped
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.pool import Costs, ExpertPool, count_parameters
from hge.experts.replay import Replay, ReplayBatch
from hge.gating.tree import FloatArray, Routes, Tree
from hge.learning.online import Answers, Routing, Setting, Step
from hge.learning.routing import ROWS_AT_ONCE, ask
from hge.learning.state import Snapshot, get_batch, named, part, put_batch, restore_shared, shared_tensors


def build(setting: Setting) -> Tame:
    """Return an untrained learner."""
    return Tame(setting.config.tame, setting.pool(), setting.build_pool, setting.keys, setting.emit)


@dataclass
class LossWindow:
    """The losses of the last batches that an expert was trained on; they define the bound on its smoothed loss.

    >>> losses = LossWindow(TameConfig(warmup=2, smoothing=0.5))
    >>> losses.bound
    inf
    >>> for loss in (1.0, 3.0):
    ...     losses.add(loss)
    >>> losses.bound, losses.smoothed, losses.smoothed_with(9.0)  # 2 + 3·1, halfway to 3, halfway to 9: too high
    (5.0, 2.0, 5.5)
    """

    config: TameConfig
    recent: deque[float] = field(init=False)
    smoothed: float | None = None

    def __post_init__(self) -> None:
        self.recent = deque(maxlen=self.config.window)

    def add(self, loss: float) -> None:
        """Add the loss of a batch that the expert was trained on."""
        self.smoothed = self.smoothed_with(loss)
        self.recent.append(loss)

    def smoothed_with(self, loss: float) -> float:
        """Return the smoothed loss after adding this loss."""
        weight = self.config.smoothing
        return loss if self.smoothed is None else (1 - weight) * self.smoothed + weight * loss

    @property
    def bound(self) -> float:
        """Mean + 3σ; infinite before `warmup` losses."""
        if len(self.recent) < self.config.warmup:
            return inf
        return float(np.mean(self.recent) + self.config.deviations * max(float(np.std(self.recent)), 0.005))


@dataclass(frozen=True)
class TameExpert:
    """TAME's state of an expert; its network is in the pool under the same id."""

    id: int
    losses: LossWindow
    buffer: Replay


class Tame:
    """Learns a stream of batches with one active expert at a time. Tasks are not given."""

    def __init__(
        self,
        config: TameConfig,
        pool: ExpertPool,
        build_selector: Callable[[int], ExpertPool],
        keys: Keys,
        emit: Emit,
    ) -> None:
        self.config = config
        self.pool = pool
        self.build_selector = build_selector
        """Number of experts -> a pool whose single network has that many outputs."""
        self.keys = keys
        self.emit = emit
        self.experts: list[TameExpert] = []
        self.newcomers: list[int] = []
        """Always empty: there is no probation."""
        self.tree = Tree()
        self.steps = 0
        self.batch_rows = 1
        """Number of rows of the largest batch so far."""
        self.evaluations = Counter[str]()
        self.selector: ExpertPool | None = None
        self.selector_experts = 0
        """Number of experts among which the selector chooses; 0 before it is trained."""
        self.active = self._new_expert()

    @property
    def rows_kept(self) -> int:
        """Number of rows in the buffers, as far as the selector is trained on them."""
        return sum(min(expert.buffer.rows, self._share) for expert in self.experts)

    @property
    def parameters(self) -> int:
        """Number of weights and statistics of all experts and the selector; the scores are not used."""
        experts = count_parameters(self.pool, len(self.experts), scores=False)
        return experts + (count_parameters(self.selector, 1, scores=False) if self.selector else 0)

    def learn(self, batch: Batch) -> Step:
        """Learn one batch of the stream and return the outcome."""
        batch = batch.to(self.pool.device)
        loss, bound, queried = self._loss(self.active, batch), self.active.losses.bound, 1
        if self.active.losses.smoothed_with(loss) > bound:
            queried = len(self.experts)
            loss = self._switch(batch, loss)
            bound = self.active.losses.bound
        trained = self._train(self.active, batch)
        self.steps += 1
        return Step(self.steps - 1, self.active.id, loss, bound, False, queried, trained)

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order."""
        for batch in batches:
            yield self.learn(batch)

    def end_stream(self) -> None:
        """Train the selector to predict which expert's buffer holds a sample."""
        device, rows = self.pool.device, self.config.selector_batch
        kept = [(e.id, self._samples(e)) for e in self.experts if e.buffer.kept]
        if not kept:
            return
        x = torch.cat([samples for _, samples in kept])
        expert = torch.cat([torch.full((len(samples),), e, device=device) for e, samples in kept])
        self.selector_experts = len(self.experts)
        self.selector = self._new_selector(self.selector_experts)
        step = 0
        for epoch in range(self.config.selector_epochs if len(self.experts) > 1 else 0):
            order = torch.from_numpy(self.keys.rng("shuffle", self.steps, epoch).permutation(len(x))).to(device)
            for places in torch.split(order, rows):
                self.selector.train(0, Batch(x[places], expert[places]), step)
                step += 1

    def _new_selector(self, experts: int) -> ExpertPool:
        selector = self.build_selector(experts)
        selector.create(0)
        return selector

    def costs(self) -> Costs:
        """Count multiply-adds."""
        return self.pool.costs()

    def answers(self) -> Answers:
        """Return an object that predicts test rows."""
        return TameAnswers(self)

    def _switch(self, batch: Batch, loss: float) -> float:
        """Activate an expert whose smoothed loss is within its bound, or a new one; return its loss."""
        losses = {e.id: loss if e is self.active else self._loss(e, batch) for e in self.experts}
        within_bound = [e for e in self.experts if e.losses.smoothed_with(losses[e.id]) <= e.losses.bound]
        previous = self.active
        if within_bound:
            self.active = min(within_bound, key=lambda e: losses[e.id])
        else:
            self.active = self._new_expert()
            losses[self.active.id] = self._loss(self.active, batch)
            self.emit(ExpertCreated(self.steps, self.active.id, batches=0))
        self.emit(ExpertChanged(self.steps, previous.id, self.active.id))
        return losses[self.active.id]

    def _loss(self, expert: TameExpert, batch: Batch) -> float:
        loss = self.pool.loss(expert.id, batch, self.steps)
        return loss if isfinite(loss) else inf  # above every bound

    def _train(self, expert: TameExpert, batch: Batch) -> tuple[tuple[int, int], ...]:
        loss = self.pool.train(expert.id, batch, self.steps)
        if not isfinite(loss):
            self.emit(UpdateSkipped(self.steps, expert.id, self.steps))
            return ()
        expert.losses.add(loss)
        if len(batch) > self.batch_rows:
            self.batch_rows = len(batch)
            self._share_buffer()
        expert.buffer.add(ReplayBatch(self.steps, batch), self.keys.integer("replay", self.steps, expert.id))
        return ((self.steps, expert.id),)

    def _new_expert(self) -> TameExpert:
        expert = TameExpert(len(self.experts), LossWindow(self.config), Replay(capacity=1))
        self.pool.create(expert.id)
        self.experts.append(expert)
        self.tree.add(expert.id)
        self._share_buffer()
        return expert

    @property
    def _share(self) -> int:
        """Number of samples kept per expert."""
        return max(1, self.config.buffer // len(self.experts))

    def _samples(self, expert: TameExpert) -> Tensor:
        """Return an expert's samples, truncated to its share."""
        return torch.cat([kept.batch.x for kept in expert.buffer.kept])[: self._share]

    def _share_buffer(self) -> None:
        """Limit every expert's buffer to its share, in batches; drop surplus batches at random."""
        batches = ceil(self._share / self.batch_rows)
        for expert in self.experts:
            self.keys.rng("replay", self.steps, expert.id).shuffle(expert.buffer.kept)
            del expert.buffer.kept[batches:]
            expert.buffer.capacity = batches

    def snapshot(self) -> Snapshot:
        """Copy the state, with the selector, if the stream has ended."""
        experts = [self.pool.state(e.id) for e in self.experts]
        for expert, own in zip(self.experts, experts, strict=True):
            for place, kept in enumerate(expert.buffer.kept):
                put_batch(own, f"buffer.{place}", kept.batch)
        facts = {
            "steps": self.steps,
            "active": self.active.id,
            "batch_rows": self.batch_rows,
            "experts": [
                {
                    "batches": [e.buffer.seen, len(self.experts), self.batch_rows],  # its buffer depends on all three
                    "seen": e.buffer.seen,
                    "recent": list(e.losses.recent),
                    "smoothed": e.losses.smoothed,
                    "remembered": [kept.step for kept in e.buffer.kept],
                }
                for e in self.experts
            ],
        }
        chosen_by = {} if self.selector is None else named("selector", self.selector.state(0))
        facts["selector"] = self.selector_experts
        return Snapshot(facts, shared_tensors(self.pool) | chosen_by, experts)

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        facts, device = snapshot.facts, self.pool.device
        while len(self.experts) < len(facts["experts"]):
            self._new_expert()
        self.steps, self.active = facts["steps"], self.experts[facts["active"]]
        self.batch_rows = facts["batch_rows"]
        self._share_buffer()
        restore_shared(self.pool, snapshot)
        for expert, own, fact in zip(self.experts, snapshot.experts, facts["experts"], strict=True):
            self.pool.load_state(expert.id, {n: t for n, t in own.items() if not n.startswith("buffer.")})
            expert.losses.recent.extend(fact["recent"])
            expert.losses.smoothed, expert.buffer.seen = fact["smoothed"], fact["seen"]
            batches = [get_batch(own, f"buffer.{place}", device) for place in range(len(fact["remembered"]))]
            expert.buffer.kept = [ReplayBatch(s, b) for s, b in zip(fact["remembered"], batches, strict=True)]
        if facts["selector"]:
            self.selector_experts = facts["selector"]
            self.selector = self._new_selector(self.selector_experts)
            self.selector.load_state(0, part("selector", snapshot.tensors))


@dataclass(frozen=True)
class TameAnswers:
    """Routes each sample, or a batch by its mean log-probabilities, to one expert by the selector network.

    Only that expert is queried: the selector is a separate network.
    """

    learner: Tame

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Choose an expert per row, independently of the other rows, or one for all rows."""
        log_p = self._log_probabilities(x)
        if routing == "batch":
            log_p = log_p.mean(axis=1, keepdims=True)
        expert = log_p.argmax(axis=0)
        scores = np.full(log_p.shape, inf)
        scores[expert, np.arange(len(expert))] = -log_p.max(axis=0)
        return Routes.flat(expert, scores)

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the chosen expert's softmax."""
        return ask(self.learner.pool, x, routes, outputs)

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return the cost of one pass of the selector."""
        assert self.learner.selector is not None
        return self.learner.selector.costs().network

    def _log_probabilities(self, x: Tensor) -> FloatArray:
        """Return [experts, rows]."""
        selector = self.learner.selector
        if selector is None:
            raise ValueError("route: got a learner without a selector, expected one whose stream has ended")
        parts = [selector.logits(0, part.to(selector.device)) for part in torch.split(x, ROWS_AT_ONCE)]
        return np.asarray(torch.cat(parts).double().log_softmax(dim=1).T.cpu())
