"""A hypernetwork: it generates the weights of a network from the embedding of a task, one unit's row at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import torch
from torch import Tensor, nn

from hge.baselines.trained import Trained
from hge.experts.pool_spec import copy_tensors

EMBEDDING = 32
"""Of a task, and of a row of weights."""
HIDDEN = 100

Weights = dict[str, Tensor]


class Hypernetwork(nn.Module):
    """Task embedding -> the weights of a network, which begin as the network's own.

    A row is all weights into one unit or channel, or all biases of a layer. Its embedding and that of the task pass
    through two hidden layers, which all rows share, to a linear head, which those of one tensor share.

    Of the hidden values, a head sees by how much they differ from the mean of its rows, divided by the root of their
    number. Else a step of Adam would move every generated weight by many times its learning rate, and all rows
    alike, until every unit of a layer is at 0 for every input: with half of the seeds nothing was learned.

    >>> hypernetwork = Hypernetwork(nn.Linear(3, 2))
    >>> {name: tuple(weight.shape) for name, weight in hypernetwork(torch.zeros(EMBEDDING)).items()}
    {'weight': (2, 3), 'bias': (2,)}
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.shapes = {name: weight.shape for name, weight in net.named_parameters()}
        self.initial = [weight.detach().clone() for weight in net.parameters()]
        self.rows = [shape[0] if len(shape) > 1 else 1 for shape in self.shapes.values()]
        self.embeddings = nn.Parameter(torch.randn(sum(self.rows), EMBEDDING))
        layers = [nn.Linear(2 * EMBEDDING, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        lengths = [shape.numel() // rows for shape, rows in zip(self.shapes.values(), self.rows, strict=True)]
        self.heads = nn.ModuleList(nn.Linear(HIDDEN, length) for length in lengths)
        for weight in self.heads.parameters():
            nn.init.zeros_(weight)

    def forward(self, task: Tensor) -> Weights:
        """Return the weights for a task."""
        hidden = self.body(torch.cat([task.expand(len(self.embeddings), -1), self.embeddings], dim=1)) / sqrt(HIDDEN)
        made = zip(self.shapes.items(), self.initial, self.heads, hidden.split(self.rows), strict=True)
        return {name: first + head(_apart(own)).view(shape) for (name, shape), first, head, own in made}


def _apart(hidden: Tensor) -> Tensor:
    """Return hidden values [rows, values] by how much the rows differ from their mean; as they are, if there is one."""
    return hidden - hidden.mean(dim=0) if len(hidden) > 1 else hidden


class TaskWeights:
    """A hypernetwork, the embeddings of the tasks so far, and what it generated for the others when a task began."""

    rows_kept = 0

    def __init__(self, hypernetwork: Hypernetwork, draw: Callable[[int], Tensor], factor: float) -> None:
        self.hypernetwork, self.draw, self.factor = hypernetwork, draw, factor
        self.embeddings = [draw(0)]
        self.begin(0)

    @property
    def parameters(self) -> int:
        """Weights and embeddings of the hypernetwork, and the weights that it adds to."""
        own = [*self.hypernetwork.parameters(), *self.hypernetwork.initial, *self.embeddings]
        return sum(tensor.numel() for tensor in own)

    def begin(self, task: int) -> None:
        """Train on a task; the embedding of a new one is drawn."""
        self.task = task
        if task == len(self.embeddings):
            self.embeddings.append(self.draw(task))
        self.targets = {n: _copied(self.weights(n)) for n in range(len(self.embeddings)) if n != task}
        self._train(task)

    def _train(self, task: int) -> None:
        self.embedding = nn.Parameter(self.embeddings[task].clone())
        self.embeddings[task] = self.embedding.data
        self.trained = Trained(_WithTask(self.hypernetwork, self.embedding))

    def weights(self, task: int) -> Weights:
        """Return the weights for a task, without a gradient."""
        with torch.no_grad():
            found: Weights = self.hypernetwork(self.embeddings[task])
        return found

    def step(self, loss: Callable[[Weights], Tensor]) -> Tensor | None:
        """Take a step; return the loss before it, or None, with nothing changed, if its gradient is not finite.

        The penalty is that of the weights which the loss alone would lead to: its gradient is taken a step ahead.
        """
        value = loss(self.hypernetwork(self.embedding))
        gradients = self.trained.gradient(value)
        if self.targets:
            before = [weight.detach().clone() for weight in self.trained.weights]
            with torch.no_grad():
                for weight, gradient in zip(self.trained.weights, gradients, strict=True):
                    weight.sub_(self.learning_rate * gradient)
            ahead = self.trained.gradient(self.factor * self.penalty())
            with torch.no_grad():
                for weight, old in zip(self.trained.weights, before, strict=True):
                    weight.copy_(old)
            gradients = [own + other for own, other in zip(gradients, ahead, strict=True)]
        return value.detach() if self.trained.update(gradients) else None

    def penalty(self) -> Tensor:
        """Return the squared distance from what was generated for the other tasks, a mean over these."""
        apart = [
            (made - target[name]).square().sum()
            for task, target in self.targets.items()
            for name, made in self.hypernetwork(self.embeddings[task]).items()
        ]
        return torch.stack(apart).sum() / len(self.targets)

    @property
    def learning_rate(self) -> float:
        """Of the step ahead, and of the optimiser."""
        return float(self.trained.optimiser.param_groups[0]["lr"])

    def state(self) -> dict[str, Tensor]:
        """Return copies of the hypernetwork, the embeddings, and what was generated for the others."""
        found = self.trained.state()
        found |= {"task": torch.tensor(self.task), "embeddings": torch.stack(self.embeddings).cpu()}
        for task, target in self.targets.items():
            found |= copy_tensors({f"target.{task}.{name}": weight for name, weight in target.items()}, on_host=True)
        return found

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        device = self.hypernetwork.embeddings.device
        self.task = int(tensors["task"])
        self.embeddings = [embedding.to(device, copy=True) for embedding in tensors["embeddings"]]
        self._train(self.task)
        self.trained.load_state(tensors)
        others = [task for task in range(len(self.embeddings)) if task != self.task]
        names = self.hypernetwork.shapes
        self.targets = {t: {n: tensors[f"target.{t}.{n}"].to(device, copy=True) for n in names} for t in others}


class _WithTask(nn.Module):
    """What is trained on a task: the hypernetwork and the embedding of this task, not those of others."""

    def __init__(self, hypernetwork: Hypernetwork, task: nn.Parameter) -> None:
        super().__init__()
        self.hypernetwork, self.task = hypernetwork, task


def _copied(weights: Weights) -> Weights:
    return {name: weight.clone() for name, weight in weights.items()}
