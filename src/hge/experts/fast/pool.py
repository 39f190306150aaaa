"""The fast pool: one expert at a time in a slot of fixed memory, all gates stacked, and no waiting for the host.

On a GPU a training step is one CUDA graph: forward, compare with the bound, update if accepted. Mean and deviation of
the loss are kept on the device during a run, so that the next step can start before the host has the result of the
last one. On a CPU the same functions are called directly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.experts.fast.cuda_graphs import Graphs, ResultQueue
from hge.experts.fast.device_steps import STEPS_PER_LAUNCH, Rule, Steps
from hge.experts.fast.memory import ExpertStore
from hge.experts.features import features_and_logits
from hge.experts.inputs import flip_and_crop
from hge.experts.joint.model import Evidence
from hge.experts.optim import check_state, multiply_adds, network_mode
from hge.experts.pool import Costs
from hge.experts.pool_spec import COUNTS, PoolSpec, as_evidence, copy_tensors, count_tensors
from hge.experts.scores.space import Space
from hge.experts.views import training_loss
from hge.gating.switch_detection import NO_BOUND, LossStats
from hge.gating.tree import FloatArray

MAX_NETWORKS = 32
"""Number of experts up to which a GPU scores all of them faster than some in turn, if the scores are networks."""
NONE_REFUSED = (-1, None, nan)
"""Value of `refused` if no expert refused a batch for its loss."""
LONG_WAIT = 3e-4
"""Wait of the host for a step, in seconds, above which the GPU is clearly the bottleneck."""


class StackedPool:
    """Pool with stacked gates and the expert in use in a slot at a fixed address."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device = torch.empty(0, device=device).device  # with its number
        self.store = ExpertStore(spec, keys, device)
        self.rows: list[int] = []
        self.rows_at_refresh: list[int] = []
        self.refused: tuple[int, Batch | None, float] = NONE_REFUSED
        """Expert, batch and loss at which the last run ended; invalid once the expert is trained again."""
        self.noise = torch.Generator(device)
        self.results = ResultQueue(device, blocks=2, results=STEPS_PER_LAUNCH, width=2)
        self.pending: deque[tuple[int, Batch]] = deque()
        """Batches sent to the device whose results are pending."""
        self.graphs = Graphs(device)
        self.steps = Steps(self.store, self.graphs)
        self.stochastic = False
        """Whether the networks draw random numbers, as Dropout does."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what is needed to rebuild the pool."""
        names = ("spec", "keys", "device", "store", "rows", "rows_at_refresh", "stochastic")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["spec"], state["keys"], state["device"])  # type: ignore[misc]
        vars(self).update(state)
        self.steps = Steps(self.store, self.graphs)

    @property
    def rows_limited(self) -> int:
        """Number of training rows that were too long, and were shortened."""
        return int(self.store.rows_limited)

    @property
    def scores_all_at_once(self) -> bool:
        """Sketches are one product; on a GPU, networks are one CUDA graph, up to `MAX_NETWORKS` experts."""
        if self.store.score.network is None:
            return True
        return self.overlaps and self.store.gates.count <= MAX_NETWORKS

    @property
    def scores_are_costly(self) -> bool:
        """Whether the score has a network."""
        return self.store.score.network is not None

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        if self.store.add(expert):
            self.graphs.clear()
        self.rows.append(0)
        self.rows_at_refresh.append(0)
        if expert == 0:
            self.stochastic = self._is_stochastic()

    def finish_deferred(self) -> None:
        """Fix the sketches' space."""
        space = self.store.space
        if space.first_rows:
            self.store.activate(space.owner)
            self.store.score.finish_deferred()
            self._refresh(space.owner)

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss with batch statistics; running statistics are not changed."""
        if self.refused[0] == expert and self.refused[1] is batch:
            return self.refused[2]  # already computed by the run that this batch ended
        self.store.load_eval_net(expert, for_prediction=False)
        with self._seeded(expert, step):
            augmentation = self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device)
            return float(self._run("loss", self._eval_loss, batch.x, batch.y, augmentation))

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and train its score, whatever the loss."""
        return next(self.train_run(expert, [(step, batch)], NO_BOUND, 0.0), nan)

    def rehearse(self, expert: int, batch: Batch, step: int) -> None:
        """Take one optimiser step on the network alone."""
        self.store.activate(expert)
        self.refused = NONE_REFUSED
        with self._seeded(expert, step):
            augmentation = self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device)
            self._run("rehearse", self.steps.rehearse, batch.x, batch.y, augmentation)
        self.store.versions[expert] += 1

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        ordered_pairs: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Launch a few steps ahead; each decides on the device whether its batch is accepted."""
        if self.store.space.has_rows_of_another(expert):
            self.finish_deferred()
        self.store.space.owner = expert
        self.store.activate(expert)
        self.refused = NONE_REFUSED
        rule = self.steps.begin(expert, losses, epsilon, ordered_pairs)
        pending = self._reset_pending()
        source = iter(items)
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        rows = self.rows[expert]  # after all pending batches have been trained
        try:
            while True:
                group, refresh = [], False
                for item in islice(source, self._steps_per_launch(expert)):
                    group.append(item)
                    rows += len(item[1])
                    refresh = self.store.score.refresh_due(rows, self.rows_at_refresh[expert])
                    if refresh:
                        break
                if group:
                    self._launch(rule, stream, expert, group)
                    pending.extend(group)
                # While the GPU runs the newest group, the host takes the results of the previous one. A refresh may
                # only use batches that are known to have been trained, so it waits for all pending results.
                while len(pending) > (len(group) if self.overlaps and not refresh else 0):
                    loss, skipped = self.results.get()
                    step, batch = pending.popleft()
                    if skipped:
                        self.refused = expert, batch, loss
                        return
                    self.rows[expert] += len(batch)
                    self._train_score_on_host(expert, step, batch)
                    if refresh and not pending:
                        self._refresh(expert)
                    yield loss
                if not group:
                    return
        finally:  # the caller may have stopped early; after an interrupt, a result may be missing
            while pending and len(self.results):
                step, batch = pending.popleft()
                _, skipped = self.results.get()
                if not skipped:
                    self.rows[expert] += len(batch)
                    self._train_score_on_host(expert, step, batch)

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query all of them at once."""
        return self._query("scores", self.store.scores, experts, x)

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query all of them at once."""
        return self._query("batch scores", self.store.batch_scores, experts, x)

    def optimism(self, expert: int) -> float:
        """Ask the score about the expert's part of the stack."""
        self.store.sync_gate()
        return self.store.score.optimism(self.store.gate(expert), self.rows_at_refresh[expert])

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Query all of them at once."""
        return self._query(f"sketches {together}", partial(self.store.sketches, together=together), experts, x)

    @torch.no_grad()
    def _query(
        self, kind: str, score: Callable[[Sequence[int], Tensor], Tensor], experts: Sequence[int], x: Tensor
    ) -> FloatArray:
        self.store.sync_gate()
        all_experts = range(self.store.gates.count)
        experts = experts if isinstance(experts, range) else list(experts)
        queries_all = experts == all_experts or experts == list(all_experts)  # ranges are compared at once
        capture = queries_all and self.store.score.capturable
        function = partial(score, experts)
        scores = self.graphs((kind, len(experts)), function, x) if capture else function(x)
        return np.asarray(scores.cpu()).astype(np.float64)

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the logits with running statistics."""
        self.store.load_eval_net(expert, for_prediction=True)
        with self.store.arithmetic(), self.store.autocast():
            out: Tensor = self.store.eval_net(self.store.prepare(x))
        return out.float().nan_to_num()

    @torch.no_grad()
    def evidence(self, experts: Sequence[int], x: Tensor) -> list[Evidence]:
        """Return the parts of the scores, the logits and the features."""
        self.store.sync_gate()
        found = []
        with self.store.arithmetic(), self.store.autocast():
            x = self.store.prepare(x)
            parts = self.store.score.parts([self.store.gate(expert) for expert in experts], x)
            for expert, own in zip(experts, parts, strict=True):
                self.store.load_eval_net(expert, for_prediction=True)
                features, logits = features_and_logits(self.store.eval_net, x)
                found.append(as_evidence(own, logits, features))
        return found

    @property
    def space(self) -> Space:
        """The space that the sketches of all experts share."""
        return self.store.space

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Copy the expert's memory and its gate, by name."""
        counts = count_tensors(self.rows[expert], self.rows_at_refresh[expert])
        return copy_tensors(self.store.tensors(expert), on_host=on_host) | counts

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy all tensors into the expert, in the slot or idle."""
        own = self.store.tensors(expert)
        check_state(tensors, own | count_tensors(0, 0))
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.rows[expert], self.rows_at_refresh[expert] = (int(tensors[name]) for name in COUNTS)
        self.store.mark_changed(expert)
        self.refused = NONE_REFUSED  # the stored loss is that of the former weights

    def shared_state(self) -> dict[str, Tensor]:
        """Return a copy of the sketches' space."""
        return copy_tensors(self.store.shared_state(), on_host=True)

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the sketches' space."""
        self.store.load_shared_state(tensors)

    def costs(self) -> Costs:
        """Count multiply-adds."""
        self.store.sync_gate()
        gates = self.store.gates.of(range(self.store.gates.count))
        network = multiply_adds(self.store.eval_net, torch.zeros(1, *self.spec.shape, device=self.device))
        return Costs(network, self.store.score.cost(gates), self.store.score.sketch_cost(gates))

    def memory(self) -> dict[str, int]:
        """Return the bytes of the experts' memory, including the slot and `eval_net`."""
        return self.store.memory()

    @property
    def overlaps(self) -> bool:
        """Whether the host continues while a step is computed."""
        return self.device.type == "cuda" and self.store.score.asynchronous

    def _steps_per_launch(self, expert: int) -> int:
        """Return the number of steps per launch: one is enough if the host has to wait for the GPU anyway."""
        if not self.overlaps or self.stochastic or not self.rows[expert] or self.results.wait_seconds > LONG_WAIT:
            return 1
        return STEPS_PER_LAUNCH

    def _reset_pending(self) -> deque[tuple[int, Batch]]:
        """Discard what an interrupted run may have left: its results would be mistaken for those of the next run."""
        self.pending.clear()  # that run may be closed later, and must not take results then
        self.results.clear()
        self.pending = deque()
        return self.pending

    def _launch(
        self, rule: Rule, stream: torch.cuda.Stream | None, expert: int, group: Sequence[tuple[int, Batch]]
    ) -> None:
        """Launch training steps."""
        inputs = [tensor for step, batch in group for tensor in self._inputs(expert, step, batch)]
        with self._seeded(expert, group[0][0]):
            if rule.gates and not self.store.score.capturable:
                self.store.sync_gate()
                results = self.steps.run(rule, *inputs)
            else:
                key = rule, self.store.score.asynchronous
                results = self._run(key, partial(self.steps.run, rule), *inputs)
        self.results.put(results, len(group), stream)
        self.store.gate_is_stale = self.store.gate_is_stale or self.store.score.network is not None
        self.store.versions[expert] += len(group)

    def _inputs(self, expert: int, step: int, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Return the inputs of a step."""
        augmentation = self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device)
        return batch.x, batch.y, self._noise(expert, step, batch), augmentation

    def _noise(self, expert: int, step: int, batch: Batch) -> Tensor | None:
        """Return the random numbers for training a score that has a network."""
        if self.store.score.network is None:
            return None
        self.noise.manual_seed(self.keys.integer("noise", step, expert))
        return self.store.score.draw_noise(len(batch), self.noise)

    def _eval_loss(self, x: Tensor, y: Tensor, augmentation: Tensor | None = None) -> Tensor:
        """Return the loss of `eval_net`."""
        with (
            torch.no_grad(),
            self.store.arithmetic(),
            self.store.autocast(),
            network_mode(self.store.eval_net, training=False, rows=len(x), batch_statistics=True),
        ):
            x = flip_and_crop(self.store.prepare_for_training(x)[0], augmentation)
            return training_loss(self.store.eval_net, x, y)

    def _train_score_on_host(self, expert: int, step: int, batch: Batch) -> None:
        """Train a score that depends on the host on a batch on which its expert has been trained."""
        if not self.store.score.asynchronous:
            self._train_score(expert, step, batch)
            if self.store.score.asynchronous:  # the first rows are complete
                self._refresh(expert)

    def _train_score(self, expert: int, step: int, batch: Batch) -> None:
        """Train the score of the expert in the slot on a batch."""
        self.store.score.compute_update(self.store.preprocess(batch.x), batch.y, self._noise(expert, step, batch))
        self.store.score.apply_update(skip=torch.zeros((), device=self.device))
        self.store.gate_is_stale = True

    def _refresh(self, expert: int) -> None:
        with self.store.arithmetic():
            self.store.score.refresh(self.rows[expert])
        self.rows_at_refresh[expert] = self.rows[expert]
        self.store.gate_is_stale = True
        self.store.sync_gate()

    def _run(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        """Run a function of the networks as a graph, unless they draw random numbers, which a graph would repeat."""
        return function(*inputs) if self.stochastic else self.graphs(key, function, *inputs)

    def _seeded(self, expert: int, step: int) -> AbstractContextManager[None]:
        return self.keys.seeded("dropout", step, expert, device=self.device) if self.stochastic else nullcontext()

    def _is_stochastic(self) -> bool:
        """Return whether the network draws random numbers in training, as Dropout does."""
        x = torch.zeros(2, *self.spec.shape, device=self.device)
        state = partial(torch.cuda.get_rng_state, self.device) if self.device.type == "cuda" else torch.get_rng_state
        with self.keys.seeded("dropout", 0, 0, device=self.device):
            before = state()
            self._eval_loss(x, torch.zeros(2, dtype=torch.int64, device=self.device))
            return not torch.equal(before, state())
