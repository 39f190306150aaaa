"""Algorithm 1 on scripted losses and scores: every branch, without a network."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hge.core.config import LearnerConfig
from hge.core.events import (
    BatchesReclaimed,
    BatchSetAside,
    Event,
    ExpertChanged,
    ExpertCreated,
    ExpertPromoted,
    ExpertReused,
    LossReviewed,
    OutlierSettled,
    UpdateSkipped,
)
from hge.core.randomness import Keys
from hge.core.types import Batch
from hge.estimator.classifier import GatedExperts
from hge.gating.promotion import Probation
from hge.gating.tree import FloatArray
from hge.learning.learner import Learner

SMALL = LearnerConfig(recent_capacity=4, promotion_window=3, sticky=False, promote_by_replay=False)


class ScriptedPool:
    """Experts without networks. A batch carries its task; an expert's loss is low on tasks it was trained on."""

    device = torch.device("cpu")
    scores_all_at_once = False
    scores_are_costly = False
    rows_limited = 0

    def __init__(self) -> None:
        self.learned: list[set[int]] = []
        self.trained: list[tuple[int, int]] = []
        self.score_calls: list[tuple[int, ...]] = []
        self.extra_loss: dict[int, float] = {}
        """Step -> what is added to the loss of that batch."""
        self.expert_loss: dict[int, float] = {}
        """Expert -> what is added to its losses."""
        self.scores_late = False
        """The scores of experts other than the first are worthless, as of a fresh autoencoder."""
        self.learned_scores = True
        """False: every score is the same."""
        self.calls: list[str] = []

    def create(self, expert: int) -> None:
        self.learned.append(set())
        self.calls.append("create")

    def loss(self, expert: int, batch: Batch, step: int) -> float:
        task, wobble = int(batch.y[0]), 0.01 * (step % 3)
        own = not self.learned[expert] or task in self.learned[expert]
        extra = self.extra_loss.get(int(batch.x[0]), 0.0) + self.expert_loss.get(expert, 0.0)
        return (1.0 if own else 50.0) + wobble + extra

    def train(self, expert: int, batch: Batch, step: int) -> float:
        loss = self.loss(expert, batch, step)
        self.learned[expert].add(int(batch.y[0]))
        self.trained.append((step, expert))
        self.calls.append(f"train {expert}")
        return loss

    def state(self, expert: int, *, on_host: bool = True) -> dict[str, torch.Tensor]:
        return {}

    def scores(self, experts: Sequence[int], x: torch.Tensor) -> FloatArray:
        self.score_calls.append(tuple(experts))
        self.calls += [f"scores {expert}" for expert in experts]
        if not self.learned_scores:
            return np.zeros((len(experts), len(x)))
        task = int(x[0]) // 1000  # the scripted input knows its task, as pixels do
        suits = [float(task not in self.learned[e]) + (9.0 if self.scores_late and e else 0.0) for e in experts]
        return np.array(suits)[:, None].repeat(len(x), axis=1)

    def batch_scores(self, experts: Sequence[int], x: torch.Tensor) -> FloatArray:
        return self.scores(experts, x)[:, 0]


def learn(tasks: str, config: LearnerConfig = SMALL, pool: ScriptedPool | None = None) -> tuple[Learner, list[Event]]:
    """Learn a stream in which each letter is a batch of that task."""
    events: list[Event] = []
    learner = Learner(config, pool or ScriptedPool(), Keys(0), events.append)  # type: ignore[arg-type]
    for step, letter in enumerate(tasks):
        task = ord(letter) - ord("A")
        learner.learn(Batch(torch.tensor([float(1000 * task + step)]), torch.tensor([task])))
    return learner, events


def of_kind(events: list[Event], kind: type[Event]) -> list[Event]:
    return [event for event in events if isinstance(event, kind)]


def test_one_task_needs_one_expert() -> None:
    learner, events = learn("A" * 50)
    assert len(learner.experts) == 1
    assert events == []


