"""Training steps of the fast pool that accept or refuse their batch on the device, without the host.

Forward, compare with the bound, update if accepted. Mean and deviation of the loss are kept on the device during a run.
On a GPU one or more steps form one CUDA graph, so everything they read has a fixed address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hge.experts.fast.cuda_graphs import Graphs
from hge.experts.fast.memory import ExpertStore
from hge.experts.inputs import flip_and_crop, frozen_scaling
from hge.experts.optim import clipping, gradient_norm, masked_step, network_mode
from hge.experts.side_stream import SideStream
from hge.experts.views import training_loss
from hge.gating.switch_detection import LossStats

STEPS_PER_LAUNCH = 4
"""Maximum number of steps in one launch: launching a graph of four takes hardly longer than a graph of one."""
INPUTS_PER_STEP = 4
"""Number of input tensors of a step."""


@dataclass(frozen=True)
class Rule:
    """How a batch is accepted or refused; there is one graph per rule."""

    signed: bool
    """The paper's signed deviation."""
    gates: int
    """Number of experts whose scores are compared first; 0: none (sticky)."""


class Steps:
    """Runs training steps of the expert in the slot."""

    def __init__(self, store: ExpertStore, graphs: Graphs) -> None:
        self.store = store
        self.graphs = graphs
        device = store.device
        self.numbers = torch.zeros(4, dtype=torch.float64, device=device)
        self.statistics, (self.epsilon, self.weight) = self.numbers[:2], self.numbers[2:].unbind()
        """Mean and deviation of the loss, during a run; ε; and 1 - α."""
        self.result = torch.zeros(2, device=device)
        """Result of a step for the host: the loss, and whether the run has stopped."""
        self.results = torch.zeros(STEPS_PER_LAUNCH, 2, device=device)
        self.stopped = self.result[1]
        self.one = torch.ones((), device=device)
        self.expert_index = torch.zeros(1, dtype=torch.int64, device=device)
        """The active expert's index in the stack."""
        self.pairs = torch.zeros(2, 1, dtype=torch.int64, device=device)
        """[2, pairs] Pairs of experts of which the first must have the lower score; unused pairs are ignored."""
        self.unused = torch.ones(1, dtype=torch.bool, device=device)
        self.side_stream = SideStream(device)

    def begin(self, expert: int, losses: LossStats, epsilon: float, ordered_pairs: Sequence[tuple[int, int]]) -> Rule:
        """Begin a run of the expert in the slot; the scores of each pair in `ordered_pairs` are compared, too."""
        self.expert_index.fill_(expert)
        numbers = [losses.mean, losses.deviation, epsilon, 1 - losses.alpha]
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        self.stopped.zero_()
        if ordered_pairs:
            self.store.sync_gate()
            self._set_pairs(ordered_pairs)
        return Rule(losses.signed, self.store.gates.count if ordered_pairs else 0)

    def run(self, rule: Rule, *inputs: Any) -> Tensor:
        """Run steps one after the other; return their results for the host in the first rows."""
        groups = [inputs[first : first + INPUTS_PER_STEP] for first in range(0, len(inputs), INPUTS_PER_STEP)]
        for result, own in zip(self.results, groups, strict=False):
            self._train(rule, result, *own)
        return self.results

    def _train(
        self, rule: Rule, out: Tensor, x: Tensor, y: Tensor, noise: Tensor | None, augmentation: Tensor | None
    ) -> None:
        """Forward, compare with the bound, update if accepted; write the loss, and 1 if nothing was updated, to `out`.

        `stopped` is set to 1 at the first batch that may not be trained, and stays 1 for the rest of the run.
        """
        with self.store.arithmetic():
            before = self.store.running.clone()
            with self.side_stream(), self.store.autocast():
                inputs = self.store.score.preprocess(self.store.prepare(x))
                if self.store.score.asynchronous:
                    self.store.score.compute_update(inputs, y, noise)
                if rule.gates:
                    self._compare_scores(rule.gates, inputs)
            x, limited = self.store.prepare_for_training(x)
            with self.store.autocast(), self._training_mode(len(x)):
                loss = training_loss(self.store.net, flip_and_crop(x, augmentation), y)
            with self.side_stream():
                updated = self._compare_loss(rule, loss.detach())
            self.store.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.side_stream.join()
            norm = gradient_norm([p.grad for p in self.store.weights if p.grad is not None])
            torch.where(norm.isfinite(), self.stopped, self.one, out=self.stopped)
            with self.side_stream():
                if self.store.score.asynchronous:
                    self.store.score.apply_update(self.stopped)
                torch.where(self.stopped > 0, self.statistics, updated, out=self.statistics)
                self.store.rows_limited.addcmul_(limited, 1 - self.stopped)
                out.copy_(self.result)
            masked_step(self.store.optimiser, self.stopped, clipping(norm))
            if len(self.store.running):
                self.store.running.copy_(torch.where(self.stopped > 0, before, self.store.running))
            if self.store.average is not None:
                self.store.average.update(self.stopped)
            self.side_stream.join()
            if rule.gates and self.store.score.network is not None:
                for name, own in self.store.score.gate_tensors().items():
                    self.store.gates.tensors[name].index_copy_(0, self.expert_index, own.detach()[None])

    def rehearse(self, x: Tensor, y: Tensor, augmentation: Tensor | None) -> Tensor:
        """Update the network alone; running statistics are unchanged. Returns the loss."""
        with self.store.arithmetic():
            before = self.store.running.clone()
            with self.store.autocast(), self._training_mode(len(x)), frozen_scaling(self.store.net):
                x, _ = self.store.prepare_for_training(x)
                loss = training_loss(self.store.net, flip_and_crop(x, augmentation), y)
            self.store.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = gradient_norm([p.grad for p in self.store.weights if p.grad is not None])
            skip = torch.where(norm.isfinite(), 0.0, self.one)
            masked_step(self.store.optimiser, skip, clipping(norm))
            self.store.running.copy_(before)
            if self.store.average is not None:
                self.store.average.update(skip)
        return loss.detach()

    @contextmanager
    def _training_mode(self, rows: int) -> Iterator[None]:
        """Switch BatchNorm to running statistics for a single row; otherwise the network stays in training mode."""
        if rows > 1:
            yield
            return
        with network_mode(self.store.net, training=True, rows=rows):
            yield
        self.store.net.train()

    def _compare_loss(self, rule: Rule, loss: Tensor) -> Tensor:
        """Stop if the loss is above the bound; return the mean and deviation that `LossStats.update` would compute."""
        self.result[0].copy_(loss)
        mean, deviation = self.statistics.unbind()
        updated = torch.empty_like(self.statistics)
        step = loss - mean
        within = step <= self.epsilon * deviation  # False if the loss is NaN
        torch.where(within, self.stopped, self.one, out=self.stopped)
        torch.addcmul(mean, step, self.weight, out=updated[0])
        torch.lerp(deviation, step if rule.signed else step.abs(), self.weight, out=updated[1])
        return updated

    def _compare_scores(self, gates: int, inputs: Tensor) -> None:
        """Stop if the gate might choose another expert than the active one (Algorithm 1 as written)."""
        scores = self.store.batch_scores_of(range(gates), inputs)
        lower, higher = scores[self.pairs]
        chosen = ((lower < higher) | self.unused).all()
        torch.where(chosen, self.stopped, self.one, out=self.stopped)

    def _set_pairs(self, ordered_pairs: Sequence[tuple[int, int]]) -> None:
        if len(ordered_pairs) > len(self.unused):
            size, device = 2 * len(ordered_pairs), self.store.device
            self.pairs = torch.zeros(2, size, dtype=torch.int64, device=device)
            self.unused = torch.ones(size, dtype=torch.bool, device=device)
            self.graphs.clear()  # they read the old memory
        self.pairs[:, : len(ordered_pairs)] = torch.tensor(ordered_pairs, device=self.store.device).T
        self.unused.fill_(True)
        self.unused[: len(ordered_pairs)] = False
