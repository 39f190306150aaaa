"""The joint score: choice of an expert from all experts' evidence on a row, calibrated on their replay.

One softmax regression over (expert, class) pairs; an expert's probability is the sum over its classes. The label of a
replay row is the expert that keeps it and the row's class, so task labels are not needed. The inputs are every expert's
evidence: the parts of its score, its logits of the classes on which it was trained, the distances to the nearest rows
that it keeps of these classes, and the leading principal components of its features. Nothing is tuned per scenario.
`calibration.py` determines when it is fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from scipy.special import log_softmax, softmax

from hge.experts.joint.regression import softmax_regression
from hge.gating.tree import FloatArray, IntArray

MAX_FEATURES, MAX_FEATURES_TOTAL = 128, 2048
"""Maximum number of principal components of the features: of one expert, and of all experts together."""
FEATURE_SCALE = 0.1
"""Scale of the features in the prior: they are many and less informative than scores."""
TAIL = 3.0
"""Number of standard deviations beyond which a column grows logarithmically."""
MIN_CLASS_SHARE = 0.02
"""A class with fewer replay rows than this share of the most frequent class's is attributed to an outlier."""
TINY = 1e-9


@dataclass(frozen=True)
class Evidence:
    """Evidence of one expert on some rows."""

    parts: FloatArray
    """[rows, parts] of its score; NaN in parts that carry no information."""
    logits: FloatArray
    """[rows, outputs]"""
    features: FloatArray
    """[rows, features] before the last layer; possibly none."""
    distances: FloatArray | None = None
    """[rows, outputs] to the nearest rows of each class that the expert keeps; NaN for other classes. None while rows
    cannot be compared."""


@dataclass(frozen=True)
class EvidenceScaler:
    """Standardises an expert's evidence by its own replay rows and compresses long tails.

    A row of another domain may score thousands of standard deviations away, where only the order of magnitude matters.
    """

    classes: IntArray
    """The outputs on which the expert was trained, without outliers."""
    parts: IntArray
    centre: FloatArray
    spread: FloatArray
    feature_mean: FloatArray
    feature_basis: FloatArray

    @classmethod
    def fit(cls, own: Evidence, labels: IntArray) -> EvidenceScaler:
        """Fit to an expert's evidence on its own replay."""
        outputs, count = np.unique(labels, return_counts=True)
        classes = outputs[count > MIN_CLASS_SHARE * count.max()]
        parts = np.flatnonzero(np.isfinite(own.parts).all(axis=0))
        near = own.distances is not None
        values = _values(own, parts, classes, near=near)
        mean = own.features.mean(axis=0)
        _, spreads, directions = np.linalg.svd(own.features - mean, full_matrices=False)
        spreads = spreads[:MAX_FEATURES] / len(own.features) ** 0.5
        kept = spreads > 1e-4 * max(spreads.max(initial=0), TINY)
        basis = np.ascontiguousarray(directions[:MAX_FEATURES][kept].T / spreads[kept])
        known = np.ma.masked_invalid(values)
        centre, apart = known.mean(axis=0).filled(0.0), known.std(axis=0).filled(0.0)
        return cls(classes, parts, centre, apart + TINY, mean, basis)

    def transform(self, evidence: Evidence) -> FloatArray:
        """Return the standardised evidence [rows, columns]."""
        values = _values(evidence, self.parts, self.classes, near=self.near)
        coordinates = (evidence.features - self.feature_mean) @ self.feature_basis
        columns = np.concatenate([(values - self.centre) / self.spread, coordinates], axis=1)
        compressed: FloatArray = TAIL * np.arcsinh(np.nan_to_num(columns, nan=0.0) / TAIL)
        return compressed

    def truncated(self, features: int) -> EvidenceScaler:
        """Return a scaler of at most `features` features: the first columns of this one."""
        return replace(self, feature_basis=np.ascontiguousarray(self.feature_basis[:, :features]))

    @property
    def near(self) -> bool:
        """Whether distances to kept rows were known when this was fitted."""
        return len(self.centre) > len(self.parts) + len(self.classes)

    @property
    def scale(self) -> FloatArray:
        """Prior scale of each column."""
        few = np.ones(len(self.centre))
        return np.concatenate([few, np.full(self.feature_basis.shape[1], FEATURE_SCALE)])


def _values(evidence: Evidence, parts: IntArray, classes: IntArray, *, near: bool) -> FloatArray:
    """Return the evidence but for the features: [rows, values]; NaN where it carries no information."""
    values = [evidence.parts[:, parts], evidence.logits[:, classes]]
    if near:
        values.append(np.full_like(values[1], np.nan) if evidence.distances is None else evidence.distances[:, classes])
    return np.concatenate(values, axis=1)


ARRAYS = ("mean", "scale", "weights", "bias")


