"""What every ExpertPool must hold. Each check takes a function that makes a fresh pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hge.core.types import Batch
from hge.experts.pool import ExpertPool

MakePool = Callable[[], ExpertPool]


def batch_for(pool: Any, seed: int, rows: int = 12, shift: float = 0.0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(rows, *pool.spec.shape, generator=generator) + shift
    y = torch.randint(0, pool.spec.outputs, (rows,), generator=generator)
    return Batch(x.to(pool.device), y.to(pool.device))


def trained_pool(make: MakePool, experts: int = 2, steps: int = 3) -> ExpertPool:
    pool = make()
    for expert in range(experts):
        pool.create(expert)
        for step in range(steps):
            pool.train(expert, batch_for(pool, seed=100 * expert + step, shift=expert), step)
    return pool


def fingerprint(pool: ExpertPool) -> list[Any]:
    """What can be seen of a pool from outside: answers and scores of every expert, both kinds of statistics."""
    x = batch_for(pool, seed=7).x
    seen: list[Any] = []
    for expert in range(2):
        seen.append(pool.logits(expert, x).cpu().numpy().copy())
        seen += [pool.scores([expert], x), pool.batch_scores([expert], x)]
    return seen


def assert_same(first: list[Any], second: list[Any]) -> None:
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def check_loss_changes_nothing(make: MakePool) -> None:
    pool = trained_pool(make)
    before = fingerprint(pool)
    pool.loss(0, batch_for(pool, seed=50, shift=3.0), step=9)
    assert_same(before, fingerprint(pool))


def check_loss_is_what_training_reports(make: MakePool) -> None:
    pool = trained_pool(make)
    batch = batch_for(pool, seed=51)
    looked = pool.loss(1, batch, step=9)
    np.testing.assert_allclose(looked, pool.train(1, batch, step=9), rtol=1e-5)


def check_training_touches_one_expert(make: MakePool) -> None:
    pool = trained_pool(make)
    before = fingerprint(pool)
    pool.train(1, batch_for(pool, seed=52, shift=1.0), step=9)
    after = fingerprint(pool)
    assert_same(before[:3], after[:3])
    assert not np.array_equal(before[3], after[3])
    assert not np.array_equal(before[5], after[5])


def check_training_lowers_the_loss(make: MakePool) -> None:
    pool = make()
    pool.create(0)
    batch = batch_for(pool, seed=53)
    # Classes of different brightness, which flips and crops leave alone.
    brighter = batch.y.reshape(-1, *(1 for _ in pool.spec.shape)).float()
    batch = Batch(batch.x + brighter, batch.y)
    losses = [pool.train(0, batch, step) for step in range(15)]
    assert sum(losses[-5:]) < sum(losses[:5])


def check_rehearsal_trains_the_network_alone(make: MakePool) -> None:
    pool = trained_pool(make)
    batch = batch_for(pool, seed=52)
    scores, others, state = pool.scores([0, 1], batch.x), fingerprint(pool)[:3], pool.state(1)
    before = pool.loss(1, batch, step=9)
    for step in range(10):
        pool.rehearse(1, batch, step)
    assert pool.loss(1, batch, step=9) < before
    np.testing.assert_array_equal(pool.scores([0, 1], batch.x), scores)
    assert_same(others, fingerprint(pool)[:3])
    for name in ("rows", "rows_at_refresh"):
        assert torch.equal(pool.state(1)[name], state[name])


def check_rehearsal_leaves_statistics_alone(make: MakePool) -> None:
    """Also those of averaged weights: a batch is counted once, though its rows are rehearsed many times."""
    pool = trained_pool(make)
    if pool.state(0).get("average.updates") is None:
        return
    for step in range(200):  # the average has come to the statistics
        pool.train(0, batch_for(pool, seed=52), step)
    before = pool.state(0)
    pool.rehearse(0, batch_for(pool, seed=53, shift=30.0), step=9)
    for name, tensor in pool.state(0).items():
        if "running" in name:
            torch.testing.assert_close(tensor, before[name], rtol=1e-2, atol=1e-2)


def check_order_of_other_work_does_not_matter(make: MakePool) -> None:
    one, other = make(), make()
    for pool in (one, other):
        pool.create(0)
        pool.train(0, batch_for(pool, seed=53), step=2)
        pool.finish_deferred()  # the sketches' space is drawn from the first rows
        pool.create(1)
    first, second = batch_for(one, seed=54), batch_for(one, seed=55, shift=1.0)
    one.train(0, first, step=3)
    one.train(1, second, step=4)
    torch.rand(5)  # someone else draws from the global generator
    other.train(1, second, step=4)
    other.loss(0, second, step=8)
    other.train(0, first, step=3)
    assert_same(fingerprint(one), fingerprint(other))


def check_global_randomness_is_left_alone(make: MakePool) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    trained_pool(make)
    np.testing.assert_array_equal(torch.rand(3), expected)


def check_scores_are_one_per_row(make: MakePool) -> None:
    pool = trained_pool(make, steps=8)
    scores = pool.scores([1, 0], batch_for(pool, seed=56).x)
    assert scores.shape == (2, 12)
    assert scores.dtype == np.float64
    own = batch_for(pool, seed=101, shift=1.0).x
    assert pool.scores([1], own).mean() < pool.scores([0], own).mean()


def check_single_rows_ignore_their_neighbours(make: MakePool) -> None:
    pool = trained_pool(make)
    x, others = batch_for(pool, seed=57).x, batch_for(pool, seed=58, shift=5.0).x
    mixed = torch.cat([x[:1], others])
    for expert in range(2):
        together = pool.scores([expert], x)[0, 0]
        for rows in (x[:1], mixed):
            alone = pool.scores([expert], rows)[0, 0]
            np.testing.assert_allclose(alone, together, rtol=1e-4)
            torch.testing.assert_close(pool.logits(expert, rows)[0], pool.logits(expert, x)[0], rtol=1e-4, atol=1e-4)


def check_evidence_is_of_each_row_by_itself_and_changes_nothing(make: MakePool) -> None:
    pool = trained_pool(make)
    x, before = batch_for(pool, seed=62).x, fingerprint(pool)
    for expert in range(2):
        (together,), (alone,) = pool.evidence([expert], x), pool.evidence([expert], x[3:4])
        np.testing.assert_allclose(together.logits, pool.logits(expert, x).cpu().numpy(), rtol=1e-4, atol=1e-5)
        assert len(together.parts) == len(together.features) == len(x)
        for name in ("parts", "logits", "features"):
            np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[3], rtol=1e-3, atol=1e-3)
    assert_same(before, fingerprint(pool))


def check_sketches_are_cheap_scores_and_change_nothing(make: MakePool) -> None:
    pool = trained_pool(make, steps=8)
    before, own = fingerprint(pool), batch_for(pool, seed=101, shift=1.0).x
    rows, together = (pool.sketches([1, 0], own, together=flag) for flag in (False, True))
    assert (rows.shape, together.shape) == ((2, 12), (2,))
    assert rows.dtype == together.dtype == np.float64
    assert np.isfinite(rows).all()
    assert together[0] < together[1]
    if not pool.scores_are_costly:
        np.testing.assert_allclose(rows, pool.scores([1, 0], own), rtol=1e-6)
        np.testing.assert_array_equal(together, pool.batch_scores([1, 0], own))
    assert_same(before, fingerprint(pool))


def check_settling_twice_is_settling_once(make: MakePool) -> None:
    pool = make()
    pool.create(0)
    pool.finish_deferred()  # nothing was learned: nothing is settled
    pool.train(0, batch_for(pool, seed=1), step=0)
    pool.finish_deferred()
    shared, x = pool.shared_state(), batch_for(pool, seed=2).x
    scores = pool.scores([0], x)
    pool.finish_deferred()
    np.testing.assert_array_equal(scores, pool.scores([0], x))
    again = pool.shared_state()
    assert again.keys() == shared.keys()
    assert all(torch.equal(again[name], shared[name]) for name in shared)


def check_costs_are_those_of_the_scores(make: MakePool) -> None:
    pool = trained_pool(make)
    costs = pool.costs()
    assert costs.network > 0
    assert costs.score.each > 0
    if not pool.scores_are_costly:
        assert costs.sketch == costs.score
        assert costs.score.each < costs.network


def check_shared_state_that_does_not_fit_is_refused(make: MakePool) -> None:
    pool = trained_pool(make)
    before, shared = fingerprint(pool), pool.shared_state()
    for name in shared:
        with pytest.raises(ValueError, match=name):
            pool.load_shared_state(shared | {name: torch.zeros(2, 7)})
        assert_same(before, fingerprint(pool))


def check_single_row_batches_work(make: MakePool) -> None:
    pool = trained_pool(make)
    one = batch_for(pool, seed=59, rows=1)
    assert np.isfinite(pool.loss(0, one, step=9))
    assert np.isfinite(pool.train(0, one, step=9))
    assert np.isfinite(pool.batch_scores([0, 1], one.x)).all()


def check_numbers_that_are_none_do_no_harm(make: MakePool) -> None:
    pool = trained_pool(make)
    before = fingerprint(pool)
    bad = batch_for(pool, seed=60)
    bad.x[0] = float("nan")
    assert np.isnan(pool.train(0, bad, step=9))
    assert_same(before, fingerprint(pool))
    scores = pool.scores([0, 1], bad.x)
    assert np.isfinite(scores).all()
    assert (scores[:, 0] > scores[:, 1:].max()).all()
    assert pool.logits(0, bad.x).isfinite().all()


def check_state_makes_the_same_expert(make: MakePool) -> None:
    pool, twin = trained_pool(make), make()
    twin.load_shared_state(pool.shared_state())
    for expert in range(2):
        twin.create(expert)
        twin.load_state(expert, pool.state(expert))
    assert_same(fingerprint(pool), fingerprint(twin))
    batch = batch_for(pool, seed=62)
    for expert in (1, 0):
        assert pool.train(expert, batch, step=9) == twin.train(expert, batch, step=9)
    assert_same(fingerprint(pool), fingerprint(twin))


def check_state_that_does_not_fit_is_refused(make: MakePool) -> None:
    pool = trained_pool(make)
    before, state = fingerprint(pool), pool.state(0)
    name = next(iter(state))
    for bad in ({k: v for k, v in state.items() if k != name}, state | {name: torch.zeros(2, 7)}):
        with pytest.raises(ValueError, match=name):
            pool.load_state(1, bad)
    assert_same(before, fingerprint(pool))


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
