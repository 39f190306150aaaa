"""The reference pool: one network after another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import nan

import torch
from torch import Tensor, nn

from hge.core.randomness import Keys
from hge.core.types import Batch, as_float
from hge.experts.features import features_and_logits
from hge.experts.inputs import flip_and_crop, frozen_scaling, shortened
from hge.experts.joint.model import Evidence
from hge.experts.optim import (
    arithmetic,
    autocast,
    build_optimiser,
    check_state,
    clipping,
    gradient_norm,
    gradients,
    masked_step,
    multiply_adds,
    network_mode,
    state_of,
)
from hge.experts.pool import Costs, train_one_by_one
from hge.experts.pool_spec import (
    COUNTS,
    PoolSpec,
    as_evidence,
    copy_tensors,
    count_tensors,
    read_rows_limited,
    share_modules,
)
from hge.experts.score_set import ScoreSet
from hge.experts.scores import Score, ScoreTrainer
from hge.experts.scores.space import Space
from hge.experts.views import training_loss
from hge.experts.weight_average import WeightAverage
from hge.gating.switch_detection import LossStats
from hge.gating.tree import FloatArray


class EagerPool:
    """One network after the other, without optimisations: the reference for faster pools."""

    def __init__(self, spec: PoolSpec, keys: Keys, device: torch.device) -> None:
        self.spec = spec
        self.keys = keys
        self.device = device
        self.score_set = ScoreSet(spec, device)
        self.members: list[_Member] = []
        self.limited = torch.zeros((), device=device)
        """Number of training rows that were too long."""

    @property
    def rows_limited(self) -> int:
        """Number of training rows that were too long, and were shortened."""
        return int(self.limited)

    @property
    def scores_all_at_once(self) -> bool:
        """Experts are queried one after the other."""
        return False

    @property
    def scores_are_costly(self) -> bool:
        """Whether the score has a network."""
        return self.members[0].score.network is not None

    def create(self, expert: int) -> None:
        """Add an untrained expert, its weights drawn by (seed, expert)."""
        assert expert == len(self.members), "experts are numbered in order of creation"
        net, score = self.spec.build(self.keys, expert, self.device, self.score_set.space)
        if any(share_modules(net, member.net) for member in self.members):
            raise ValueError("net: got the same module from the factory twice, expected a new one for each expert")
        optimiser = build_optimiser(self.spec.optimiser, net.parameters())
        self.members.append(_Member(net, optimiser, self.score_set.add(score), self.spec.build_average(net)))

    def finish_deferred(self) -> None:
        """Fix the sketches' space."""
        self.score_set.finish_deferred()

    @torch.no_grad()
    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the training loss with batch statistics; running statistics are not changed."""
        net = self.members[expert].net
        with (
            self._arithmetic(),
            self._autocast(),
            self.keys.seeded("dropout", step, expert, device=self.device),
            network_mode(net, training=False, rows=len(batch), batch_statistics=True),
        ):
            return float(training_loss(net, self._augmented(batch, expert, step), batch.y))

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Take one optimiser step on the expert and train its score."""
        self.score_set.prepare(expert)
        member = self.members[expert]
        buffers = [(buffer, buffer.clone()) for buffer in member.net.buffers()]
        with network_mode(member.net, training=True, rows=len(batch)):
            loss = self._step(expert, batch, step)
        if loss is None:
            for buffer, before in buffers:
                buffer.copy_(before)
            return nan
        self._follow(member)
        noise = self.keys.generator("noise", step, expert, device=self.device)
        self.score_set.train(expert, batch.x, batch.y, noise)
        self.limited += self._limited(batch.x)[1]
        return loss

    def rehearse(self, expert: int, batch: Batch, step: int) -> None:
        """Take one optimiser step on the network alone."""
        member = self.members[expert]
        buffers = [(buffer, buffer.clone()) for buffer in member.net.buffers()]
        with network_mode(member.net, training=True, rows=len(batch)), frozen_scaling(member.net):
            loss = self._step(expert, batch, step)
        for buffer, before in buffers:
            buffer.copy_(before)
        if loss is not None:
            self._follow(member)

    def _step(self, expert: int, batch: Batch, step: int) -> float | None:
        """Take one optimiser step on the network; return the loss.

        If the gradient is not finite, there is no step, and None is returned.
        """
        member = self.members[expert]
        with self._arithmetic(), self.keys.seeded("dropout", step, expert, device=self.device):
            with self._autocast():
                loss = training_loss(member.net, self._augmented(batch, expert, step), batch.y)
            member.optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            norm = gradient_norm(gradients(member.net))
            if not norm.isfinite():
                return None
            masked_step(member.optimiser, torch.zeros_like(norm), clipping(norm))
        return float(loss.detach())

    def _follow(self, member: _Member) -> None:
        """Update the average of a network that was trained, if there is one."""
        if member.average is not None:
            member.average.update(skip=torch.zeros((), device=self.device))

    def train_run(
        self,
        expert: int,
        items: Iterable[tuple[int, Batch]],
        losses: LossStats,
        epsilon: float,
        ordered_pairs: Sequence[tuple[int, int]] = (),
    ) -> Iterator[float]:
        """Compute the loss of each batch before training on it."""
        return train_one_by_one(self, expert, items, losses, epsilon, ordered_pairs)

    def scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query each expert in turn."""
        return self.score_set.scores(experts, x)

    def batch_scores(self, experts: Sequence[int], x: Tensor) -> FloatArray:
        """Query each expert in turn."""
        return self.score_set.batch_scores(experts, x)

    def optimism(self, expert: int) -> float:
        """Ask the expert's score."""
        return self.score_set.optimism(expert)

    def sketches(self, experts: Sequence[int], x: Tensor, *, together: bool) -> FloatArray:
        """Query each expert in turn."""
        return self.score_set.sketches(experts, x, together=together)

    @torch.no_grad()
    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the logits with running statistics."""
        with self._arithmetic(), self._autocast():
            out: Tensor = self.members[expert].prediction_net(as_float(x))
        return out.float().nan_to_num()

    @torch.no_grad()
    def evidence(self, experts: Sequence[int], x: Tensor) -> list[Evidence]:
        """Return the parts of the scores, the logits and the features."""
        members, x = [self.members[expert] for expert in experts], as_float(x)
        with self._arithmetic(), self._autocast():
            parts = self.members[0].score.parts([member.score.gate_tensors() for member in members], x)
            both = [features_and_logits(member.prediction_net, x) for member in members]
        return [as_evidence(own, logits, features) for own, (features, logits) in zip(parts, both, strict=True)]

    @property
    def space(self) -> Space:
        """The space that the sketches of all experts share."""
        return self.score_set.space

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Return copies of the networks, the optimisers' states, and the score's row counts."""
        trainer = self.members[expert].trainer
        counts = count_tensors(trainer.rows, trainer.rows_at_refresh)
        return copy_tensors(self.members[expert].state, on_host=on_host) | counts

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Copy all tensors into the expert."""
        member = self.members[expert]
        check_state(tensors, member.state | count_tensors(0, 0))
        for name, tensor in member.state.items():
            tensor.copy_(tensors[name])
        member.trainer.rows, member.trainer.rows_at_refresh = (int(tensors[name]) for name in COUNTS)

    def shared_state(self) -> dict[str, Tensor]:
        """Return a copy of the sketches' space and of the number of limited rows."""
        return copy_tensors(self.score_set.space.state() | {"rows_limited": self.limited}, on_host=True)

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `shared_state` returned."""
        limited = read_rows_limited(tensors)
        self.score_set.space.load_state(tensors)
        self.limited.copy_(limited)

    def costs(self) -> Costs:
        """Count multiply-adds."""
        row = torch.zeros(1, *self.spec.shape, device=self.device)
        return Costs(multiply_adds(self.members[0].net, row), *self.score_set.costs())

    def memory(self) -> dict[str, int]:
        """Return the bytes of weights, statistics and optimisers' states."""
        per_expert = [member.bytes for member in self.members]
        return {"bytes_per_expert": max(per_expert, default=0), "device_bytes": sum(per_expert), "host_bytes": 0}

    def _augmented(self, batch: Batch, expert: int, step: int) -> Tensor:
        augmentation = self.spec.draw_augmentation(self.keys, expert, step, len(batch), self.device)
        return flip_and_crop(self._limited(batch.x)[0], augmentation)

    def _limited(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs in training, and how many rows were too long."""
        scaled, x = self.spec.scaled or x.dtype == torch.uint8, as_float(x)
        return (x, torch.zeros_like(self.limited)) if scaled else shortened(x)

    def _arithmetic(self) -> AbstractContextManager[None]:
        return arithmetic(self.spec.precision, self.device)

    def _autocast(self) -> AbstractContextManager[None]:
        return autocast(self.spec.precision, self.device)


@dataclass
class _Member:
    net: nn.Module
    optimiser: torch.optim.Optimizer
    trainer: ScoreTrainer
    average: WeightAverage | None

    @property
    def prediction_net(self) -> nn.Module:
        """The network used for prediction."""
        return self.net if self.average is None else self.average.net

    @property
    def score(self) -> Score:
        """Its score."""
        return self.trainer.score

    @property
    def state(self) -> dict[str, Tensor]:
        """All tensors that training changes, by name, not copied."""
        average = {} if self.average is None else self.average.state()
        own = state_of(self.net, self.optimiser, "net") | state_of(self.score, self.score.optimiser, "score")
        return own | average

    @property
    def bytes(self) -> int:
        """Bytes of the weights, the score, and both optimisers' states."""
        return sum(tensor.nbytes for tensor in self.state.values())
