"""Memory of the fast pool: one expert in a slot at a fixed address, the others in idle memory, all gates stacked.

Also how they compute: precision, memory format, all gates at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hge.core.randomness import Keys
from hge.core.types import as_float
from hge.experts.fast.layout import Layout, Stack, rebind_storage
from hge.experts.inputs import shortened
from hge.experts.optim import arithmetic, autocast, build_optimiser, state_of
from hge.experts.pool_spec import PoolSpec, copy_tensors, read_rows_limited, share_modules
from hge.experts.scores import UNSUITABLE, Score
from hge.experts.weight_average import WeightAverage

NOBODY = -1
NOTHING = (NOBODY, -1, False)


class ExpertStore:
    """The experts' memory. Only the expert in the slot can be trained; `eval_net` is a copy for evaluation."""

    net: nn.Module
    optimiser: torch.optim.Optimizer
    score: Score
    """Network, optimiser and score of the expert in the slot."""
    average: WeightAverage | None
    """The slot's averaged weights, if predictions use an average."""
    gates: Stack
    """Gate tensors of all experts."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device
        self.space = spec.build_space(device)
        """Shared space of all experts' sketches."""
        self.idle: list[Tensor] = []
        """Memory of each expert while another one is in the slot."""
        self.versions: list[int] = []
        """Lower bound of the number of changes of each expert."""
        self.active = 0
        self.gate_is_stale = False
        """Whether the stack has outdated gate tensors of the active expert."""
        self.rows_limited = torch.zeros((), device=device)
        """Number of training rows that were too long."""
        self.eval_copy_of = NOTHING
        """Expert and version that `eval_net` is a copy of, and whether it holds the averaged weights."""

    def add(self, expert: int) -> bool:
        """Add an untrained expert, its weights drawn by (seed, expert); return whether the gates' memory has moved."""
        assert expert == len(self.idle), "experts are numbered in order of creation"
        net, optimiser, score = self._build(expert)
        if self.idle and share_modules(net, self.net):
            raise ValueError("net: got the same module from the factory twice, expected a new one for each expert")
        average = self.spec.build_average(net)
        gate, named = score.gate_tensors(), _own_tensors(net, optimiser, score, average)
        if self.idle:
            moved = self.gates.append(gate)
        else:
            moved = True
            self.average = average
            self._build_slot(net, optimiser, score, named)
            self.gates = Stack({name: t.detach().clone()[None] for name, t in gate.items()})
        memory = self._allocate_idle()
        self.layout.fill(memory, list(named.values()))
        self.idle.append(memory)
        self.versions.append(0)
        return moved

    def activate(self, expert: int) -> None:
        """Copy an expert into the slot, and the previous one back to its own memory."""
        if expert == self.active:
            return
        self.sync_gate()
        if self.active != NOBODY:
            self.idle[self.active].copy_(self.slot, non_blocking=True)
        self.active = NOBODY  # if there is an interrupt from here on, no expert's memory is overwritten by the slot's
        self.slot.copy_(self.idle[expert], non_blocking=True)
        self.gates.read(expert, self.score.gate_tensors())
        self.active = expert

    def load_eval_net(self, expert: int, *, for_prediction: bool) -> None:
        """Load this expert's weights, those for prediction or those being trained, into `eval_net` (in eval mode)."""
        averaged = for_prediction and self.average is not None
        source = (expert, self.versions[expert], averaged)
        if self.eval_copy_of != source:
            self.eval_copy_of = NOTHING  # an interrupt while it is copied must not leave another expert's weights
            memory = self.slot if expert == self.active else self.idle[expert]
            if averaged:
                targets = [*self.eval_net.parameters(), *self.eval_net.buffers()]
                averages = self.layout.views(memory)[self.first_average : self.first_average + len(targets)]
                torch._foreach_copy_([target.data for target in targets], averages)
            else:
                self.eval_memory.copy_(memory[: len(self.eval_memory)], non_blocking=True)
            self.eval_copy_of = source

    def sync_gate(self) -> None:
        """Copy the active expert's gate tensors to the stack if they have changed."""
        if self.gate_is_stale:
            self.gates.write(self.active, self.score.gate_tensors())
            self.gate_is_stale = False

    def tensors(self, expert: int) -> dict[str, Tensor]:
        """Return an expert's tensors by name, without a copy; those of the gate are views of the stack."""
        self.sync_gate()
        memory = self.slot if expert == self.active else self.idle[expert]
        gate = {f"score.{name}": tensor for name, tensor in self.gate(expert).items()}
        return dict(zip(self.names, self.layout.views(memory), strict=True)) | gate

    def gate(self, expert: int) -> dict[str, Tensor]:
        """Return an expert's part of the stack."""
        return {name: tensor[expert] for name, tensor in self.gates.tensors.items()}

    def mark_changed(self, expert: int) -> None:
        """Register that an expert's tensors were replaced from outside."""
        self.versions[expert] += 1  # copies are outdated now
        if expert == self.active:
            self.gates.read(expert, self.score.gate_tensors())

    def scores(self, experts: Sequence[int], x: Tensor) -> Tensor:
        """Return the finite scores [experts, rows] of some experts."""
        with self._scoring():
            scores = self.score.stacked(self.gates.of(experts), self.preprocess(x), batch_statistics=False)
        return finite(scores.float())

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> Tensor:
        """Return the scores [experts] of a batch as a whole, in double precision."""
        return self.batch_scores_of(experts, self.preprocess(x))

    def batch_scores_of(self, experts: Sequence[int], inputs: Tensor) -> Tensor:
        """Return the same for rows preprocessed by `preprocess`."""
        with self._scoring():
            return finite(self.score.together(self.gates.of(experts), inputs))

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> Tensor:
        """Return cheap scores [experts, rows], or [experts] for all rows together."""
        with self._scoring():
            return finite(self.score.sketches(self.gates.of(experts), self.preprocess(x), together=together))

    def preprocess(self, x: Tensor) -> Tensor:
        """Return rows preprocessed for the scores."""
        with torch.no_grad(), self.arithmetic():
            return self.score.preprocess(self.prepare(x))

    @contextmanager
    def _scoring(self) -> Iterator[None]:
        # In half precision rather than bfloat16: three more bits separate close scores, and nothing is trained here.
        with torch.no_grad(), self.arithmetic(), autocast(self.spec.precision, self.device, torch.float16):
            yield

    def prepare(self, x: Tensor) -> Tensor:
        """Return inputs as floats, in the fastest memory format."""
        x = as_float(x)
        return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.ndim == 4 else x

    def prepare_for_training(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs prepared for a network in training, and how many rows were too long, and are shortened."""
        scaled, x = self.spec.scaled or x.dtype == torch.uint8, self.prepare(x)
        return (x, torch.zeros_like(self.rows_limited)) if scaled else shortened(x)

    def arithmetic(self) -> AbstractContextManager[None]:
        """Compute products in the pool's precision inside the block."""
        return arithmetic(self.spec.precision, self.device)

    def autocast(self) -> AbstractContextManager[None]:
        """Compute forward passes in 16 bits inside the block, if the pool's precision is bf16."""
        return autocast(self.spec.precision, self.device)

    def memory(self) -> dict[str, int]:
        """Return the bytes of the experts' memory, including the slot and `eval_net`."""
        idle = sum(memory.nbytes for memory in self.idle)
        on_device = self.gates.bytes + self.slot.nbytes + self.eval_memory.nbytes
        host = idle if self.spec.idle_on_host else 0
        per_expert = self.slot.nbytes + self.gates.bytes // self.gates.capacity
        return {"bytes_per_expert": per_expert, "device_bytes": on_device + idle - host, "host_bytes": host}

    def __getstate__(self) -> dict[str, Any]:
        """Return what is needed to rebuild it: pickle would not preserve that the networks share the slot's memory."""
        self.sync_gate()
        if self.active != NOBODY:
            self.idle[self.active].copy_(self.slot)
        gates = {name: t[: self.gates.count].clone() for name, t in self.gates.tensors.items()}
        arguments = self.spec, self.keys, self.device
        return {
            "made_of": arguments,
            "shared": copy_tensors(self.shared_state(), on_host=False),
            "idle": self.idle,
            "gates": gates,
            "active": self.active,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(*state["made_of"])  # type: ignore[misc]
        self.load_shared_state(state["shared"])
        self.add(0)
        self.idle, self.gates, self.active = state["idle"], Stack(state["gates"]), state["active"]
        self.versions = [0] * len(self.idle)
        if self.active != NOBODY:
            self.slot.copy_(self.idle[self.active])
            self.gates.read(self.active, self.score.gate_tensors())

    def shared_state(self) -> dict[str, Tensor]:
        """Return the tensors that all experts share, not copied."""
        return self.space.state() | {"rows_limited": self.rows_limited}

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `shared_state` returned."""
        limited = read_rows_limited(tensors)
        self.space.load_state(tensors)
        self.rows_limited.copy_(limited)

    def _build(self, expert: int) -> tuple[nn.Module, torch.optim.Optimizer, Score]:
        net, score = self.spec.build(self.keys, expert, self.device, self.space)
        if self.device.type == "cuda":
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            score.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net, build_optimiser(self.spec.optimiser, net.parameters()), score

    def _build_slot(
        self, net: nn.Module, optimiser: torch.optim.Optimizer, score: Score, named: dict[str, Tensor]
    ) -> None:
        """Build the slot and `eval_net` from the first expert's networks."""
        self.net, self.optimiser, self.score = net.train(), optimiser, score
        self.weights = list(net.parameters())
        self.names, tensors = list(named), list(named.values())
        self.first_average = next(
            (i for i, name in enumerate(self.names) if name.startswith("average.")), len(self.names)
        )
        self.layout = Layout(tensors)
        self.slot = self.layout.allocate(self.device)
        rebind_storage(tensors, self.layout.views(self.slot))
        running = len(_running(net, score))
        # The layout starts with the tensors that a refused forward pass must not change, then the network's weights.
        self.running = self.slot[: self.layout.ends[running - 1] if running else 0]
        weights = self.layout.ends[running + len(list(net.parameters())) - 1]
        self.eval_net = self._build(0)[0]
        self.eval_memory = self.slot[:weights].clone()
        views, own = self.layout.views(self.eval_memory), len(list(net.buffers()))
        rebind_storage([*self.eval_net.buffers(), *self.eval_net.parameters()], [*views[:own], *views[running:]])

    def _allocate_idle(self) -> Tensor:
        if not self.spec.idle_on_host:
            return self.layout.allocate(self.device)
        return self.layout.allocate(torch.device("cpu"), pinned=self.device.type == "cuda")


def finite(scores: Tensor) -> Tensor:
    """Return the scores with `UNSUITABLE` in place of NaN and infinities."""
    return scores.nan_to_num(nan=UNSUITABLE, posinf=UNSUITABLE, neginf=UNSUITABLE)


def _running(net: nn.Module, score: Score) -> list[Tensor]:
    """Return the tensors that a forward pass in training mode changes."""
    return [*net.buffers(), *(score.network.buffers() if score.network else ())]


def _own_tensors(
    net: nn.Module, optimiser: torch.optim.Optimizer, score: Score, average: WeightAverage | None
) -> dict[str, Tensor]:
    """Return an expert's state in the order of the slot's memory, without the tensors in the stack of gates."""
    state = state_of(net, optimiser, "net") | state_of(score, score.optimiser, "score")
    name_of = {id(tensor): name for name, tensor in state.items()}
    first = [*_running(net, score), *net.parameters()]
    gates = {id(tensor) for tensor in score.gate_tensors().values()}
    rest = [tensor for tensor in state.values() if id(tensor) not in gates]
    own = {name_of[id(tensor)]: tensor for tensor in (*first, *rest)}
    return own | ({} if average is None else average.state())
