"""A hypernetwork generates the weights of a network for each task, whose id is given in training and in testing.

Sources: von Oswald et al. 2020 (hypernetworks for tasks, with their penalty), Hemati et al. 2023 (embeddings of 32, a
head per tensor, penalty 0.5, Adam 1e-3). Loss on a task: its cross-entropy and 0.5 times the squared distance of the
weights generated for each other task from those when the task began, a mean over these tasks, for the hypernetwork one
step of gradient descent ahead (first order). Adam starts anew with each task.

Departures: the network, batches and epochs are GE's, and one head for all classes is shared by the tasks, where
Hemati's labels begin at 0 in each. Every row of weights has an embedding, too, which enters with the task's (von
Oswald's chunks, here of one unit each; Hemati's enters at the head, where the task would shift all rows alike), and two
hidden layers of 100. Every task's embedding is drawn (von Oswald's); Hemati's begins as that of the last task, which
here, with one head for all tasks, generates the same weights for both at first, and forgets the earlier task before the
two are told apart. What is generated is added to GE's initial weights, which are not trained. Biases are generated,
too. Networks with a BatchNorm are refused: its statistics are no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite, nan

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from hge.baselines.hypernetwork import EMBEDDING, Hypernetwork, TaskWeights, Weights
from hge.baselines.rule import Part, RuleLearner
from hge.core.events import ExpertChanged, ExpertCreated, UpdateSkipped
from hge.core.types import Batch, as_float
from hge.experts.inputs import flip_and_crop
from hge.experts.optim import has_batch_norm, multiply_adds, network_mode
from hge.experts.pool_spec import copy_tensors
from hge.gating.tree import FloatArray, Routes
from hge.learning.online import Answers, Routing, Setting, Step
from hge.learning.routing import ROWS_AT_ONCE
from hge.learning.state import Snapshot


def build(setting: Setting) -> HypernetworkLearner:
    """Return an untrained learner."""
    return HypernetworkLearner(setting, setting.current_task)


class HypernetworkLearner(RuleLearner):
    """Trains the hypernetwork on the task of each batch; the weights of a task are an expert."""

    def __init__(self, setting: Setting, current_task: Callable[[], int]) -> None:
        self.rule: GeneratedNetwork
        super().__init__(GeneratedNetwork(setting), setting)
        self.current_task = current_task
        """Returns the task of the batch drawn last from the stream."""
        self.expert_of: dict[int, int] = {}
        """task -> expert."""
        self.experts: list[int] = [0]
        self.active = 0

    def learn_all(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Learn the batches in order, each as a batch of its task."""
        for batch in batches:
            self._begin(self.current_task())
            loss = self.rule.learn(batch.to(self.device), self.steps)
            if not isfinite(loss):
                self.emit(UpdateSkipped(self.steps, self.active, self.steps))
            trained = ((self.steps, self.active),) if isfinite(loss) else ()
            self.steps += 1
            yield Step(self.steps - 1, self.active, loss, inf, False, 0, trained)

    def _begin(self, task: int) -> None:
        expert = self.expert_of.setdefault(task, len(self.expert_of))
        if expert == self.active:
            return
        if expert == len(self.experts):
            self._add_expert()
            self.emit(ExpertCreated(self.steps, expert, batches=0))
        self.emit(ExpertChanged(self.steps, self.active, expert))
        self.active = expert
        self.rule.generated.begin(expert)

    def _add_expert(self) -> None:
        self.tree.add(len(self.experts))
        self.experts.append(len(self.experts))

    def answers(self) -> Answers:
        """Return an object that predicts test rows of the first task."""
        return self.answers_for(0)

    def answers_for(self, task: int) -> Answers:
        """Return an object that predicts test rows of a task; of the first one if it has not been in the stream."""
        return GivenTaskAnswers(self, self.expert_of.get(task, 0))

    def snapshot(self) -> Snapshot:
        """Copy the state."""
        found = super().snapshot()
        found.facts.update(expert_of=list(self.expert_of.items()), active=self.active)
        return found

    def restore(self, snapshot: Snapshot) -> None:
        """Load a snapshot's state."""
        super().restore(snapshot)
        self.expert_of, self.active = dict(snapshot.facts["expert_of"]), snapshot.facts["active"]
        while len(self.experts) < len(self.expert_of):
            self._add_expert()


