"""What a class could send now: what others take is subtracted by the kernel's rule of priorities."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.law.sharing.available_rate import offered_bits_per_s
from broker.model.reasons import Because
from broker.model.values import ClassAllocation, InterfaceAllocation


def one(
    name: str,
    priority: int,
    *,
    rate: int = 2,
    ceil: int = 100,
    demand: int = 2,
    sends: int | None = 0,
    backlog: int = 0,
) -> ClassAllocation:
    """A class; rates in Mbit/s."""
    mega = 1_000_000
    return ClassAllocation(
        name=name, rate_bits_per_s=rate * mega, ceil_bits_per_s=ceil * mega, priority=priority,
        guarantee_bits_per_s=20 * mega, floor_bits_per_s=2 * mega, ceiling_bits_per_s=100 * mega,
        demand_bits_per_s=demand * mega, share_bits_per_s=demand * mega,
        throughput_bits_per_s=None if sends is None else sends * mega, backlog_bytes=backlog, dropped_packets=0,
        reason=Because.IDLE(floor_bits_per_s=2 * mega),
    )  # fmt: skip


def of(*classes: ClassAllocation) -> InterfaceAllocation:
    reason = Because.LINK_RATE(
        rate_bits_per_s=100_000_000, source="the configured rate", seen="no queue seen elsewhere"
    )
    return InterfaceAllocation("eth0", "egress", 100_000_000, "configured", reason, classes)


CONTROL, OTHER = one("control", 0), one("other", 2)
COMPUTE = one("compute", 1, rate=60)


def test_all_of_an_idle_link_is_offered() -> None:
    assert offered_bits_per_s(of(CONTROL, COMPUTE, one("storage", 3), OTHER), "compute") == 100_000_000


def test_who_comes_after_takes_only_what_it_is_promised_however_much_waits() -> None:
    storage = one("storage", 3, rate=2, demand=100, sends=100, backlog=500_000)
    assert offered_bits_per_s(of(CONTROL, COMPUTE, storage, OTHER), "compute") == 98_000_000
    repaid = one("storage", 3, rate=30, demand=100, sends=30, backlog=500_000)
    assert offered_bits_per_s(of(CONTROL, COMPUTE, repaid, OTHER), "compute") == 70_000_000


def test_who_goes_first_takes_what_it_sends_and_a_little_more() -> None:
    control = one("control", 0, demand=20, sends=10)
    assert offered_bits_per_s(of(control, COMPUTE, OTHER), "compute") == 89_000_000
    unseen = one("control", 0, demand=20, sends=None)
    assert offered_bits_per_s(of(unseen, COMPUTE, OTHER), "compute") == 80_000_000


def test_an_equal_takes_its_share() -> None:
    equal = one("other", 1, demand=30, sends=100, backlog=100_000)
    assert offered_bits_per_s(of(COMPUTE, equal), "compute") == 70_000_000


def test_what_is_offered_is_never_below_the_classs_own_rate_nor_above_its_ceiling() -> None:
    greedy = one("control", 0, demand=100, sends=100, backlog=100_000)
    assert offered_bits_per_s(of(greedy, COMPUTE), "compute") == 60_000_000
    assert offered_bits_per_s(of(one("compute", 1, rate=5, ceil=40)), "compute") == 40_000_000


@given(st.lists(st.tuples(*[st.integers(0, 100)] * 4), min_size=1, max_size=4))
def test_the_offer_lies_between_rate_and_ceiling(others: list[tuple[int, int, int, int]]) -> None:
    classes = [
        one(f"c{number}", priority % 4, rate=rate, demand=demand, sends=sends)
        for number, (priority, rate, demand, sends) in enumerate(others)
    ]
    assert 60_000_000 <= offered_bits_per_s(of(COMPUTE, *classes), "compute") <= 100_000_000
