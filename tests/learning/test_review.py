"""Which batches of R an expert takes back."""

from __future__ import annotations

import pytest

from hge.learning.review import front


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ([], 0),
        ([False, False], 0),
        ([True], 1),
        ([True, False], 1),
        ([True, True, False, False], 3),
        ([False, True, True], 3),
    ],
)
def test_the_expert_takes_the_longest_front_of_which_it_accepts_more_than_half(
    accepted: list[bool], expected: int
) -> None:
    assert front(accepted) == expected
