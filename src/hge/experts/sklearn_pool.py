"""A pool whose experts are scikit-learn classifiers: `partial_fit` and `predict_proba` instead of networks."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan, prod
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from torch import Tensor

from hge.core.randomness import Keys
from hge.core.types import Batch, as_float
from hge.experts.classifier_state import HELD, as_tensors, from_tensors, held_by, hold
from hge.experts.inputs import Standardise
from hge.experts.joint.model import Evidence
from hge.experts.optim import check_state, state_of
from hge.experts.pool import Costs, train_one_by_one
from hge.experts.pool_spec import COUNTS, PoolSpec, copy_tensors, count_tensors
from hge.experts.score_set import ScoreSet
from hge.experts.scores import ScoreTrainer
from hge.experts.scores.space import Space
from hge.gating.switch_detection import LossStats
from hge.gating.tree import FloatArray

FLOOR = 1e-6
"""Least probability of a class: limits what one row can add to a loss. Naive Bayes is often sure and wrong."""
CLASSIFIER = "classifier."
"""Prefix of the names of a classifier's tensors."""


class ClassifierPool:
    """One clone of a classifier per expert, on the CPU; scores are those of the other pools."""

    def __init__(self, spec: PoolSpec, keys: Keys, prototype: Any) -> None:
        self.spec, self.keys, self.prototype = spec, keys, prototype
        self.device = torch.device("cpu")
        self.score_set = ScoreSet(spec, self.device)
        self.members: list[_Member] = []
        self.classes = np.arange(spec.outputs)

    @property
    def rows_limited(self) -> int:
        """None: a classifier gets the rows as they are."""
        return 0

    @property
    def scores_all_at_once(self) -> bool:
        """Experts are queried one after the other."""
        return False

    @property
    def scores_are_costly(self) -> bool:
        """Whether the score has a network."""
        return self.score_set.trainers[0].score.network is not None

    def create(self, expert: int) -> None:
        """Add an untrained clone; a random state that the prototype leaves open is drawn by (seed, expert)."""
        assert expert == len(self.members), "experts are numbered in order of creation"
        score = self.score_set.add(self.spec.build_score(self.keys, expert, self.device, self.score_set.space))
        template = self._clone(expert)
        self._fit(template, np.zeros((1, prod(self.spec.shape))), np.zeros(1, np.int64), first=True)
        scale = Standardise(self.spec.shape).eval() if self.spec.scaled else None
        self.members.append(_Member(None, template, scale, np.zeros(self.spec.outputs, bool), score))

    def try_out(self, x: Tensor) -> None:
        """Train and query a clone on some rows, so that a classifier that cannot do it fails before any training."""
        classifier, rows = self._clone(0), self._rows(Standardise(self.spec.shape) if self.spec.scaled else None, x)
        self._fit(classifier, rows, np.zeros(len(rows), np.int64), first=True)
        with np.errstate(all="ignore"):
            found = np.shape(classifier.predict_proba(rows))
        if found != (len(rows), len(self.classes)):
            raise ValueError(f"got probabilities of shape {found}, expected {(len(rows), len(self.classes))}")

    def finish_deferred(self) -> None:
        """Fix the sketches' space."""
        self.score_set.finish_deferred()

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        """Return the mean negative logarithm of the labels' probabilities; NaN if a row has none."""
        found = self._probabilities(expert, batch.x)
        return float(-np.log(found[np.arange(len(batch)), batch.y.numpy()]).mean())

    def train(self, expert: int, batch: Batch, step: int) -> float:
        """Call `partial_fit` on the batch and train the score; rows that the classifier refuses are not learned."""
        loss, member = self.loss(expert, batch, step), self.members[expert]
        if not isfinite(loss) or not as_float(batch.x).isfinite().all():
            return nan
        before = copy_tensors(member.scale_state, on_host=True)
        if member.scale is not None:
            member.scale.train()
            member.scale(as_float(batch.x))
            member.scale.eval()
        try:
            self._learn(expert, batch)
        except ValueError:  # SGDClassifier: its weights overflow
            for name, tensor in member.scale_state.items():
                tensor.copy_(before[name])
            return nan
        self.score_set.prepare(expert)
        noise = self.keys.generator("noise", step, expert, device=self.device)
        self.score_set.train(expert, batch.x, batch.y, noise)
        return loss

    def rehearse(self, expert: int, batch: Batch, step: int) -> None:
        """Call `partial_fit` on remembered rows."""
        if as_float(batch.x).isfinite().all():
            try:
                self._learn(expert, batch)
            except ValueError:  # if that damaged it, the next loss is not finite, and it is rolled back
                return

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

    def logits(self, expert: int, x: Tensor) -> Tensor:
        """Return the logarithms of the probabilities; the same for all classes if a row has none."""
        found = np.nan_to_num(self._probabilities(expert, x), nan=1 / self.spec.outputs)
        return torch.from_numpy(np.log(found)).float()

    def evidence(self, experts: Sequence[int], x: Tensor) -> list[Evidence]:
        """Raise an error: a joint score needs features, which classifiers do not have."""
        raise ValueError("joint: got True with expert=…, expected joint=False: only networks have features")

    @property
    def space(self) -> Space:
        """The space that the sketches of all experts share."""
        return self.score_set.space

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, Tensor]:
        """Return copies of the classifier's arrays, the scaling and the score.

        A classifier whose state is not arrays can only stay in memory (`on_host=False`).
        """
        member = self.members[expert]
        own = member.template_state if member.classifier is None else as_tensors(member.classifier, member.template)
        if own is None and on_host:
            name = type(member.classifier).__name__
            raise ValueError(
                f"expert: got {name}, whose state is not arrays; keep the model with joblib or pickle at your own risk"
            )
        own = {HELD: hold(member.classifier)} if own is None else own
        return {CLASSIFIER + name: tensor for name, tensor in own.items()} | copy_tensors(member.state, on_host=on_host)

    @torch.no_grad()
    def load_state(self, expert: int, tensors: Mapping[str, Tensor]) -> None:
        """Replace the classifier, and copy all other tensors."""
        member, held = self.members[expert], tensors.get(CLASSIFIER + HELD)
        own = member.template_state if held is None else {HELD: torch.zeros((), dtype=torch.int64)}
        check_state(tensors, {CLASSIFIER + name: tensor for name, tensor in own.items()} | member.state)
        if held is not None:
            member.classifier = held_by(held)
        elif tensors["seen"].any():
            member.classifier = from_tensors({name: tensors[CLASSIFIER + name] for name in own}, member.template)
        else:
            member.classifier = None
        for name, tensor in member.tensors.items():
            tensor.copy_(tensors[name])
        member.trainer.rows, member.trainer.rows_at_refresh = (int(tensors[name]) for name in COUNTS)

    def shared_state(self) -> dict[str, Tensor]:
        """Return a copy of the sketches' space."""
        return copy_tensors(self.score_set.space.state(), on_host=True)

    def load_shared_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the sketches' space."""
        self.score_set.space.load_state(tensors)

    def costs(self) -> Costs:
        """Count multiply-adds; a classifier counts as a linear one, whatever it is."""
        return Costs(float(prod(self.spec.shape) * self.spec.outputs), *self.score_set.costs())

    def memory(self) -> dict[str, int]:
        """Return the bytes of classifiers and scores."""
        per_expert = [
            len(pickle.dumps(member.classifier)) + sum(tensor.nbytes for tensor in member.state.values())
            for member in self.members
        ]
        return {"bytes_per_expert": max(per_expert, default=0), "device_bytes": sum(per_expert), "host_bytes": 0}

    def _clone(self, expert: int) -> Any:
        new = clone(self.prototype)
        seed = self.keys.integer("weights", expert) % 2**31
        seeds = {name: value for name, value in new.get_params().items() if name.split("__")[-1] == "random_state"}
        new.set_params(**{name: seed for name, value in seeds.items() if not isinstance(value, Integral)})
        return new

    def _learn(self, expert: int, batch: Batch) -> None:
        """Call `partial_fit`."""
        member, labels = self.members[expert], batch.y.numpy()
        classifier = self._clone(expert) if member.classifier is None else member.classifier
        self._fit(classifier, self._rows(member.scale, batch.x), labels, first=member.classifier is None)
        member.classifier = classifier
        member.seen[labels] = True

    def _fit(self, classifier: Any, rows: FloatArray, labels: npt.NDArray[np.int64], *, first: bool) -> None:
        with np.errstate(all="ignore"):  # most classes have no rows
            classifier.partial_fit(rows, labels, **({"classes": self.classes} if first else {}))

    @torch.no_grad()
    def _rows(self, scale: Standardise | None, x: Tensor) -> FloatArray:
        """Return flat rows in double precision, scaled."""
        x = as_float(x)
        return np.asarray((x if scale is None else scale(x)).flatten(1).double())

    def _probabilities(self, expert: int, x: Tensor) -> FloatArray:
        """Return [rows, outputs], at least `FLOOR`; NaN for rows that are not finite or have no finite probability.

        Labels that the classifier was not trained on have none, whatever it says about them.
        """
        member, outputs = self.members[expert], self.spec.outputs
        rows = self._rows(member.scale, x)
        found, usable = np.full((len(rows), outputs), nan), np.isfinite(rows).all(axis=1)
        if member.classifier is None:
            found[usable] = 1 / outputs
        elif usable.any():
            with np.errstate(all="ignore"):
                given = np.asarray(member.classifier.predict_proba(rows[usable]), np.float64)[:, member.seen]
            known = np.isfinite(given)
            given = np.where(known, given, 0.0)
            total = given.sum(axis=1, keepdims=True)
            shares = np.divide(given, total, out=np.full_like(given, 1 / given.shape[1]), where=total > 0)
            part = np.zeros((len(given), outputs))
            part[:, member.seen] = np.where(known.any(axis=1, keepdims=True), shares, nan)
            found[usable] = part
        floored: FloatArray = np.maximum(found, FLOOR)  # keeps NaN
        return floored


@dataclass
class _Member:
    classifier: Any
    """None until it is trained."""
    template: Any
    """The same classifier after one row of zeros: the shapes of its arrays."""
    scale: Standardise | None
    seen: npt.NDArray[np.bool_]
    """[outputs] the labels that it was trained on."""
    trainer: ScoreTrainer

    @property
    def scale_state(self) -> dict[str, Tensor]:
        """The statistics of its inputs, not copied."""
        return {} if self.scale is None else {f"scale.{name}": tensor for name, tensor in self.scale.named_buffers()}

    @property
    def template_state(self) -> dict[str, Tensor]:
        """The arrays of a classifier that is not trained, which count for nothing but their shapes."""
        return as_tensors(self.template, self.template) or {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors but the classifier's that training changes, by name, not copied."""
        score = self.trainer.score
        return {"seen": torch.from_numpy(self.seen)} | self.scale_state | state_of(score, score.optimiser, "score")

    @property
    def state(self) -> dict[str, Tensor]:
        """These and the score's row counts."""
        return self.tensors | count_tensors(self.trainer.rows, self.trainer.rows_at_refresh)
