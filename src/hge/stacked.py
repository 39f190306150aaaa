"""The fast pool: one expert at a time in a slot of fixed memory, all gates stacked, and no waiting for the host.

On a GPU a training step is one CUDA graph: forward, compare with the bound, update if accepted. Mean and deviation of
the loss live on the device for the length of a run, so that the next step can start before the host has heard of the
last one. On a CPU the same functions are called directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf, nan
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hge.augment import flip_and_crop
from hge.features import features_and_logits
from hge.gate import FloatArray
from hge.graphs import Graphs, Mailbox, Side
from hge.joint import Evidence
from hge.keys import Keys
from hge.pool import COUNTS, UNSUITABLE, PoolSpec, copied, count_tensors, evidence_of
from hge.residence import Residence
from hge.switch import LossStats
from hge.training import arithmetic, autocast, check_state, gradients, has_batch_norm, masked_step, mode_of
from hge.types import Batch, as_float

TOGETHER = 2
"""Steps that a GPU is given at once, at the most: a graph of two is started in the time of a graph of one."""
INPUTS = 4
"""Tensors that a step takes."""
LONG_WAIT = 3e-4
"""Seconds that the host waited for a step, above which the GPU is the slower of the two by far."""


class StackedPool:
    """All experts in stacked memory; the one in use in a slot that never moves."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device = torch.empty(0, device=device).device  # with its number
        self.home = Residence(spec, keys, device)
        self.rows: list[int] = []
        self.rows_at_refresh: list[int] = []
        self.refused = (-1, -1, nan)
        """Expert, step and loss of the batch that ended the last run; void once the expert is trained again."""
        self.numbers = torch.zeros(4, dtype=torch.float64, device=device)
        self.statistics, (self.epsilon, self.weight) = self.numbers[:2], self.numbers[2:].unbind()
        """Mean and deviation of the loss, during a run; ε; and 1 - α."""
        self.result = torch.zeros(2, device=device)
        """What the host hears of a step: the loss, and whether the run has stopped."""
        self.results = torch.zeros(TOGETHER, 2, device=device)
        self.stopped = self.result[1]
        self.one = torch.ones((), device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        """The active expert's place in the stack."""
        self.pairs = torch.zeros(2, 1, dtype=torch.int64, device=device)
        """[2, pairs] Experts of which the upper must have the lower score; of those that are not used, nothing."""
        self.unused = torch.ones(1, dtype=torch.bool, device=device)
        self.noise = torch.Generator(device)
        self.mailbox = Mailbox(device, places=2, results=TOGETHER, width=2)
        self.beside = Side(device)
        self.graphs = Graphs(device)
        self.draws = False
        """The networks draw random numbers, as Dropout does."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes the pool again."""
        names = ("spec", "keys", "device", "home", "rows", "rows_at_refresh", "draws")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["spec"], state["keys"], state["device"])  # type: ignore[misc]
        vars(self).update(state)
        self.place.fill_(self.home.active)

    @property
    def uses_batch_statistics(self) -> bool:
        """There is a BatchNorm in the score's network."""
        return has_batch_norm(self.home.score)

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        if self.home.add(expert):
            self.graphs.forget()
        self.rows.append(0)
        self.rows_at_refresh.append(0)
        if expert == 0:
            self.draws = self._draws_random_numbers()

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss under batch statistics; running statistics stay as they are."""
        if self.refused[:2] == (expert, step):
            return self.refused[2]  # the run that it ended has computed it
        self.home.invite(expert, to_answer=False)
        with self._seeded(expert, step):
            changes = self.spec.changes(self.keys, expert, step, len(batch), self.device)
            return float(self._run("look", self._look, batch.x, batch.y, changes))

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and let its score learn, whatever the loss."""
        return next(self.train_run(expert, [(step, batch)], LossStats(count=2, mean=inf), 0.0), nan)

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        below: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Give the device a few steps ahead; each of them finds out by itself whether it may train."""
        self.home.activate(expert)
        self.place.fill_(expert)
        numbers = [losses.mean, losses.deviation, epsilon, 1 - losses.alpha]
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        self.stopped.zero_()
        self.refused = (-1, -1, nan)
        rule = Rule(losses.signed, self._compared(below))
        under_way: deque[tuple[int, Batch]] = deque()
        source = iter(items)
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        rows = self.rows[expert]  # when all that is under way has been learned
        try:
            while True:
                group, refresh = [], False
                for item in islice(source, self._at_once(expert)):
                    group.append(item)
                    rows += len(item[1])
                    refresh = self.home.score.refresh_due(rows, self.rows_at_refresh[expert])
                    if refresh:
                        break
                if group:
                    self._launch(rule, stream, expert, group)
                    under_way.extend(group)
                # While the GPU does the newest, the host hears of those before. But a model is drawn only from what
                # has surely been learned, so all that is under way must arrive first.
                while len(under_way) > (len(group) if self.overlaps and not refresh else 0):
                    loss, skipped = self.mailbox.take()
                    step, batch = under_way.popleft()
                    if skipped:
                        self.refused = expert, step, loss
                        return
                    self.rows[expert] += len(batch)
                    self._teach_late(batch)
                    if refresh and not under_way:
                        self._refresh(expert)
                    yield loss
                if not group:
                    return
        finally:  # the caller may have left early
            for _, batch in under_way:
                _, skipped = self.mailbox.take()
                if not skipped:
                    self.rows[expert] += len(batch)
                    self._teach_late(batch)

    @torch.no_grad()
    def scores(self, experts: Sequence[int], x: Tensor, *, batch_statistics: bool) -> FloatArray:
        """Ask all of them at once."""
        self.home.show_gate()
        experts = list(experts)
        together = experts == list(range(self.home.gates.count))
        score = partial(self._score, experts, batch_statistics)
        capture = together and self.home.score.asynchronous
        scores = self.graphs(("scores", len(experts), batch_statistics), score, x) if capture else score(x)
        return np.asarray(scores.cpu()).astype(np.float64)

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the answers under running statistics."""
        self.home.invite(expert, to_answer=True)
        with self._arithmetic(), self._autocast():
            out: Tensor = self.home.visitor(self._prepare(x))
        return out.float().nan_to_num()

    @torch.no_grad()
    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Return the parts of the score, the answers and the features."""
        self.home.invite(expert, to_answer=True)
        self.home.show_gate()
        with self._arithmetic(), self._autocast():
            x = self._prepare(x)
            parts = self.home.score.parts(self.home.gate(expert), x)
            features, logits = features_and_logits(self.home.visitor, x)
        return evidence_of(parts, logits, features)

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Copy the expert's memory and its gate, by name."""
        counts = count_tensors(self.rows[expert], self.rows_at_refresh[expert])
        return copied(self.home.tensors(expert), on_host=on_host) | counts

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy everything in, wherever the expert is."""
        own = self.home.tensors(expert)
        check_state(tensors, own | count_tensors(0, 0))
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.rows[expert], self.rows_at_refresh[expert] = (int(tensors[name]) for name in COUNTS)
        self.home.changed(expert)
        self.refused = (-1, -1, nan)  # it was another expert's loss

    def memory(self) -> dict[str, int]:
        """Count the experts' memory, the slot and the visitor."""
        return self.home.memory()

    @property
    def overlaps(self) -> bool:
        """The host goes on while a step is computed."""
        return self.device.type == "cuda" and self.home.score.asynchronous

    def _at_once(self, expert: int) -> int:
        """Return how many steps to start at once: one is enough where the host has to wait for the GPU anyway."""
        if not self.overlaps or self.draws or not self.rows[expert] or self.mailbox.waited > LONG_WAIT:
            return 1
        return TOGETHER

    def _launch(
        self, rule: Rule, stream: torch.cuda.Stream | None, expert: int, group: Sequence[tuple[int, Batch]]
    ) -> None:
        """Start training steps."""
        if not self.rows[expert]:
            self.home.score.start(self._prepare(group[0][1].x))
        inputs = [tensor for step, batch in group for tensor in self._inputs(expert, step, batch)]
        with self._seeded(expert, group[0][0]):
            if rule.gates and not self.home.score.asynchronous:
                self.home.show_gate()
                results = self._train_all(rule, *inputs)
            else:
                results = self._run(rule, partial(self._train_all, rule), *inputs)
        self.mailbox.send(results, stream)
        self.home.stale = self.home.stale or self.home.score.network is not None
        self.home.versions[expert] += len(group)

    def _inputs(self, expert: int, step: int, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return what `_train` takes."""
        noise = None
        if self.home.score.network is not None:
            self.noise.manual_seed(self.keys.integer("noise", step, expert))
            noise = self.home.score.draw(len(batch), self.noise)
        return batch.x, batch.y, noise, self.spec.changes(self.keys, expert, step, len(batch), self.device)

    def _train_all(self, rule: Rule, *inputs: Any) -> Tensor:
        """Take steps one after the other; return what the host hears of them."""
        groups = [inputs[first : first + INPUTS] for first in range(0, len(inputs), INPUTS)]
        for result, own in zip(self.results, groups, strict=False):
            result.copy_(self._train(rule, *own))
        return self.results[: len(groups)]

    def _train(self, rule: Rule, x: Tensor, y: Tensor, noise: Tensor | None, changes: Tensor | None) -> Tensor:
        """Forward, compare with the bound, update if accepted; return the loss, and 1 if nothing was updated.

        `stopped` becomes 1 at the first batch that may not be trained, and stays so for the rest of the run.
        """
        with self._arithmetic():
            before = self.home.running.clone()
            x = self._prepare(x)
            with self.beside(), self._autocast():
                if self.home.score.asynchronous:
                    self.home.score.study(x, y, noise)
                if rule.gates:
                    self._compare_scores(rule.gates, x)
            with self._autocast(), self._training_mode(len(x)):
                loss = nn.functional.cross_entropy(self.home.net(flip_and_crop(x, changes)), y)
            with self.beside():
                updated = self._compare_loss(rule, loss.detach())
            self.home.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.beside.join()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients(self.home.net), self.stopped, self.one)
            with self.beside():
                if self.home.score.asynchronous:
                    self.home.score.learn(self.stopped)
            masked_step(self.home.optimiser, self.stopped)
            skipped = self.stopped > 0
            torch.where(skipped, self.statistics, updated, out=self.statistics)
            if len(self.home.running):
                self.home.running.copy_(torch.where(skipped, before, self.home.running))
            if self.home.average is not None:
                self.home.average.take_in(self.stopped)
            self.beside.join()
            if rule.gates and self.home.score.network is not None:
                for name, own in self.home.score.gate_tensors().items():
                    self.home.gates.tensors[name].index_copy_(0, self.place, own.detach()[None])
        return self.result

    @contextmanager
    def _training_mode(self, rows: int) -> Iterator[None]:
        """The slot's network is always in training mode, but a single row has no batch statistics."""
        if rows > 1:
            yield
            return
        with mode_of(self.home.net, training=True, rows=rows):
            yield
        self.home.net.train()

    def _compare_loss(self, rule: Rule, loss: Tensor) -> Tensor:
        """Stop if the loss is above the bound; return mean and deviation as `LossStats.update` would leave them."""
        self.result[0].copy_(loss)
        mean, deviation = self.statistics.unbind()
        updated = torch.empty_like(self.statistics)
        step = loss - mean
        within = step <= self.epsilon * deviation  # False if the loss is not a number
        torch.where(within, self.stopped, self.one, out=self.stopped)
        torch.addcmul(mean, step, self.weight, out=updated[0])
        torch.lerp(deviation, step if rule.signed else step.abs(), self.weight, out=updated[1])
        return updated

    def _compare_scores(self, gates: int, x: Tensor) -> None:
        """Stop if the gate might choose another expert than the active one (Algorithm 1 to the letter)."""
        scores = self._score(range(gates), True, x).double().mean(1)
        lower, higher = scores[self.pairs]
        chosen = ((lower < higher) | self.unused).all()
        torch.where(chosen, self.stopped, self.one, out=self.stopped)

    def _look(self, x: Tensor, y: Tensor, changes: Tensor | None = None) -> Tensor:
        """Return the loss of whoever visits."""
        with (
            torch.no_grad(),
            self._arithmetic(),
            self._autocast(),
            mode_of(self.home.visitor, training=False, rows=len(x), batch_statistics=True),
        ):
            return nn.functional.cross_entropy(self.home.visitor(flip_and_crop(self._prepare(x), changes)), y)

    def _score(self, experts: Sequence[int], batch_statistics: bool, x: Tensor) -> Tensor:
        """Return the scores of some experts, finite."""
        # In half precision rather than bfloat16: three bits more tell neighbours apart, and nothing is trained here.
        half = autocast(self.spec.precision, self.device, torch.float16)
        with torch.no_grad(), self._arithmetic(), half:
            scores = self.home.score.stacked(
                self.home.gates.of(experts), self._prepare(x), batch_statistics=batch_statistics
            )
        return scores.float().nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE)

    def _prepare(self, x: Tensor) -> Tensor:
        x = as_float(x)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def _teach_late(self, batch: Batch) -> None:
        """Let a score that must wait for the host learn a batch, now that the expert was trained on it."""
        if not self.home.score.asynchronous:
            self.home.score.study(self._prepare(batch.x), batch.y, None)
            self.home.score.learn(skip=torch.zeros((), device=self.device))
            self.home.stale = True

    def _compared(self, below: Sequence[tuple[int, int]]) -> int:
        """Let these pairs of experts be compared; return how many of the stack's scores are needed."""
        if not below:
            return 0
        self.home.show_gate()
        if len(below) > len(self.unused):
            size = 2 * len(below)
            self.pairs = torch.zeros(2, size, dtype=torch.int64, device=self.device)
            self.unused = torch.ones(size, dtype=torch.bool, device=self.device)
            self.graphs.forget()  # they read the memory that there was
        self.pairs[:, : len(below)] = torch.tensor(below, device=self.device).T
        self.unused.fill_(True)
        self.unused[: len(below)] = False
        return self.home.gates.count

    def _refresh(self, expert: int) -> None:
        with self._arithmetic():
            self.home.score.refresh(self.rows[expert])
        self.rows_at_refresh[expert] = self.rows[expert]
        self.home.stale = True
        self.home.show_gate()

    def _run(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Run a function of the networks: as a graph, unless they draw random numbers, which a graph would repeat."""
        return function(*inputs) if self.draws else self.graphs(key, function, *inputs)

    def _seeded(self, expert: int, step: int) -> AbstractContextManager[None]:
        return self.keys.seeded("dropout", step, expert, device=self.device) if self.draws else nullcontext()

    def _draws_random_numbers(self) -> bool:
        """Does the network draw any in training, as Dropout does?"""
        x = torch.zeros(2, *self.spec.shape, device=self.device)
        state = torch.cuda.get_rng_state if self.device.type == "cuda" else torch.get_rng_state
        with self.keys.seeded("dropout", 0, 0, device=self.device):
            before = state()
            self._look(x, torch.zeros(2, dtype=torch.int64, device=self.device))
            return not torch.equal(before, state())

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic(self.spec.precision, self.device)

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast(self.spec.precision, self.device)


@dataclass(frozen=True)
class Rule:
    """How a batch is judged; each rule is a graph of its own."""

    signed: bool
    """The paper's signed deviation."""
    gates: int
    """Experts whose scores are compared first; 0: none (sticky)."""