def test_a_loss_that_never_changes_is_within_its_bound() -> None:
    """A deviation of zero puts the bound at the loss itself."""
    pool = ScriptedPool()
    pool.extra_loss = {step: -0.01 * (step % 3) for step in range(9)}
    learner, events = learn("A" * 9, pool=pool)
    assert learner.experts[0].losses.deviation == pytest.approx(0, abs=1e-12)
    assert not of_kind(events, BatchSetAside)


def test_new_task_is_set_aside_reviewed_and_given_an_expert() -> None:
    learner, events = learn("AAAAAA" + "BBB")
    assert [type(e) for e in events] == [BatchSetAside] * 3 + [LossReviewed, ExpertCreated, ExpertChanged]
    review, created = of_kind(events, LossReviewed)[0], of_kind(events, ExpertCreated)[0]
    assert isinstance(review, LossReviewed)
    assert review.new_task
    assert review.z_score > 20
    assert created == ExpertCreated(step=8, expert=1, batches=3)
    assert learner.pool.trained[-3:] == [(6, 1), (7, 1), (8, 1)]  # type: ignore[attr-defined]
    assert len(learner.recent) == 0
    assert learner.newcomers == [1]


def test_a_budget_on_experts_is_kept_and_told() -> None:
    config = replace(SMALL, max_experts=2)
    learner, events = learn("AAAAAA" + "BBBBBBBB" + "CCCCCCCC" + "DDDDDDDD", config)
    assert len(learner.experts) == 2
    reused = of_kind(events, ExpertReused)
    assert len(reused) >= 2, "one for each task beyond the budget"
    assert not any(entry.high_loss for entry in learner.recent)
    assert of_kind(events, ExpertCreated) == [ExpertCreated(step=8, expert=1, batches=3)]


def test_newcomer_takes_its_batches_and_is_promoted_when_its_window_is_full() -> None:
    learner, events = learn("AAAAAA" + "BBB" + "BB")
    assert not of_kind(events, ExpertPromoted), "batches used at creation do not count"
    learner, events = learn("AAAAAA" + "BBB" + "BBB")
    assert of_kind(events, ExpertPromoted) == [ExpertPromoted(step=11, expert=1, rate=1.0, parent=0)]
    assert learner.tree.experts == [0, 1]
    assert learner.newcomers == []


def test_newcomer_is_promoted_at_once_where_the_replay_says_that_it_pays() -> None:
    config = replace(SMALL, promotion_window=50, promote_by_replay=True)
    learner, events = learn("AAAAAA" + "BBB" + "B", config)
    assert of_kind(events, ExpertPromoted) == [ExpertPromoted(step=9, expert=1, rate=1.0, parent=0)]
    pool = ScriptedPool()
    pool.scores_late = True
    learner, events = learn("AAAAAA" + "BBB" + "B" * 40, config, pool)
    assert learner.newcomers == [1], "a score that does not know its own yet must wait"
    asked = [call for call in pool.score_calls if len(call) == 1]
    learner, _ = learn("AAAAAA" + "BBB" + "B" * 80, config, pool)
    assert len([call for call in pool.score_calls if len(call) == 1]) < 3.5 * len(asked), "asked ever more rarely"


def test_newcomer_with_a_worse_score_stays_on_probation_but_learns() -> None:
    pool = ScriptedPool()
    pool.scores_late = True
    learner, events = learn("AAAAAA" + "BBB" + "B" * 40, pool=pool)
    assert not of_kind(events, ExpertPromoted)
    assert len(learner.experts) == 2
    assert learner.experts[1].batches_trained == 43


def test_outlier_goes_to_the_expert_of_the_batch_before_it() -> None:
    pool = ScriptedPool()
    pool.extra_loss = {5: 30.0}
    learner, events = learn("A" * 12, pool=pool)
    assert of_kind(events, BatchSetAside) == [BatchSetAside(5, 0, pytest.approx(31.02), pytest.approx(1.06, abs=0.1))]
    assert of_kind(events, OutlierSettled) == [OutlierSettled(step=8, outlier=5, expert=0)]
    assert sorted(pool.trained) == [(step, 0) for step in range(12)]
    assert len(learner.experts) == 1