@dataclass(frozen=True)
class JointScore:
    """A fitted softmax regression over (expert, class) pairs."""

    scalers: tuple[EvidenceScaler, ...]
    mean: FloatArray
    scale: FloatArray
    weights: FloatArray
    """[columns, pairs]"""
    bias: FloatArray
    usual_doubt: float
    """Standard deviation of -log P(chosen expert) over the replay."""

    def arrays(self) -> dict[str, FloatArray | IntArray]:
        """Return all arrays by name, the scalers' by number and name."""
        own: dict[str, FloatArray | IntArray] = {name: getattr(self, name) for name in ARRAYS}
        for number, scaler in enumerate(self.scalers):
            own |= {f"{number}.{field.name}": getattr(scaler, field.name) for field in fields(EvidenceScaler)}
        return own

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], scalers: int, usual_doubt: float) -> JointScore:
        """Restore a joint score from what `arrays` returned."""
        made = [
            EvidenceScaler(**{f.name: arrays[f"{number}.{f.name}"] for f in fields(EvidenceScaler)})
            for number in range(scalers)
        ]
        return cls(tuple(made), **{name: arrays[name] for name in ARRAYS}, usual_doubt=usual_doubt)

    @property
    def pair_expert(self) -> IntArray:
        """[pairs] The expert of each pair."""
        return np.repeat(np.arange(len(self.scalers)), [len(scaler.classes) for scaler in self.scalers])

    @property
    def pair_class(self) -> IntArray:
        """[pairs] The class of each pair."""
        return np.concatenate([scaler.classes for scaler in self.scalers])

    def pairs(self, evidence: Sequence[Evidence]) -> FloatArray:
        """Return [rows, pairs]: log-probabilities of expert and class, from the evidence of every expert."""
        return self.pairs_from_columns(
            np.concatenate([r.transform(e) for r, e in zip(self.scalers, evidence, strict=True)], axis=1)
        )

    @property
    def spans(self) -> list[slice]:
        """Column range of each expert."""
        ends = np.cumsum([len(scaler.scale) for scaler in self.scalers]).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    def pairs_from_columns(self, columns: FloatArray) -> FloatArray:
        """Return the same from the columns of the scalers."""
        result: FloatArray = log_softmax((columns - self.mean) * self.scale @ self.weights + self.bias, axis=1)
        return result

    def experts(self, pairs: FloatArray) -> FloatArray:
        """Return [experts, rows]: log-probabilities of the experts alone."""
        first_pair = np.searchsorted(self.pair_expert, np.arange(len(self.scalers)))
        result: FloatArray = np.logaddexp.reduceat(pairs, first_pair, axis=1).T
        return result

    def mixture(self, evidence: Sequence[Evidence], outputs: int, excluded: Sequence[int] = ()) -> FloatArray:
        """Return [rows, outputs]: class probabilities, a mean of two estimates (results/choices/joint_prototype.json).

        The evidence of `excluded` experts is used, but not their predictions.

        The experts' predictions, weighted by their probabilities, are the most accurate for their own classes; those of
        the regression use the evidence of the other experts, but are learned from the replay alone.
        """
        pairs = self.pairs(evidence)
        pairs[:, np.isin(self.pair_expert, excluded)] = -np.inf
        class_of_pair = np.zeros((len(self.bias), outputs))
        known = self.pair_class < outputs
        class_of_pair[np.flatnonzero(known), self.pair_class[known]] = 1
        result = np.exp(pairs) @ class_of_pair
        for probability, own in zip(np.exp(self.experts(pairs)), evidence, strict=True):
            result += probability[:, None] * softmax(own.logits[:, :outputs], axis=1)
        normalised: FloatArray = result / result.sum(axis=1, keepdims=True)
        return normalised


def fit_joint(
    scalers: Sequence[EvidenceScaler],
    columns: FloatArray,
    expert: IntArray,
    label: IntArray,
    iterations: int,
    device: torch.device,
) -> JointScore:
    """Fit to replay rows: [rows, columns] from all scalers, the expert that keeps each row, and its class.

    Maximum a posteriori under a standard normal prior on the weights of standardised columns; every expert has the same
    total weight, whatever the size of its replay.

    >>> scores = np.array([[0.0, 1, 8, 9], [8, 9, 0, 1]])  # of two experts, for four rows
    >>> own = [Evidence(s[:, None], np.zeros((4, 2)), np.zeros((4, 0))) for s in scores]
    >>> scalers = [EvidenceScaler.fit(e, np.array([k] * 4)) for k, e in enumerate(own)]
    >>> columns = np.concatenate([r.transform(e) for r, e in zip(scalers, own)], axis=1)
    >>> joint = fit_joint(scalers, columns, np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1]), 99, torch.device("cpu"))
    >>> joint.experts(joint.pairs(own)).argmax(axis=0).tolist()
    [0, 0, 1, 1]
    """
    pair = _pair_of(scalers, expert, label)
    known = pair >= 0
    columns, expert, pair = columns[known], expert[known], pair[known]
    mean = columns.mean(axis=0)
    scale = np.concatenate([r.scale for r in scalers]) / (columns.std(axis=0) + TINY)
    x = (columns - mean) * scale
    weight = 1 / np.maximum(np.bincount(expert, minlength=len(scalers)), 1)[expert]
    weight *= len(x) / weight.sum()
    pairs = sum(len(scaler.classes) for scaler in scalers)
    weights, bias = softmax_regression(x, pair, weight, pairs, iterations, device)
    joint = JointScore(tuple(scalers), mean, scale, weights, bias, usual_doubt=0.0)
    doubt = -joint.experts(log_softmax(x @ weights + bias, axis=1)).max(axis=0)
    return replace(joint, usual_doubt=float(doubt.std()))


def _pair_of(scalers: Sequence[EvidenceScaler], expert: IntArray, label: IntArray) -> IntArray:
    """Return each row's pair; -1 where the class is not among its expert's."""
    number = {pair: i for i, pair in enumerate((e, int(c)) for e, scaler in enumerate(scalers) for c in scaler.classes)}
    return np.array([number.get((int(e), int(c)), -1) for e, c in zip(expert, label, strict=True)])
