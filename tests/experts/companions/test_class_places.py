from __future__ import annotations

import numpy as np

from hge.experts.companions.class_places import ClassPlaces


def after(rows: int, size: int) -> tuple[ClassPlaces, np.ndarray]:
    """Return the places of a class, and the arrivals at them, after so many rows."""
    own, arrivals = ClassPlaces(), np.arange(size)
    for arrival in range(rows):
        place = arrival if arrival < size else own.leave()
        own.add(place, arrival)
        arrivals[place] = arrival
    return own, arrivals


def test_all_rows_before_the_latest_are_as_likely_to_stay() -> None:
    _, arrivals = after(10_000, 1000)
    arrivals.sort()
    assert arrivals[-500:].tolist() == list(range(9500, 10_000))
    by_age = np.bincount(arrivals[:500] // 950, minlength=10)
    assert by_age.sum() == 500
    assert np.square(by_age - 50).sum() / 50 < 21.7  # chi-squared with 9 degrees of freedom: 1 %


def test_the_arrivals_are_all_that_must_be_known() -> None:
    own, arrivals = after(500, 50)
    other = ClassPlaces()
    for place in arrivals.argsort().tolist():
        other.add(place, int(arrivals[place]))
    for arrival in range(500, 700):
        if arrival % 10 == 0:  # another class grows at the cost of this one
            assert own.leave() == other.leave()
        place = own.leave()
        assert place == other.leave()
        for one in (own, other):
            one.add(place, arrival)
            if arrival % 25 == 0:  # it grows itself
                one.add(1000 + arrival, 1000 + arrival)


def test_a_single_row_can_leave() -> None:
    own, _ = after(1, 1)
    assert own.leave() == 0
    assert len(own) == 0