def test_paths_are_those_of_batches_taken_on_probation() -> None:
    pool = ScriptedPool()
    pool.extra_loss = {1000 + 11: 90.0}
    config = replace(SMALL, promotion_window=50, organisation="lca")
    learner, events = learn("AAAAAA" + "BBB" + "BB" + "B" + "BBBB", config, pool)
    assert of_kind(events, OutlierSettled) == [OutlierSettled(step=14, outlier=11, expert=1)]
    assert learner.organisation.probations[1].accepted == 6, "neither three at its creation nor one outlier"
    assert learner.experts[1].batches_trained == 10


def test_outlier_of_an_old_task_does_not_go_to_the_expert_in_use_now() -> None:
    pool = ScriptedPool()
    both = "AAAAAA" + "BBBBBB"
    pool.extra_loss = {1000 + len(both): 90.0}  # the last batch of B before A returns
    _, events = learn(both + "B" + "AAAAAA", pool=pool)
    assert of_kind(events, OutlierSettled) == [OutlierSettled(step=15, outlier=12, expert=1)]
    assert (12, 1) in pool.trained


def test_unstable_training_is_recognised_as_the_same_task() -> None:
    """Scenario 3 of Section 3.1: the loss of everything has risen, replay included."""
    pool = ScriptedPool()
    learner, events = learn("A" * 8, pool=pool)
    pool.extra_loss = dict.fromkeys(range(40), 5.0)
    for step in range(8, 12):
        learner.learn(Batch(torch.tensor([float(step)]), torch.tensor([0])))
    review = of_kind(events, LossReviewed)[0]
    assert isinstance(review, LossReviewed)
    assert not review.new_task
    assert len(learner.experts) == 1
    assert sorted(pool.trained) == [(step, 0) for step in range(12)]


@pytest.mark.parametrize("robust", [True, False])
def test_a_stray_batch_in_the_replay_hides_a_new_task_from_the_papers_test_only(robust: bool) -> None:
    pool = ScriptedPool()
    pool.extra_loss = {5: 50.0}  # an outlier, which is learned and remembered
    config = replace(SMALL, robust_review=robust, review_last_used=False)
    learner, events = learn("A" * 12 + "BBB", config, pool)
    assert of_kind(events, OutlierSettled)
    (review,) = of_kind(events, LossReviewed)
    assert isinstance(review, LossReviewed)
    assert review.new_task == robust
    assert len(learner.experts) == 1 + robust


@pytest.mark.parametrize("place", range(40))
def test_an_interrupt_anywhere_leaves_the_recent_batches_in_order(place: int) -> None:
    class InterruptedPool(ScriptedPool):
        done = 0

        def loss(self, expert: int, batch: Batch, step: int) -> float:
            self.done += 1
            if self.done == place + 1:
                raise KeyboardInterrupt
            return super().loss(expert, batch, step)

    pool = InterruptedPool()
    pool.extra_loss = {3: 30.0}
    learner, _ = learn("", pool=pool)
    for number, task in enumerate([0] * 8 + [1] * 8):
        batch = Batch(torch.tensor([float(1000 * task + number)]), torch.tensor([task]))
        before = list(learner.recent)
        try:
            learner.learn(batch)
        except KeyboardInterrupt:
            assert list(learner.recent) == before
            learner.learn(batch)
        assert len(learner.recent) < SMALL.recent_capacity
    assert pool.done > 40, "each of the places was come to"
    assert learner.steps == 16


def test_without_review_the_same_instability_creates_an_expert() -> None:
    pool = ScriptedPool()
    learner, events = learn("A" * 8, replace(SMALL, review=False), pool)
    pool.extra_loss = dict.fromkeys(range(40), 5.0)
    for step in range(8, 11):
        learner.learn(Batch(torch.tensor([float(step)]), torch.tensor([0])))
    assert len(learner.experts) == 2
    assert not of_kind(events, LossReviewed)


