"""How much of what training sends announcements speak for."""

from __future__ import annotations

import pytest

from broker.bursts import UNKNOWN
from broker.explained import explained, in_force
from broker.model import Burst, ClassSample, InterfaceSample
from broker.state import BurstState

LINK = 100_000_000
MB = 1_000_000


def sees(sent_bytes: int, *bursts: tuple[float, int, int], remaining_s: float = 1.0) -> bool:
    """Each burst as when it began, what had been sent then, and what it is credited with."""
    announced = tuple(Burst("job", step, credit, 0.0, remaining_s) for step, (_, _, credit) in enumerate(bursts))
    credited = [
        BurstState("job", step, began_s, before, credit) for step, (began_s, before, credit) in enumerate(bursts)
    ]
    sample = InterfaceSample("a", None, 0.0, (ClassSample("compute", sent_bytes),), bursts=announced)
    return explained(sample, in_force(sample, credited), capacity_bits_per_s=LINK)


def test_a_burst_speaks_for_what_it_announced_and_its_headers_and_no_more() -> None:
    assert sees(5 * MB, (0.0, 5 * MB, 4 * MB))
    assert sees(9 * MB + MB // 2, (0.0, 5 * MB, 4 * MB))
    assert not sees(11 * MB, (0.0, 5 * MB, 4 * MB))


def test_two_that_are_under_way_at_once_speak_for_both() -> None:
    assert sees(7 * MB, (0.0, 0, 4 * MB), (0.1, 0, 4 * MB))
    assert not sees(11 * MB, (0.0, 0, 4 * MB), (0.1, 0, 4 * MB))


def test_a_new_one_does_not_renew_an_old_one() -> None:
    assert not sees(20 * MB, (0.0, 0, 4 * MB), (9.0, 20 * MB, 1))


@pytest.mark.parametrize("credit", [0, 1, 10_000])
def test_what_is_not_worth_a_hold_explains_nothing(credit: int) -> None:
    assert not sees(0, (0.0, 0, credit))


def test_one_whose_time_is_over_or_that_began_uncounted_explains_nothing() -> None:
    assert not sees(MB, (0.0, 0, 4 * MB), remaining_s=0.0)
    assert not sees(MB, (0.0, UNKNOWN, 4 * MB))
    assert not sees(MB, (0.0, 2 * MB, 4 * MB)), "the counter began anew"


def test_where_nothing_is_counted_a_burst_stands_and_explains_nothing() -> None:
    sample = InterfaceSample("a", None, 0.0, (), bursts=(Burst("job", 1, MB, 0.0, 1.0),))
    credited = [BurstState("job", 1, 0.0, UNKNOWN, MB)]
    assert in_force(sample, credited) == (credited[0],)
    assert not explained(sample, credited, capacity_bits_per_s=LINK)
