"""Build a learner from an estimator's parameters, which are validated here."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, get_args

import torch
from sklearn.base import clone

from hge.core.config import LearnerConfig, OnBadBatch, OptimiserConfig, Precision, ScoreConfig, ScoreName
from hge.core.events import Emit
from hge.core.randomness import Keys
from hge.estimator.memory_need import check_memory
from hge.estimator.validation import (
    FloatRows,
    check_callback,
    check_choice,
    check_classifier,
    check_count,
    check_networks,
    check_seed,
    pick_factory,
    try_out,
)
from hge.experts.backbones import BACKBONES
from hge.experts.eager import EagerPool
from hge.experts.fast.host_pool import build_fast_pool
from hge.experts.joint.discriminant import WIDEST
from hge.experts.networks import AUTOENCODERS, NETS, Shape
from hge.experts.optim import resolve_device
from hge.experts.pool import ExpertPool
from hge.experts.pool_spec import PoolSpec
from hge.experts.sklearn_pool import ClassifierPool
from hge.learning.learner import Learner
from hge.learning.online import Routing


def check_any_time(model: Any) -> None:
    """Raise an error about the parameters of a `GatedExperts` that take effect immediately."""
    check_count("batch_size", model.batch_size)
    check_choice("routing", model.routing, get_args(Routing))
    check_choice("on_bad_batch", model.on_bad_batch, get_args(OnBadBatch))
    check_callback(model.on_event)


def check_parameters(model: Any) -> None:
    """Raise the error that the parameters of a `GatedExperts` would cause with the first rows, whatever these are."""
    check_any_time(model)
    check_seed(model.random_state)
    resolve_device(model.device)
    if model.mixture and not model.joint:
        raise ValueError("mixture: got True, expected joint=True beside it")
    check_choice("pool", model.pool, ("auto", "eager", "stacked"))
    if model.expert is not None:
        check_classifier(model.expert, joint=model.joint)
    check_count("class_capacity", model.class_capacity)
    for setting in (_networks, _score, _optimiser, _config):
        setting(model)
    check_choice("precision", model.precision, get_args(Precision))
    check_choice("scale", model.scale, ("standard", "none"))
    if check_count("answer_views", model.answer_views, least=0) > check_count("views", model.views):
        raise ValueError(f"answer_views: got {model.answer_views}, expected 0 to {model.views}, the number of views")
    if isinstance(model.features, str):
        check_choice("features", model.features, tuple(BACKBONES))


def assemble(model: Any, x: FloatRows, capacity: int, keys: Keys, emit: Emit) -> Learner:
    """Return an untrained learner for rows of this shape, with the parameters of a `GatedExperts`."""
    check_parameters(model)
    spec, config = _spec(model, x.shape[1:], capacity), _config(model)
    if model.joint and model.features is not None and prod(spec.shape) <= WIDEST:
        config = replace(config, discriminant=True)
    if model.expert is None:
        check_memory(spec, config.memory_rows, torch.device(resolve_device(model.device)))
    with torch.inference_mode(False):  # the weights must be trainable even if the caller is in inference mode
        pool = _pool(model, spec, keys, x)
        learner = Learner(config, pool, keys, emit)
    check_networks(pool, capacity, x[:1])
    return learner


def _pool(model: Any, spec: PoolSpec, keys: Keys, x: FloatRows) -> ExpertPool:
    device = torch.device(resolve_device(model.device))
    if model.expert is not None:
        classifiers = ClassifierPool(spec, keys, clone(model.expert))  # whose own parameters may change
        try_out(classifiers, x[: check_count("batch_size", model.batch_size)])
        return classifiers
    by_name = isinstance(model.net, str) and isinstance(model.autoencoder, str)
    fast = model.pool == "stacked" or (model.pool == "auto" and by_name)
    return (build_fast_pool if fast else EagerPool)(spec, keys, device)


def _spec(model: Any, shape: Shape, capacity: int) -> PoolSpec:
    return PoolSpec(
        shape,
        capacity,
        *_networks(model),
        _score(model),
        _optimiser(model),
        model.precision,
        bool(model.idle_on_host),
        shortlisted=model.organisation == "tree",
        scaled=model.scale == "standard",
        views=int(model.views),
        answer_views=int(model.answer_views),
    )


def _networks(model: Any) -> tuple[Any, Any]:
    return pick_factory("net", model.net, NETS), pick_factory("autoencoder", model.autoencoder, AUTOENCODERS)


def _score(model: Any) -> ScoreConfig:
    name = check_choice("gate_score", model.gate_score, get_args(ScoreName))
    return ScoreConfig(name=name, components=model.components, kl_weight=model.kl_weight)


def _optimiser(model: Any) -> OptimiserConfig:
    name = check_choice("optimiser", model.optimiser, ("sgd", "adam"))
    return OptimiserConfig(name, model.lr, model.momentum, model.weight_decay, average=model.average)


def _config(model: Any) -> LearnerConfig:
    return LearnerConfig(
        organisation=check_choice("organisation", model.organisation, ("flat", "tree", "lca")),
        max_experts=model.max_experts,
        recent_capacity=model.recent_capacity,
        epsilon=model.epsilon,
        review=model.review,
        review_threshold=model.review_threshold,
        promotion_window=model.promotion_window,
        promotion_rate=model.promotion_rate,
        sticky=model.sticky,
        newcomers_answer=model.newcomers_answer,
        joint=model.joint,
        label_evidence=model.label_evidence,
        error_rate=model.error_rate,
        memory_rows=model.memory_rows,
        merge_experts=model.merge_experts,
    )