def test_recurring_tasks_go_back_to_their_experts() -> None:
    learner, events = learn("AAAAAA" + "BBBBBB" + "AAAA" + "BBBB" + "A")
    assert len(learner.experts) == 2
    changes = [(e.previous, e.expert) for e in of_kind(events, ExpertChanged) if isinstance(e, ExpertChanged)]
    assert changes == [(0, 1), (1, 0), (0, 1), (1, 0)]
    assert len(of_kind(events, BatchSetAside)) == 3


def test_of_several_accepting_newcomers_the_lowest_loss_wins() -> None:
    pool = ScriptedPool()
    pool.scores_late = True  # nobody is promoted
    learner, _ = learn("AAAAAA" + "BBB" + "BBBB" + "CCC" + "BBBB" + "CCCC", pool=pool)
    assert [e.batches_trained for e in learner.experts] == [6, 11, 7]
    pool.learned[1].add(2)  # now both newcomers know C
    pool.expert_loss = {1: 0.02}  # and both are within their bounds, the second one better
    learner.learn(Batch(torch.tensor([2099.0]), torch.tensor([2])))
    assert [e.batches_trained for e in learner.experts] == [6, 11, 8]


def test_scores_are_compared_before_the_newcomer_trains() -> None:
    pool = ScriptedPool()
    learner, _ = learn("AAAAAA" + "BBB" + "B", pool=pool)
    at_creation = len(pool.calls) - 1 - pool.calls[::-1].index("create")
    later = pool.calls[at_creation:]
    assert later.index("scores 1") < len(later) - 1 - later[::-1].index("train 1")
    assert later[-1] == "train 1"
    assert learner.organisation.probations[1].rate == 1.0  # type: ignore[attr-defined]


def test_an_equal_score_is_not_a_lower_one_and_half_is_not_more_than_half() -> None:
    probation = Probation(window=4)
    for lower in (True, True, False, False):
        probation.record(lower, path=(1,))
    assert not probation.passed(0.5)
    pool = ScriptedPool()
    pool.learned_scores = False  # all scores are equal
    _, events = learn("AAAAAA" + "BBB" + "B" * 10, pool=pool)
    assert not of_kind(events, ExpertPromoted)


def test_review_asks_the_expert_that_the_oldest_batch_is_sent_to() -> None:
    """R holds C, C, B: the oldest is nearest to expert 2, the newest to expert 1."""
    pool = ScriptedPool()
    learner, events = learn("AAAAAA" + "BBBBBB" + "CCCCCC", pool=pool)
    assert learner.tree.experts == [0, 1, 2]
    pool.extra_loss = {2018: 90.0, 2019: 90.0, 1020: 90.0}
    events.clear()
    for step, task in ((18, 2), (19, 2), (20, 1)):
        learner.learn(Batch(torch.tensor([1000.0 * task + step]), torch.tensor([task])))
    reviews = [e.expert for e in of_kind(events, LossReviewed) if isinstance(e, LossReviewed)]
    assert reviews == [2]


def test_newcomer_whose_training_becomes_unstable_is_reviewed_too() -> None:
    """To the letter only the gate's choice is asked, a promoted one, and the newcomer's task gets a second expert."""
    for review_last_used, experts in ((True, 2), (False, 3)):
        pool = ScriptedPool()
        pool.scores_late = True  # never promoted
        learner, _ = learn("AAAAAA" + "BBB" + "BBBB", replace(SMALL, review_last_used=review_last_used), pool)
        pool.expert_loss = {1: 7.0}  # the loss of everything has risen on expert 1
        for step in range(13, 18):
            learner.learn(Batch(torch.tensor([1000.0 + step]), torch.tensor([1])))
        assert len(learner.experts) == experts


