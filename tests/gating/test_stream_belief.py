from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from hge.gating.stream_belief import CONTINUES, REMEMBERED, SETTLED, STAYS, StreamBelief

EXPERTS = 3


def informed(in_use: int, *, right: float) -> StreamBelief:
    """Return a belief after many batches of each expert, for a gate that chose it for this share of the rows."""
    belief, rng = StreamBelief(observers=2), np.random.default_rng(0)
    for expert in [*range(EXPERTS), in_use]:
        for _ in range(20):
            others = rng.integers(0, EXPERTS, 32)
            chosen = np.where(rng.random(32) < right, expert, others)
            belief.learned(expert, np.stack([chosen, rng.integers(0, EXPERTS, 32)]), EXPERTS)
    return belief


def both(choices: np.ndarray | list[int]) -> np.ndarray:
    """Return these choices, and those of an observer that knows nothing."""
    return np.stack([np.array(choices), np.random.default_rng(2).integers(0, EXPERTS, len(choices))])


@pytest.mark.parametrize("in_use", range(EXPERTS))
def test_the_gate_decides_if_it_has_been_right(in_use: int) -> None:
    belief = informed(in_use, right=0.95)
    mixed = np.array([0, 1, 2, 2, 1, 0, 2, 1])
    assert_array_equal(belief.posterior(both(mixed), EXPERTS).argmax(axis=0), mixed)
    for expert in range(EXPERTS):
        assert_array_equal(belief.posterior(both([expert]), EXPERTS).argmax(axis=0), [expert])


@pytest.mark.parametrize("in_use", range(EXPERTS))
def test_the_expert_in_use_predicts_if_the_gate_says_nothing(in_use: int) -> None:
    belief = informed(in_use, right=0.0)
    choices = np.random.default_rng(1).integers(0, EXPERTS, 32)
    assert (belief.posterior(both(choices), EXPERTS).argmax(axis=0) == in_use).all()


def test_rows_unlike_those_set_aside_belong_to_the_experts() -> None:
    """Rows set aside for which the observers choose any expert explain every choice."""
    belief, rng = informed(2, right=0.95), np.random.default_rng(5)
    belief.set_aside(both(rng.integers(0, EXPERTS, 32)), EXPERTS, chance=0.0)
    believed = [belief.posterior(both([1]), EXPERTS, np.array([unlike])).argmax() for unlike in (-4.0, 0.0, 3.0)]
    assert believed == [1, EXPERTS, EXPERTS]


def test_rows_of_one_call_are_judged_together() -> None:
    """A gate that is right about 60 % of single rows: nearly sure of a batch, and so of each of its rows."""
    belief = informed(0, right=0.4)
    choices = np.array([1] * 20 + [0] * 6 + [2] * 6)
    assert (belief.posterior(both(choices), EXPERTS).argmax(axis=0) == 1).all()