class GeneratedNetwork:
    """GE's network with generated weights."""

    def __init__(self, setting: Setting) -> None:
        self.spec, self.keys, self.device = setting.spec, setting.keys, setting.device
        self.net = self.spec.build_net(self.keys, 0, self.device).requires_grad_(False)
        if has_batch_norm(self.net):
            raise ValueError("net: got a network with a BatchNorm, expected one without for a hypernetwork, as net=mlp")
        with self.keys.seeded("weights", 0, 1, device=self.device):
            hypernetwork = Hypernetwork(self.net).to(self.device)
        self.generated = TaskWeights(hypernetwork, self._draw, setting.config.baseline.penalty)
        self.parts: dict[str, Part] = {"generated": self.generated, "scaling": Buffers(self.net)}
        self.multiply_adds = multiply_adds(self.net, torch.zeros(1, *self.spec.shape, device=self.device))

    def _draw(self, task: int) -> Tensor:
        generator = self.keys.generator("directions", task, device=self.device)
        return torch.randn(EMBEDDING, generator=generator, device=self.device)

    def learn(self, batch: Batch, step: int) -> float:
        """Train on the batch."""
        changes = self.spec.draw_augmentation(self.keys, 0, step, len(batch), self.device)
        x = flip_and_crop(as_float(batch.x), changes)

        def loss(weights: Weights) -> Tensor:
            with network_mode(self.net, training=True, rows=2):
                return cross_entropy(functional_call(self.net, weights, (x,)), batch.y)

        value = self.generated.step(loss)
        return nan if value is None else float(value)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logits for the task in training."""
        return self.logits_of(self.generated.task, x)

    @torch.no_grad()
    def logits_of(self, task: int, x: Tensor) -> Tensor:
        """Return the logits of all rows for a task."""
        weights = self.generated.weights(task)
        parts = [part.to(self.device) for part in torch.split(x, ROWS_AT_ONCE)]
        return torch.cat([functional_call(self.net, weights, (as_float(part),)) for part in parts])


class Buffers:
    """The statistics of a network's inputs."""

    rows_kept = 0
    parameters = 0

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net

    def state(self) -> dict[str, Tensor]:
        """Return copies."""
        return copy_tensors(dict(self.net.named_buffers()), on_host=True)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, tensor in self.net.named_buffers():
            tensor.copy_(tensors[name])


@dataclass(frozen=True)
class GivenTaskAnswers:
    """Predicts by the weights of one task."""

    learner: HypernetworkLearner
    expert: int

    def route(self, x: Tensor, routing: Routing) -> Routes:
        """Route all rows to the task's weights."""
        groups = 1 if routing == "batch" else len(x)
        expert = np.full(groups, self.expert)
        scores = np.full((len(self.learner.experts), groups), inf)
        scores[expert, np.arange(groups)] = 0.0
        return Routes.flat(expert, scores)

    def probabilities(self, x: Tensor, routes: Routes, outputs: int) -> FloatArray:
        """Return [rows, outputs]: the softmax with the chosen weights."""
        chosen, result = np.broadcast_to(routes.expert, len(x)), np.zeros((len(x), outputs))
        for expert in np.unique(chosen):
            rows = np.flatnonzero(chosen == expert)
            logits = self.learner.rule.logits_of(int(expert), x[torch.from_numpy(rows)])
            result[rows] = np.asarray(logits[:, :outputs].double().softmax(dim=1).cpu())
        return result

    def gate_multiply_adds(self, asked: float, rows: int) -> float:
        """Return 0: there is no gate."""
        return 0.0