def test_newcomer_in_use_is_reviewed_though_the_batches_fit_an_idle_one_better() -> None:
    """The losses of an expert that has become unstable may lie above those of one that never saw the task."""
    pool = ScriptedPool()
    pool.scores_late = True  # B and C stay newcomers
    learner, events = learn("AAAAAA" + "BBBBBB" + "CCCCCC", replace(SMALL, promotion_window=50), pool)
    assert learner.newcomers == [1, 2]
    pool.expert_loss = {2: 90.0}
    pool.trained.clear()
    for step in range(18, 21):
        learner.learn(Batch(torch.tensor([2000.0 + step]), torch.tensor([2])))
    assert pool.trained == [(step, 2) for step in (18, 19, 20)]
    assert of_kind(events, LossReviewed)[-1].expert == 2


@pytest.mark.parametrize("before", range(19))
def test_unstable_newcomer_claims_nothing_of_the_next_task(before: int) -> None:
    """However many of its own batches are in R, beside those that the next task begins with."""
    pool = ScriptedPool()
    pool.scores_late = True  # B stays a newcomer
    learner, _ = learn("A" * 60 + "B" * 60, LearnerConfig(sticky=False, promote_by_replay=False), pool)
    assert learner.newcomers == [1]
    pool.expert_loss = {1: 7.0}
    for step, task in enumerate([1] * before + [2] * 60, start=120):
        learner.learn(Batch(torch.tensor([1000.0 * task + step]), torch.tensor([task])))
    assert len(learner.experts) == 3


@pytest.mark.parametrize("extra_loss", [0.0, 0.06])
def test_expert_in_use_claims_batches_that_the_gate_sent_elsewhere(extra_loss: float) -> None:
    """An autoencoder that was promoted by a hair may lose every comparison; to the letter its task gets another one.

    It takes back what it accepts. If its bound is too narrow, which cannot widen while its batches are sent elsewhere,
    their losses are like those of its replay.
    """
    for review_last_used, experts in ((True, 2), (False, 3)):
        pool = ScriptedPool()
        learner, events = learn("AAAAAA" + "BBBBBBBBB", replace(SMALL, review_last_used=review_last_used), pool)
        assert learner.tree.experts == [0, 1]
        pool.scores_late = True
        pool.extra_loss = {1000 + step: extra_loss for step in (15, 16, 17)}
        pool.trained.clear()
        for step in range(15, 18):
            learner.learn(Batch(torch.tensor([1000.0 + step]), torch.tensor([1])))
        assert len(learner.experts) == experts
        assert bool(of_kind(events, BatchesReclaimed)) == (review_last_used and not extra_loss)
        assert pool.trained == [(step, experts - 1) for step in (15, 16, 17)]


@pytest.mark.parametrize("before", range(8))
def test_expert_in_use_reclaims_nothing_of_the_next_task(before: int) -> None:
    """R may hold batches of both tasks when it is reviewed: each goes to the expert of its own task."""
    pool = ScriptedPool()
    learner, events = learn("AAAAAA" + "BBBBBBBBB", pool=pool)
    pool.scores_late = True
    pool.trained.clear()
    for step, task in enumerate([1] * before + [2] * 8, start=15):
        learner.learn(Batch(torch.tensor([1000.0 * task + step]), torch.tensor([task])))
    assert [event.expert for event in of_kind(events, ExpertCreated)] == [1, 2]
    assert pool.trained == [(step, 1 if step < 15 + before else 2) for step in range(15, 15 + before + 8)]


@pytest.mark.parametrize("fitting", [16, 17])
def test_batch_of_the_next_task_that_fits_by_chance_holds_no_switch_up(fitting: int) -> None:
    class Fitting(ScriptedPool):
        def loss(self, expert: int, batch: Batch, step: int) -> float:
            return 1.0 if (expert, int(batch.x[0])) == (1, 2000 + fitting) else super().loss(expert, batch, step)

    pool = Fitting()
    learner, events = learn("AAAAAA" + "BBBBBBBBB", pool=pool)
    pool.scores_late = True
    pool.trained.clear()
    for step in range(15, 18):
        learner.learn(Batch(torch.tensor([2000.0 + step]), torch.tensor([2])))
    assert not of_kind(events, BatchesReclaimed)
    assert pool.trained == [(step, 2) for step in (15, 16, 17)]


