"""Bytes are counted once, for whoever sent them, and loans are neither invented nor lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.accounting.ledger import KEYS_MAX, Ledger, LinkReading
from broker.model.reasons import Reason
from broker.model.usage import HOUR_S, Usage, UsageKey
from broker.model.values import ClassAllocation, ClassSample, InterfaceAllocation, InterfaceSample, JobSample

GUARANTEE = 8_000_000
NOON_S = 1_700_000_000 // HOUR_S * HOUR_S


def plan(name: str = "eth0") -> InterfaceAllocation:
    def of(one: str, guarantee: int) -> ClassAllocation:
        return ClassAllocation(
            name=one, rate_bits_per_s=guarantee, ceil_bits_per_s=40_000_000, priority=1,
            guarantee_bits_per_s=guarantee, floor_bits_per_s=0, ceiling_bits_per_s=40_000_000, demand_bits_per_s=0,
            share_bits_per_s=0, throughput_bits_per_s=0, backlog_bytes=0, dropped_packets=0, reason=Reason("idle", ""),
        )  # fmt: skip

    return InterfaceAllocation(
        name=name, direction="egress", capacity_bits_per_s=40_000_000, capacity_source="configured",
        capacity_reason=Reason("configured", ""), classes=(of("compute", 0), of("storage", GUARANTEE)),
    )  # fmt: skip


def reading(
    *, compute: int = 0, storage: int = 0, jobs: tuple[JobSample, ...] = (), lends: dict[str, int] | None = None
) -> list[LinkReading]:
    sample = InterfaceSample(
        name="eth0",
        counters_age_s=0.0,
        classes=(ClassSample("compute", compute), ClassSample("storage", storage)),
        jobs=jobs,
    )
    return [LinkReading(sample=sample, plan=plan(), lends_bits_per_s=lends or {})]


def booked(*steps: list[LinkReading], every_s: float = 1.0, wall_s: float = NOON_S) -> dict[UsageKey, Usage]:
    ledger = Ledger()
    for number, step in enumerate(steps):
        ledger.book(step, now_s=number * every_s, wall_s=wall_s + number * every_s)
    return ledger.take()


def key(traffic_class: str, *, job: str = "", uid: int | None = None, hour_s: int = NOON_S) -> UsageKey:
    return UsageKey(hour_s=hour_s, interface="eth0", traffic_class=traffic_class, job=job, uid=uid)


def test_what_a_counter_held_before_us_is_not_ours() -> None:
    assert booked(reading(compute=5_000), reading(compute=5_700)) == {key("compute"): Usage(carried_bytes=700)}


def test_a_counter_that_began_anew_counts_from_there() -> None:
    assert booked(reading(compute=5_000), reading(compute=300), reading(compute=400)) == {
        key("compute"): Usage(carried_bytes=100)
    }


def test_jobs_have_their_part_and_the_rest_is_nobodys() -> None:
    def jobs(first: int, second: int) -> tuple[JobSample, ...]:
        return (
            JobSample("a", "compute", leaf_sent_bytes=first, uid=1000),
            JobSample("a", "compute", leaf_sent_bytes=second, uid=1001),
        )

    assert booked(reading(compute=0, jobs=jobs(0, 0)), reading(compute=1_000, jobs=jobs(500, 300))) == {
        key("compute", job="a", uid=1000): Usage(carried_bytes=500),
        key("compute", job="a", uid=1001): Usage(carried_bytes=300),
        key("compute"): Usage(carried_bytes=200),
    }


def test_an_hour_ends_on_the_wall_clock() -> None:
    steps = [reading(compute=number * 100) for number in range(4)]
    assert booked(*steps, every_s=1800.0) == {
        key("compute"): Usage(carried_bytes=100),
        key("compute", hour_s=NOON_S + HOUR_S): Usage(carried_bytes=200),
    }


def test_what_storage_lends_is_what_compute_borrows_and_is_repaid_once() -> None:
    made = booked(
        reading(),
        reading(compute=4_000_000, storage=500_000, lends={"compute": 4_000_000}),
        reading(compute=4_000_000, storage=2_500_000),  # 1 MB above its guarantee, of which half a MB was lent
        reading(compute=4_000_000, storage=4_500_000),
    )
    assert made[key("compute")] == Usage(carried_bytes=4_000_000, borrowed_bytes=500_000)
    assert made[key("storage")] == Usage(carried_bytes=4_500_000, lent_bytes=500_000, repaid_bytes=500_000)


def test_nothing_is_lent_while_the_host_slept() -> None:
    made = booked(reading(), reading(compute=100, lends={"compute": 4_000_000}), every_s=3600.0)
    assert made[key("compute", hour_s=NOON_S + HOUR_S)] == Usage(carried_bytes=100)


def test_thousands_of_jobs_get_no_rows_of_their_own_and_no_byte_is_lost() -> None:
    def jobs(each: int) -> tuple[JobSample, ...]:
        return tuple(JobSample(f"j{n}", "compute", leaf_sent_bytes=each, uid=1) for n in range(2 * KEYS_MAX))

    made = booked(reading(jobs=jobs(0)), reading(compute=2 * KEYS_MAX * 10, jobs=jobs(10)))
    assert len(made) <= KEYS_MAX + 1
    assert sum(one.carried_bytes for one in made.values()) == 2 * KEYS_MAX * 10


def test_a_user_who_makes_up_jobs_leaves_rows_for_those_who_come_after_him() -> None:
    def jobs(each: int) -> tuple[JobSample, ...]:
        made_up = tuple(JobSample(f"a{n}", "compute", leaf_sent_bytes=each, uid=1) for n in range(2 * KEYS_MAX))
        return (*made_up, JobSample("train", "compute", leaf_sent_bytes=each, uid=2))

    made = booked(reading(jobs=jobs(0)), reading(compute=(2 * KEYS_MAX + 1) * 10, jobs=jobs(10)))
    assert made[key("compute", job="train", uid=2)] == Usage(carried_bytes=10)
    assert len([one for one in made if one.uid == 1]) == KEYS_MAX // 2


def test_what_a_program_reports_takes_nothing_from_what_the_kernel_counted_of_another_job() -> None:
    def jobs(counted: int, reported: int) -> tuple[JobSample, ...]:
        return (
            JobSample("train", "compute", leaf_sent_bytes=counted, uid=2),
            JobSample("liar", "compute", delivered_bytes=reported, uid=1),
        )

    made = booked(reading(jobs=jobs(0, 0)), reading(compute=1_000, jobs=jobs(900, 10**15)))
    assert made[key("compute", job="train", uid=2)] == Usage(carried_bytes=900)
    assert made[key("compute", job="liar", uid=1)] == Usage(carried_bytes=100)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 2 * 10**9), st.integers(0, GUARANTEE)),
        max_size=8,
    )
)
def test_whatever_is_counted_the_parts_are_the_whole(steps: list[tuple[int, int, int, int]]) -> None:
    ledger, compute, storage, job, lent = Ledger(), 0, 0, 0, 0
    ledger.book(reading(jobs=(JobSample("a", "compute", leaf_sent_bytes=0, uid=1),)), now_s=0.0, wall_s=NOON_S)
    for number, (sent, stored, own, lends) in enumerate(steps, 1):
        compute, storage, job, lent = compute + sent, storage + stored, job + own, lent + lends // 8
        ledger.book(
            reading(
                compute=compute,
                storage=storage,
                jobs=(JobSample("a", "compute", leaf_sent_bytes=job, uid=1),),
                lends={"compute": lends},
            ),
            now_s=float(number),
            wall_s=NOON_S + number,
        )
    made = ledger.take()
    of = {name: [one for key, one in made.items() if key.traffic_class == name] for name in ("compute", "storage")}
    assert sum(one.carried_bytes for one in of["compute"]) == compute
    assert sum(one.carried_bytes for one in of["storage"]) == storage
    assert sum(one.borrowed_bytes for one in of["compute"]) == sum(one.lent_bytes for one in of["storage"]) == lent
    assert sum(one.repaid_bytes for one in made.values()) <= lent
    assert all(
        min(one.carried_bytes, one.lent_bytes, one.borrowed_bytes, one.repaid_bytes) >= 0 for one in made.values()
    )