@pytest.mark.parametrize("rows", [300, 30_000])
@pytest.mark.parametrize("seed", range(5))
def test_many_rows_of_all_experts_are_not_taken_for_those_of_one(seed: int, rows: int) -> None:
    """Of a gate that is right about 44 % of single rows, the shares are known roughly: 32 rows of each old expert."""
    experts, rng = 5, np.random.default_rng(seed)
    belief = StreamBelief(observers=1)

    def choices(expert: int, rows: int) -> np.ndarray:
        return np.where(rng.random(rows) < 0.3, expert, rng.integers(0, experts, rows))

    for expert in range(experts):
        for _ in range(10):
            belief.learned(expert, choices(expert, 32)[None], experts)
    for expert in range(experts - 1):
        belief.counts[0, expert] *= 32 / belief.counts[0, expert].sum()
    mixed = rng.permutation(np.concatenate([choices(expert, rows // experts) for expert in range(experts)]))
    posterior = belief.posterior(mixed[None], experts)
    by_choice = np.stack([posterior[:-1, mixed == choice].mean(axis=1) for choice in range(experts)])
    assert_array_equal(by_choice.argmax(axis=1), range(experts))


def test_rows_set_aside_predict_until_an_expert_accepts() -> None:
    belief = informed(0, right=0.95)
    choices = np.random.default_rng(1).integers(0, EXPERTS, 32)
    belief.set_aside(both(choices), EXPERTS, chance=1e-3)
    assert (belief.posterior(both(choices), EXPERTS).argmax(axis=0) == EXPERTS).mean() > 0.9
    belief.learned(1, both(np.ones(32, int)), EXPERTS)
    assert belief.posterior(both(choices), EXPERTS)[EXPERTS].max() == 0


def test_a_belief_by_hand() -> None:
    """Two experts, an observer that has chosen nothing yet, and two rows set aside for which it chose the first."""
    belief = StreamBelief(observers=1)
    belief.set_aside(np.array([[0, 0]]), experts=2, chance=0.5)
    switched = (1 - STAYS) / (1 - STAYS + STAYS * 0.5)
    likelihood = np.array([1 + 1 / 2, 1 / 2, 2 + 1 / 2 + 1 / 2]) / np.array([2, 2, 2 + 2])  # of a choice of the first
    one = STAYS * np.array([1 - switched, 0, switched]) + (1 - STAYS) * np.array([1 / 2, 1 / 2, 0])
    many = np.array([1 / 2, 1 / 2, 0])
    mixed = (1 - CONTINUES) * (1 - SETTLED * switched)
    expected = ((1 - mixed) * one + mixed * many) * likelihood
    assert_allclose(belief.posterior(np.array([[0]]), experts=2)[:, 0], expected / expected.sum())


@pytest.mark.parametrize(("chances", "believed"), [([0.05], 0), ([0.05, 0.05**2], EXPERTS), ([0.0], EXPERTS)])
def test_a_batch_set_aside_may_be_an_outlier(chances: list[float], believed: int) -> None:
    """If a twentieth of the batches are outliers, one does not replace the expert in use; two, or new labels, do."""
    belief = informed(0, right=0.0)
    choices = np.random.default_rng(1).integers(0, EXPERTS, 32)
    for chance in chances:
        belief.set_aside(both(choices), EXPERTS, chance)
    assert (belief.posterior(both(choices), EXPERTS).argmax(axis=0) == believed).all()


@given(st.lists(st.integers(0, EXPERTS - 1), min_size=1, max_size=40), st.integers(0, EXPERTS - 1), st.floats(0, 1))
def test_it_is_a_probability(choices: list[int], in_use: int, switched: float) -> None:
    belief = informed(0, right=0.7)
    belief.in_use, belief.switched = in_use, switched
    posterior = belief.posterior(both(choices), EXPERTS)
    assert posterior.shape == (EXPERTS + 1, len(choices))
    assert (posterior >= 0).all()
    assert_allclose(posterior.sum(axis=0), 1)


def test_the_past_fades_and_the_state_is_restored() -> None:
    belief = informed(2, right=0.9)
    assert belief.counts.sum(axis=2).max() <= REMEMBERED + 1e-9
    other = StreamBelief(observers=2)
    other.load_state(belief.state())
    choices = np.array([0, 2, 1])
    assert_array_equal(belief.posterior(both(choices), EXPERTS), other.posterior(both(choices), EXPERTS))


def test_experts_created_later_share_the_rows_of_the_earlier_ones() -> None:
    """While expert 0 was alone, all its rows went to it. Of those that it remembers a third go to expert 1 now."""
    belief = StreamBelief(observers=1)
    for expert in (0, 0, 0, 1, 1, 1):
        belief.learned(expert, np.full((1, 32), expert), experts=1 + expert)
    rows = np.array([[0, 1, 0] * 10])
    assert belief.posterior(rows, experts=2).argmax(axis=0).tolist() != [0] * 30
    belief.met_later(0, rows)
    assert belief.posterior(rows, experts=2).argmax(axis=0).tolist() == [0] * 30
    belief.met_later(0, np.ones((1, 30), int))  # all of them
    belief.met_later(0, rows)
    assert belief.posterior(rows, experts=2).argmax(axis=0).tolist() == [0] * 30


def test_rows_of_the_stream_decide_between_experts_that_have_met() -> None:
    """Expert 0 has had three batches; for the rows of one of them expert 1 was chosen."""
    belief = StreamBelief(observers=1)
    for expert, choice in ((0, 0), (1, 1), (1, 1), (0, 0), (0, 1), (2, 2), (2, 2)):
        belief.learned(expert, np.full((1, 32), choice), experts=max(2, 1 + expert))
    belief.met_later(0, np.array([[0] * 20 + [2] * 11]))
    chosen = belief.counts[0, 0] / belief.counts[0, 0].sum()
    assert_allclose(chosen, [14 / 32, 7 / 32, 11 / 32], atol=0.02)


def test_an_expert_is_not_doubted_because_of_the_batch_that_created_it() -> None:
    """No observer could choose it then."""
    belief = StreamBelief(observers=1)
    for _ in range(3):
        belief.learned(0, np.zeros((1, 32), int), experts=1)
    for choice in (0, 1, 1):
        belief.learned(1, np.full((1, 32), choice), experts=2)
    belief.learned(0, np.zeros((1, 32), int), experts=2)
    assert belief.posterior(np.array([[1]]), experts=2).argmax(axis=0).tolist() == [1]
    assert belief.counts[0, 1].tolist() == [0.0, 64.0]


def test_an_expert_just_created_is_known_by_what_is_chosen_now_rather_than_by_what_was_chosen_before() -> None:
    """By the latter, rows of the others would seem to be its own."""
    belief = StreamBelief(observers=1)
    for expert in range(3):
        belief.learned(expert, np.zeros((1, 32), int), experts=expert + 1)
        belief.chosen_since(np.full((1, 8), expert))
    assert belief.first.tolist() == [[4.0, 0.0, 28.0]]
    assert belief.posterior(np.array([[2] * 4]), experts=3)[2].min() > 0.8
    assert belief.posterior(np.array([[0] * 16]), experts=3)[0].min() > 0.9


def test_what_created_an_expert_fades_with_its_own_batches_and_ends_with_those_of_another() -> None:
    belief = StreamBelief(observers=1)
    belief.learned(0, np.zeros((1, 32), int), experts=2)
    created = belief.first.sum()
    belief.learned(0, np.zeros((1, 32), int), experts=2)
    assert 0 < belief.first.sum() < created
    belief.learned(1, np.zeros((1, 32), int), experts=2)
    assert belief.first.sum() == 0


@pytest.mark.parametrize("seed", range(3))
def test_experts_that_had_only_the_batch_that_created_them_do_not_explain_all_rows(seed: int) -> None:
    """Ten tasks of one batch each, and a call of rows of half of them."""
    belief, experts, rng = StreamBelief(observers=1), 10, np.random.default_rng(seed)

    def choices(expert: int, rows: int, among: int) -> np.ndarray:
        return np.where(rng.random((1, rows)) < 0.8, expert, rng.integers(0, among, (1, rows)))

    for expert in range(experts):
        belief.learned(expert, np.zeros((1, 32), int), experts=expert + 1)
        belief.chosen_since(choices(expert, 64, expert + 1))
        for earlier in range(expert):
            belief.met_later(earlier, choices(earlier, 64, expert + 1))
    mixed = np.concatenate([choices(expert, 40, experts) for expert in (0, 2, 4, 6, 8)], axis=1)
    assert belief.posterior(mixed, experts).mean(axis=1).max() < 0.4
    assert belief.posterior(np.full((1, 10), 1), experts)[1].min() > 0.9


def test_rows_of_a_new_task_are_not_taken_for_a_mixture() -> None:
    """Each expert is known surely, and chosen for a third of the rows that no expert accepts."""
    belief, rng = informed(0, right=1.0), np.random.default_rng(3)
    belief.set_aside(both(rng.integers(0, EXPERTS, 32)), EXPERTS, chance=0.0)
    new = belief.posterior(both(rng.integers(0, EXPERTS, 32)), EXPERTS)[EXPERTS]
    assert new.mean() > 0.9
    belief.learned(0, both(np.zeros(32, int)), EXPERTS)
    assert belief.posterior(both([1, 0, 2] * 10), EXPERTS).argmax(axis=0).tolist() == [1, 0, 2] * 10


def test_an_expert_that_has_chosen_few_rows_does_not_explain_those_of_another() -> None:
    """Expert 1 is in use, for three batches; two hundred rows like those of expert 0 are of expert 0."""
    belief = StreamBelief(observers=1)
    for _ in range(20):
        belief.learned(0, np.zeros((1, 32), int), experts=2)
    for _ in range(3):
        belief.learned(1, np.array([[1] * 30 + [0, 0]]), experts=2)
    assert (belief.posterior(np.zeros((1, 200), int), experts=2).argmax(axis=0) == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_look_alike_in_all_tasks_are_of_the_expert_in_use(seed: int) -> None:
    """Choices as they always were, whatever the task, are no evidence of mixed rows."""
    belief, rng = StreamBelief(observers=1), np.random.default_rng(seed)
    for expert in (0, 1, 2):
        for _ in range(10):
            belief.learned(expert, rng.integers(0, 3, (1, 32)), experts=3)
    assert belief.posterior(rng.integers(0, 3, (1, 32)), experts=3)[2].min() > 0.6