def test_batch_that_the_expert_in_use_does_not_take_back_is_an_outlier() -> None:
    pool = ScriptedPool()
    learner, events = learn("AAAAAA" + "BBBBBBBBB", pool=pool)
    pool.scores_late = True
    pool.extra_loss = {1016: 9.0}
    for step in range(15, 21):
        learner.learn(Batch(torch.tensor([1000.0 + step]), torch.tensor([1])))
    assert of_kind(events, BatchesReclaimed)[0] == BatchesReclaimed(step=17, expert=1, batches=2)
    assert OutlierSettled(19, 16, 1) in events
    assert len(learner.experts) == 2


@pytest.mark.parametrize("sticky", [False, True])
def test_expert_in_use_does_not_reclaim_what_it_refused_itself(sticky: bool) -> None:
    """Outliers that are settled just before a review widen its bound; that is no reason to ask again."""
    pool = ScriptedPool()
    pool.extra_loss = {193: 56.0, 195: 56.0} | {1000 + step: -4.0 if step % 7 == 3 else 4.0 for step in range(200, 260)}
    learner, events = learn("A" * 200 + "B" * 60, replace(LearnerConfig(), sticky=sticky), pool)
    assert not of_kind(events, BatchesReclaimed)
    assert len(learner.experts) == 2
    assert all(expert == 1 for step, expert in pool.trained if step >= 200)


def test_expert_in_use_does_not_reclaim_another_task() -> None:
    """Not even where a stray batch in its replay makes every difference look small to the Z-test."""
    pool = ScriptedPool()
    learner, events = learn("AAAAAA" + "BBBBBBBBB", pool=pool)
    learner.experts[1].replay.kept[0].batch.y[0] = 0
    for step in range(15, 18):
        learner.learn(Batch(torch.tensor([2000.0 + step]), torch.tensor([2])))
    assert len(learner.experts) == 3
    assert not of_kind(events, BatchesReclaimed)


def test_next_task_right_after_a_review_costs_one_wrong_batch() -> None:
    """R is empty then, and when it is full of the new task, its oldest batch is settled as an outlier."""
    for between, wrong in (("", True), ("B", False)):
        pool = ScriptedPool()
        learn("AAAAAA" + "BBB" + between + "CCCC", pool=pool)
        assert ((9 + len(between), 1) in pool.trained) == wrong


def test_update_that_is_not_a_number_is_skipped_and_told() -> None:
    pool = ScriptedPool()
    pool.extra_loss = {4: float("nan")}
    learner, events = learn("A" * 12, pool=pool)
    assert of_kind(events, UpdateSkipped) == [UpdateSkipped(step=7, expert=0, batch=4)]
    assert np.isfinite(learner.experts[0].losses.mean)
    assert learner.experts[0].batches_trained == 11
    assert 4 not in [kept.step for kept in learner.experts[0].replay.kept]


def test_replay_is_a_reservoir_of_all_that_was_trained() -> None:
    learner, _ = learn("A" * 400)
    steps = [kept.step for kept in learner.experts[0].replay.kept]
    assert len(steps) == 10
    assert max(steps) > 200
    assert np.mean(steps) == pytest.approx(200, abs=120)


def test_sticky_does_not_ask_the_gate_while_the_last_expert_accepts() -> None:
    literal, sticky = ScriptedPool(), ScriptedPool()
    stream = "AAAAAA" + "BBBBBB" + "B" * 20 + "A" * 20
    _, literal_events = learn(stream, SMALL, literal)
    _, sticky_events = learn(stream, replace(SMALL, sticky=True), sticky)
    assert literal_events == sticky_events
    assert literal.trained == sticky.trained
    assert len(literal.score_calls) > len(stream)
    # A's first six batches, B's steady state and A's return but for its first batch cost nothing.
    assert len(sticky.score_calls) < 20


