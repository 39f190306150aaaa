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
from hge.pool import COUNTS, UNSUITABLE, PoolSpec, count_tensors, evidence_of, portable
from hge.scores import Score
from hge.slots import Layout, Stack, move_in
from hge.switch import LossStats
from hge.training import (
    arithmetic,
    autocast,
    build_optimiser,
    check_state,
    gradients,
    has_batch_norm,
    masked_step,
    mode_of,
    state_of,
)
from hge.types import Batch, as_float

AHEAD = 3
"""Steps that a GPU is given, at the most, before the host hears of the first. After a refusal it skips as many."""
LONG_WAIT = 3e-4
"""Seconds that the host waited for a step, above which the GPU is the slower of the two by far."""


class StackedPool:
    """All experts in stacked memory; the one in use in a slot that never moves."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = torch.empty(0, device=device).device  # with its number
        self.idle: list[Tensor] = []
        """Each expert's memory while another one is in the slot."""
        self.trained: list[int] = []
        """Steps that each expert was given."""
        self.rows: list[int] = []
        self.rows_at_refresh: list[int] = []
        self.active = 0
        self.visitor_holds = (-1, -1)
        """Which expert the visitor's network is, after how many steps."""
        self.refused = (-1, -1, nan)
        """Expert, step and loss of the batch that ended the last run; void once the expert is trained again."""
        self.stale = False
        """The stack does not yet have what the gate should know of the active expert."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what makes the pool again: pickle would lose that the networks share the slot's memory."""
        self._show_gate()
        self.idle[self.active].copy_(self.slot)
        gates = {name: t[: self.gates.count].clone() for name, t in self.gates.tensors.items()}
        counters = {name: getattr(self, name) for name in ("trained", "rows", "rows_at_refresh", "active")}
        return {"made_of": (self.spec, self.keys, self.device), "idle": self.idle, "gates": gates, "counters": counters}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])  # type: ignore[misc]
        self.create(0)
        self.idle = state["idle"]
        self.gates = Stack(state["gates"])
        self.handicap = torch.zeros(self.gates.capacity, dtype=torch.float64, device=self.device)
        vars(self).update(state["counters"])
        self.slot.copy_(self.idle[self.active])
        self.gates.read(self.active, self.score.gate_tensors())
        self.place.fill_(self.active)

    @property
    def uses_batch_statistics(self) -> bool:
        """There is a BatchNorm in the score's network."""
        return has_batch_norm(self.score)

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        assert expert == len(self.idle), "experts are numbered in order of creation"
        net, score = self.spec.build(self.keys, expert, self.device)
        if self.idle and net is self.net:
            raise ValueError("net: got the same module from the factory twice, expected a new one for each expert")
        if self.device.type == "cuda":
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            score.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = build_optimiser(self.spec.optimiser, net.parameters())
        tensors = list(_own_tensors(net, optimiser, score).values())
        gate = score.gate_tensors()
        if not self.idle:
            self._furnish(net, optimiser, score)
            self.gates = Stack({name: t.detach().clone()[None] for name, t in gate.items()})
            self.handicap = torch.zeros(1, dtype=torch.float64, device=self.device)
        elif self.gates.append(gate):
            self.graphs.forget()
            self.handicap = torch.zeros(self.gates.capacity, dtype=torch.float64, device=self.device)
        memory = self._allocate_idle()
        self.layout.fill(memory, tensors)
        self.idle.append(memory)
        self.trained.append(0)
        self.rows.append(0)
        self.rows_at_refresh.append(0)

    def _furnish(self, net: nn.Module, optimiser: torch.optim.Optimizer, score: Score) -> None:
        """Make the slot and the visitor out of the first expert's networks."""
        device = self.device
        self.net, self.optimiser, self.score = net.train(), optimiser, score
        named = _own_tensors(net, optimiser, score)
        self.names, tensors = list(named), list(named.values())
        self.layout = Layout(tensors)
        self.slot = self.layout.allocate(device)
        move_in(self.layout.views(self.slot), tensors)
        running = len(_running(net, score))
        # The layout begins with what a refused forward pass must not change, and goes on with the network's weights.
        self.running = self.slot[: self.layout.ends[running - 1] if running else 0]
        weights = self.layout.ends[running + len(list(net.parameters())) - 1]
        self.visitor, _ = self.spec.build(self.keys, 0, device)
        if device.type == "cuda":
            self.visitor.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.visitor_memory = self.slot[:weights].clone()
        homes, own = self.layout.views(self.visitor_memory), len(list(net.buffers()))
        move_in([*homes[:own], *homes[running:]], [*self.visitor.buffers(), *self.visitor.parameters()])
        self.numbers = torch.zeros(4, dtype=torch.float64, device=device)
        self.statistics, (self.epsilon, self.weight) = self.numbers[:2], self.numbers[2:].unbind()
        """Mean and deviation of the loss, during a run; ε; and 1 - α."""
        self.result = torch.zeros(2, device=device)
        """What the host hears of a step: the loss, and whether the run has stopped."""
        self.stopped = self.result[1]
        self.one = torch.ones((), device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        """The active expert's place in the stack."""
        self.noise = torch.Generator(device)
        self.mailbox = Mailbox(device, AHEAD + 1, width=2)
        self.beside = Side(device)
        self.graphs = Graphs(device)
        self.draws = self._draws_random_numbers()

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss under batch statistics; running statistics stay as they are."""
        if self.refused[:2] == (expert, step):
            return self.refused[2]  # the run that it ended has computed it
        self._invite(expert)
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
        rivals: Sequence[int] = (),
    ) -> Iterator[float]:
        """Give the device a few steps ahead; each of them finds out by itself whether it may train."""
        self._activate(expert)
        numbers = [losses.mean, losses.deviation, epsilon, 1 - losses.alpha]
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))
        self.stopped.zero_()
        self.refused = (-1, -1, nan)
        rule = Rule(losses.signed, self._admit(rivals))
        under_way: deque[tuple[int, Batch]] = deque()
        source = iter(items)
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        try:
            while True:
                item = next(source, None)
                if item is not None:
                    self._launch(rule, stream, expert, *item)
                    under_way.append(item)
                rows = self.rows[expert] + sum(len(batch) for _, batch in under_way)
                refresh = self.score.refresh_due(rows, self.rows_at_refresh[expert])
                # A model is drawn only from what has surely been learned, so all that is under way must arrive first.
                while len(under_way) > (0 if refresh or item is None else self._ahead()):
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
                if item is None:
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
        self._show_gate()
        experts = list(experts)
        together = experts == list(range(self.gates.count))
        score = partial(self._score, experts, batch_statistics)
        capture = together and self.score.asynchronous
        scores = self.graphs(("scores", len(experts), batch_statistics), score, x) if capture else score(x)
        return np.asarray(scores.cpu()).astype(np.float64)

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the answers under running statistics."""
        self._invite(expert)
        with self._arithmetic(), self._autocast():
            out: Tensor = self.visitor(self._prepare(x))
        return out.float().nan_to_num()

    @torch.no_grad()
    def evidence(self, expert: int, x: Tensor) -> Evidence:
        """Return the parts of the score, the answers and the features."""
        self._invite(expert)
        self._show_gate()
        gate = {name: t[expert] for name, t in self.gates.tensors.items()}
        with self._arithmetic(), self._autocast():
            x = self._prepare(x)
            parts = self.score.parts(gate, x)
            features, logits = features_and_logits(self.visitor, x)
        return evidence_of(parts, logits, features)

    def state(self, expert: int) -> dict[str, Tensor]:
        """Copy the expert's memory and its gate, by name."""
        counts = count_tensors(self.rows[expert], self.rows_at_refresh[expert])
        return {name: portable(tensor) for name, tensor in self._tensors(expert).items()} | counts

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy everything in, wherever the expert is."""
        own = self._tensors(expert)
        check_state(tensors, own | count_tensors(0, 0))
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.rows[expert], self.rows_at_refresh[expert] = (int(tensors[name]) for name in COUNTS)
        self.trained[expert] += 1  # whoever holds a copy holds an old one
        if expert == self.active:
            self.gates.read(expert, self.score.gate_tensors())

    def _tensors(self, expert: int) -> dict[str, Tensor]:
        """Return an expert's tensors, where they are; the gate's in the stack."""
        self._show_gate()
        memory = self.slot if expert == self.active else self.idle[expert]
        gate = {f"score.{name}": tensor[expert] for name, tensor in self.gates.tensors.items()}
        return dict(zip(self.names, self.layout.views(memory), strict=True)) | gate

    def memory(self) -> dict[str, int]:
        """Count the experts' memory, the slot and the visitor."""
        idle = sum(memory.nbytes for memory in self.idle)
        on_device = self.gates.bytes + self.slot.nbytes + self.visitor_memory.nbytes
        host = idle if self.spec.idle_on_host else 0
        per_expert = self.slot.nbytes + self.gates.bytes // self.gates.capacity
        return {"bytes_per_expert": per_expert, "device_bytes": on_device + idle - host, "host_bytes": host}

    def _ahead(self) -> int:
        """Return how many steps to keep under way: one is enough where the host has to wait for the GPU anyway."""
        if self.device.type != "cuda" or not self.score.asynchronous:
            return 0
        return 1 if self.mailbox.waited > LONG_WAIT else AHEAD

    def _launch(self, rule: Rule, stream: torch.cuda.Stream | None, expert: int, step: int, batch: Batch) -> None:
        """Start one training step."""
        if not self.rows[expert]:
            self.score.start(self._prepare(batch.x))
        noise = None
        if self.score.network is not None:
            self.noise.manual_seed(self.keys.integer("noise", step, expert))
            noise = self.score.draw(len(batch), self.noise)
        changes = self.spec.changes(self.keys, expert, step, len(batch), self.device)
        inputs = batch.x, batch.y, noise, changes
        with self._seeded(expert, step):
            if rule.gates and not self.score.asynchronous:
                self._show_gate()
                result = self._train(rule, *inputs)
            else:
                result = self._run(rule, partial(self._train, rule), *inputs)
        self.mailbox.send(result, stream)
        self.stale = self.stale or self.score.network is not None
        self.trained[expert] += 1

    def _train(self, rule: Rule, x: Tensor, y: Tensor, noise: Tensor | None, changes: Tensor | None) -> Tensor:
        """Forward, compare with the bound, update if accepted; return the loss, and 1 if nothing was updated.

        `stopped` becomes 1 at the first batch that may not be trained, and stays so for the rest of the run.
        """
        with self._arithmetic():
            before = self.running.clone()
            x = self._prepare(x)
            with self.beside(), self._autocast():
                if self.score.asynchronous:
                    self.score.study(x, y, noise)
                if rule.gates:
                    self._compare_scores(rule.gates, x)
            with self._autocast(), self._training_mode(len(x)):
                loss = nn.functional.cross_entropy(self.net(_changed(x, changes)), y)
            with self.beside():
                updated = self._compare_loss(rule, loss.detach())
            self.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.beside.join()
            torch._amp_foreach_non_finite_check_and_unscale_(gradients(self.net), self.stopped, self.one)
            with self.beside():
                if self.score.asynchronous:
                    self.score.learn(self.stopped)
            masked_step(self.optimiser, self.stopped)
            skipped = self.stopped > 0
            torch.where(skipped, self.statistics, updated, out=self.statistics)
            if len(self.running):
                self.running.copy_(torch.where(skipped, before, self.running))
            self.beside.join()
            if rule.gates and self.score.network is not None:
                for name, own in self.score.gate_tensors().items():
                    self.gates.tensors[name].index_copy_(0, self.place, own.detach()[None])
        return self.result

    @contextmanager
    def _training_mode(self, rows: int) -> Iterator[None]:
        """The slot's network is always in training mode, but a single row has no batch statistics."""
        if rows > 1:
            yield
            return
        with mode_of(self.net, training=True, rows=rows):
            yield
        self.net.train()

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
        """Stop if some rival's score is as low as that of the active expert (Algorithm 1 to the letter)."""
        scores = self._score(range(gates), True, x).double().mean(1)
        own = scores.index_select(0, self.place)[0]
        lower = own < (scores + self.handicap[:gates]).min()
        torch.where(lower, self.stopped, self.one, out=self.stopped)

    def _look(self, x: Tensor, y: Tensor, changes: Tensor | None = None) -> Tensor:
        """Return the loss of whoever visits."""
        with (
            torch.no_grad(),
            self._arithmetic(),
            self._autocast(),
            mode_of(self.visitor, training=False, rows=len(x), batch_statistics=True),
        ):
            return nn.functional.cross_entropy(self.visitor(_changed(self._prepare(x), changes)), y)

    def _score(self, experts: Sequence[int], batch_statistics: bool, x: Tensor) -> Tensor:
        """Return the scores of some experts, finite."""
        # In half precision rather than bfloat16: three bits more tell neighbours apart, and nothing is trained here.
        half = autocast(self.spec.precision, self.device, torch.float16)
        with torch.no_grad(), self._arithmetic(), half:
            scores = self.score.stacked(self.gates.of(experts), self._prepare(x), batch_statistics=batch_statistics)
        return scores.float().nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE)

    def _prepare(self, x: Tensor) -> Tensor:
        x = as_float(x)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def _activate(self, expert: int) -> None:
        """Bring an expert into the slot, and the one that was there back to its own memory."""
        if expert == self.active:
            return
        self._show_gate()
        self.idle[self.active].copy_(self.slot, non_blocking=True)
        self.slot.copy_(self.idle[expert], non_blocking=True)
        self.gates.read(expert, self.score.gate_tensors())
        self.active = expert
        self.place.fill_(expert)

    def _invite(self, expert: int) -> None:
        """Let the visitor's network be this expert's."""
        holds = (expert, self.trained[expert])
        if self.visitor_holds != holds:
            home = self.slot if expert == self.active else self.idle[expert]
            self.visitor_memory.copy_(home[: len(self.visitor_memory)], non_blocking=True)
            self.visitor_holds = holds

    def _teach_late(self, batch: Batch) -> None:
        """Let a score that must wait for the host learn a batch, now that the expert was trained on it."""
        if not self.score.asynchronous:
            self.score.study(self._prepare(batch.x), batch.y, None)
            self.score.learn(skip=torch.zeros((), device=self.device))
            self.stale = True

    def _admit(self, rivals: Sequence[int]) -> int:
        """Let these experts compete with the active one; return how many of the stack's scores are needed."""
        if not rivals:
            return 0
        self._show_gate()
        handicap = torch.full((self.gates.count,), inf, dtype=torch.float64)
        handicap[list(rivals)] = 0.0
        self.handicap[: self.gates.count] = handicap.to(self.device)
        return self.gates.count

    def _refresh(self, expert: int) -> None:
        with self._arithmetic():
            self.score.refresh(self.rows[expert])
        self.rows_at_refresh[expert] = self.rows[expert]
        self.stale = True
        self._show_gate()

    def _show_gate(self) -> None:
        """Let the gate know what the active expert's score has learned."""
        if self.stale:
            self.gates.write(self.active, self.score.gate_tensors())
            self.stale = False

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

    def _allocate_idle(self) -> Tensor:
        if not self.spec.idle_on_host:
            return self.layout.allocate(self.device)
        return self.layout.allocate(torch.device("cpu"), pinned=self.device.type == "cuda")

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic(self.spec.precision, self.device)

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast(self.spec.precision, self.device)


def _changed(x: Tensor, changes: Tensor | None) -> Tensor:
    return x if changes is None else flip_and_crop(x, changes)


@dataclass(frozen=True)
class Rule:
    """How a batch is judged; each rule is a graph of its own."""

    signed: bool
    """The paper's signed deviation."""
    gates: int
    """Experts whose scores are compared first; 0: none (sticky)."""


def _running(net: nn.Module, score: Score) -> list[Tensor]:
    """Return what a forward pass in training mode changes."""
    return [*net.buffers(), *(score.network.buffers() if score.network else ())]


def _own_tensors(net: nn.Module, optimiser: torch.optim.Optimizer, score: Score) -> dict[str, Tensor]:
    """Return an expert's state, in the order of the slot's memory; without what lies in the stack of gates."""
    state = state_of(net, optimiser, "net") | state_of(score, score.optimiser, "score")
    name_of = {id(tensor): name for name, tensor in state.items()}
    first = [*_running(net, score), *net.parameters()]
    gates = {id(tensor) for tensor in score.gate_tensors().values()}
    rest = [tensor for tensor in state.values() if id(tensor) not in gates]
    return {name_of[id(tensor)]: tensor for tensor in (*first, *rest)}