def test_sticky_does_not_hold_on_to_a_newcomer() -> None:
    pool = ScriptedPool()
    learner, _ = learn("AAAAAA" + "BBB" + "BB", replace(SMALL, sticky=True), pool)
    assert learner.newcomers == [1]
    assert pool.score_calls[-2:] == [(0,), (1,)], "the gate chose, then the scores were compared"


@pytest.mark.parametrize("organisation", ["flat", "lca"])
def test_a_pool_that_asks_all_at_once_is_asked_once_a_batch_and_nothing_else_changes(organisation: str) -> None:
    config = replace(SMALL, organisation=organisation)
    stream = "AAAAAA" + "BBB" + "B" * 9 + "CCCCCC" + "C" * 9 + "ABCABC"
    one_by_one, at_once = ScriptedPool(), ScriptedPool()
    at_once.scores_all_at_once = True
    expected, events = learn(stream, config, one_by_one)
    learner, same_events = learn(stream, config, at_once)
    assert same_events == events
    assert learner.evaluations == expected.evaluations, "they say what the algorithm asked for"
    assert one_by_one.trained == at_once.trained
    asked = [call for call in at_once.score_calls if len(call) == len(learner.experts)]
    assert asked
    if organisation == "flat":
        assert len(at_once.score_calls) < len(one_by_one.score_calls)
        assert all(call == tuple(range(len(call))) for call in at_once.score_calls)


def test_step_says_what_became_of_each_batch() -> None:
    events: list[Event] = []
    learner = Learner(SMALL, ScriptedPool(), Keys(0), events.append)  # type: ignore[arg-type]
    steps = []
    for step, task in enumerate([0] * 6 + [1] * 4):
        steps.append(learner.learn(Batch(torch.tensor([1000.0 * task + step]), torch.tensor([task]))))
    assert [s.set_aside for s in steps] == [False] * 6 + [True] * 3 + [False]
    assert [s.expert for s in steps] == [0] * 9 + [1]
    assert [s.queried for s in steps] == [1] * 10
    assert [pair for s in steps for pair in s.trained] == [
        *((step, 0) for step in range(6)),
        *((step, 1) for step in range(6, 10)),
    ]
    assert steps[6].loss > steps[6].bound


def test_batches_that_cannot_be_learned_at_the_very_start_create_no_expert() -> None:
    pool = ScriptedPool()
    pool.extra_loss = dict.fromkeys(range(8), float("nan"))
    learner, events = learn("A" * 20, pool=pool)
    reviews = [event for event in events if isinstance(event, LossReviewed)]
    assert reviews
    assert not any(review.new_task for review in reviews)
    assert len(learner.experts) == 1
    assert learner.experts[0].batches_trained == 12


def test_loss_that_is_not_a_number_is_set_aside() -> None:
    pool = ScriptedPool()
    pool.extra_loss = {5: float("nan")}
    _, events = learn("A" * 6, pool=pool)
    assert len(of_kind(events, BatchSetAside)) == 1


@pytest.mark.parametrize("cls", [Learner, GatedExperts])
def test_no_argument_can_carry_a_task(cls: type) -> None:
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        assert not [p for p in inspect.signature(method).parameters if "task" in p], name


def test_rows_in_memory_are_those_of_the_replay_and_of_the_recent_batches() -> None:
    learner, _ = learn("AAA")
    assert learner.rows_kept == 3 + 3
    learner, _ = learn("AAAAAA" + "B")
    assert learner.rows_kept == 6 + 3, "a batch that is set aside is in R only, which has lost its oldest ones"


def test_the_gate_is_charged_for_the_experts_that_it_asks_and_for_the_newcomer() -> None:
    before, after = (learn("AAAAAA" + "B" * batches)[0] for batches in (3, 4))
    assert before.newcomers == after.newcomers == [1]
    assert after.evaluations["gate"] - before.evaluations["gate"] == 1 + 1
