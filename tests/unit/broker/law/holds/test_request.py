"""The way in: what storage may send towards us, over a link in virtual time and in single decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from inflow_link import Inflow, Storage
from msgspec.structs import replace

from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.state import State
from broker.model.leases import Hold
from broker.model.values import (
    Allocation,
    BrokerThere,
    Burst,
    ClassSample,
    InterfaceAllocation,
    InterfaceSample,
    Measurements,
    SenderSample,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES, Policy

LINK = 100_000_000
HELD_TO = 95_000_000
FLOOR = HELD_TO // 50
BURST = Burst("job", 1, 4_000_000, 0.0, 1.0)
POLICY = load('version = 1\n[[interface]]\nname = "a"\ningress = "100 Mbit/s"\n')
AUTO = load('version = 1\n[[interface]]\nname = "a"\ningress = "auto"\n')


@pytest.fixture(scope="module")
def idle_s() -> float:
    return Inflow(POLICY, []).run(10).step_s


def held(decision: Decision) -> dict[str, int]:
    return {hold.address: hold.rate_bits_per_s for hold in decision.holds}


def decided_s(decision: Decision) -> float:
    return decision.state.ingress[0].at_s or 0.0


def inbound(decision: Decision) -> InterfaceAllocation:
    (entry,) = decision.allocation.ingress
    return entry


def storage_reason(decision: Decision) -> str:
    (entry,) = [entry for entry in inbound(decision).classes if entry.name == "storage"]
    return entry.reason.code


# --- the closed loop ---------------------------------------------------------------------------------------------


def test_without_holds_a_flood_doubles_the_step(idle_s: float) -> None:
    assert Inflow(POLICY, [Storage("10.0.0.3", 140e6)], controlled=False).run(10).step_s > 1.8 * idle_s


@pytest.mark.parametrize("one_way_s", [0.002, 0.02])
def test_a_flood_leaves_the_step_as_it_is_and_gets_what_is_left(idle_s: float, one_way_s: float) -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3")], one_way_s=one_way_s).run(15)
    assert world.step_s <= (1.05 if one_way_s < 0.01 else 1.10) * idle_s
    assert world.of_leftover >= 0.85


@pytest.mark.parametrize("one_way_s", [0.002, 0.02])
def test_training_that_announces_nothing_is_seen_and_storage_gets_what_is_left(idle_s: float, one_way_s: float) -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3")], announces=False, one_way_s=one_way_s).run(15)
    assert world.step_s <= (1.25 if one_way_s < 0.01 else 1.5) * idle_s
    assert world.of_leftover >= 0.85
    reasons = {storage_reason(decision) for decision in world.decisions}
    assert {"burst-seen", "leaves-room"} <= reasons
    held_to = [held(decision)["10.0.0.3"] for decision in world.decisions if held(decision)]
    assert min(held_to) >= 0.95 * HELD_TO // 5, "it keeps its guarantee: nobody promised these bursts"
    assert len(world.decisions) <= 25 * 15


@pytest.mark.parametrize(
    "beside",
    [
        pytest.param(lambda now_s: (Burst("x", 1, 0, now_s, 3600.0, uid=1001),), id="without credit"),
        pytest.param(lambda now_s: (Burst("x", 1, 1, now_s, 3600.0, uid=1001),), id="a byte, for an hour"),
        pytest.param(lambda now_s: (Burst("x", int(now_s * 4), 1, now_s % 0.25, 1.0, uid=1001),), id="bytes, each new"),
        pytest.param(
            lambda now_s: (Burst("x", int(now_s / 2), 50_000, now_s % 2, 2.0, uid=1001),) if now_s % 2 < 0.1 else (),
            id="small steps of a job that announces",
        ),
    ],
)
def test_what_others_announce_does_not_hide_training_that_announces_nothing(
    idle_s: float, beside: Callable[[float], tuple[Burst, ...]]
) -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3")], announces=False, beside=beside).run(15)
    assert world.step_s <= 1.25 * idle_s
    assert "burst-seen" in {storage_reason(decision) for decision in world.decisions if decided_s(decision) > 2}


def test_nobody_looks_between_ticks_for_training_without_storage_or_that_announces() -> None:
    assert not any(decision.watches for decision in Inflow(POLICY, [], announces=False).run(5).decisions)
    assert not any(decision.watches for decision in Inflow(POLICY, [Storage("10.0.0.3")]).run(5).decisions)


def test_two_floods_share_and_one_that_wants_little_leaves_the_rest() -> None:
    even = Inflow(POLICY, [Storage("10.0.0.3"), Storage("10.0.0.4")]).run(10)
    one, other = (sender.arrived_bits for sender in even.senders)
    assert one == pytest.approx(other, rel=0.03)
    uneven = Inflow(POLICY, [Storage("10.0.0.3", 10e6), Storage("10.0.0.4")]).run(15)
    assert uneven.of_leftover >= 0.85


def test_a_sender_that_comes_later_is_held_from_its_first_look_on() -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3"), Storage("10.0.0.4", from_s=5.05)]).run(5.3)
    first = next(decision for decision in world.decisions if "10.0.0.4" in held(decision))
    assert (first.state.ingress[0].at_s or 9.0) <= 5.05 + 0.11
    assert sum(held(first).values()) <= HELD_TO


def test_training_that_never_uses_more_than_a_quarter_leaves_storage_the_rest() -> None:
    slow = {"pace_bits_per_s": 25e6, "burst_bytes": 1_000_000}
    idle = Inflow(POLICY, [], **slow).run(10)  # type: ignore[arg-type]
    world = Inflow(POLICY, [Storage("10.0.0.3")], **slow).run(15)  # type: ignore[arg-type]
    assert world.step_s <= 1.05 * idle.step_s
    assert world.of_leftover >= 0.8


@pytest.mark.parametrize("burst_bytes", [300_000, 600_000])
def test_short_bursts_at_a_part_of_the_link_leave_storage_the_rest(burst_bytes: int) -> None:
    slow = {"pace_bits_per_s": 30e6, "burst_bytes": burst_bytes}
    idle = Inflow(POLICY, [], **slow).run(10)  # type: ignore[arg-type]
    world = Inflow(POLICY, [Storage("10.0.0.3")], **slow).run(15)  # type: ignore[arg-type]
    assert world.step_s <= 1.02 * idle.step_s
    assert world.of_leftover >= 0.88, "0.77 and 0.65 with storage at its floor in each"


@pytest.mark.parametrize("burst_bytes", [300_000, 600_000])
def test_short_bursts_at_full_rate_keep_the_link(burst_bytes: int) -> None:
    """Averaged until their end is reported they look slower than they are."""
    idle = Inflow(POLICY, [], burst_bytes=burst_bytes).run(10)
    world = Inflow(POLICY, [Storage("10.0.0.3")], burst_bytes=burst_bytes).run(15)
    assert world.step_s <= 1.06 * idle.step_s, "12 ms of a step of 230 pass until the hold is in force"


def test_a_long_burst_leaves_storage_what_training_does_not_use_of_it() -> None:
    """Its sender's own way out carries 0.6 of our link: more than half, so that each burst begins with all of it."""
    slow = {"pace_bits_per_s": 60e6, "burst_bytes": 6_000_000}
    idle = Inflow(POLICY, [], **slow).run(8)  # type: ignore[arg-type]
    world = Inflow(POLICY, [Storage("10.0.0.3")], **slow).run(8)  # type: ignore[arg-type]
    assert world.step_s <= 1.02 * idle.step_s
    assert world.of_leftover >= 0.62, "0.47 with storage at its floor until the burst is over"


@pytest.mark.parametrize("deadline_s", [0.3, 1.0])
@pytest.mark.parametrize(("pace_bits_per_s", "grows_per_s"), [(3e6, 2.0), (10e6, 0.7), (20e6, 0.7)])
def test_a_window_that_starts_small_grows_as_fast_beside_a_flood_as_on_an_idle_link(
    pace_bits_per_s: float, grows_per_s: float, deadline_s: float
) -> None:
    def trains(*storage: Storage) -> Inflow:
        return Inflow(
            POLICY, list(storage), burst_bytes=2_500_000, pause_s=0.14, pace_bits_per_s=pace_bits_per_s,
            grows_per_s=grows_per_s, deadline_s=deadline_s,
        ).run(12)  # fmt: skip

    alone, flooded = trains(), trains(Storage("10.0.0.3"))
    slow = [sum(step_s > 1.15 * alone.step_s for step_s in world.steps) for world in (alone, flooded)]
    assert slow[1] <= slow[0] + 1, (alone.steps[:10], flooded.steps[:10])
    assert flooded.of_leftover >= 0.8


@pytest.mark.parametrize("part", [0.0, 0.02, 0.05, 0.1, 0.2, 0.28])
def test_who_announces_a_terabyte_and_trickles_takes_little_more_than_he_sends(part: float) -> None:
    world = Inflow(
        POLICY, [Storage("10.0.0.3")], burst_bytes=10**12, deadline_s=3600.0, pace_bits_per_s=part * LINK
    ).run(20)  # fmt: skip
    assert world.of_leftover >= 0.9


@pytest.mark.parametrize("part", [0.05, 0.1, 0.2])
def test_who_trickles_in_small_bursts_does_not_keep_storage_away(part: float) -> None:
    size = int(part * LINK * 0.4 / 8)
    slow = Inflow(POLICY, [Storage("10.0.0.3")], burst_bytes=size, pause_s=0.05, pace_bits_per_s=part * LINK).run(20)
    assert len(slow.steps) > 30
    assert slow.of_leftover >= 0.85


@pytest.mark.parametrize("every_s", [0.25, 0.5, 1.0])
def test_a_liar_whose_bursts_alternate_with_an_honest_jobs_leaves_storage_its_guarantee(every_s: float) -> None:
    """His are measured by the other's bytes, so they keep their credit; the guarantee bounds what he takes."""
    world = Inflow(
        POLICY, [Storage("10.0.0.3")], pause_s=0.3,
        beside=lambda now_s: (Burst("z", int(now_s / every_s), 4_000_000, now_s % every_s, 1.0, uid=1001),),
    ).run(20)  # fmt: skip
    guarantee_bits_per_s = 0.2 * HELD_TO
    owed_bits = 0.03 * guarantee_bits_per_s * 60  # before it is made good
    assert world.storage_bits >= 20 * guarantee_bits_per_s - owed_bits


def test_a_job_whose_bursts_never_come_loses_its_privilege_and_gets_it_back() -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3")], comes=lambda step: 0.0 if step <= 12 else 1.0, pause_s=0.3).run(14)
    begun = world.begun

    def holds_at(step: int) -> bool:
        during = [
            decision
            for decision in world.decisions
            if begun[step - 1] <= (decision.state.ingress[0].at_s or 0) < begun[step - 1] + 0.02
        ]
        return any(storage_reason(decision) == "burst-comes" for decision in during)

    assert holds_at(1)
    assert not any(holds_at(step) for step in range(6, 13))
    assert holds_at(16)


def test_a_rank_that_only_sends_leaves_storage_its_inbound_link_until_something_comes() -> None:
    """It sends a hundred times what comes in, so its announcements keep their credit."""

    def takes_part(now_s: float) -> bool:
        return now_s % 0.5 < 0.3

    decision, codes, came, stored = Decision(State(), Allocation(())), [], 0, 0
    for tick in range(100):
        now_s, receives = tick / 10, tick >= 80
        trains = takes_part(now_s)
        came, stored = came + (1_000_000 if trains and receives else 10_000 if trains else 0), stored + 10_000
        classes = tuple(ClassSample(name, tick * 1_000_000 if name == "compute" else 0) for name in CLASS_NAMES)
        sample = InterfaceSample(
            "a", LINK, 0.0, classes, bursts=(Burst("job", tick // 5, 3_000_000, 0.0, 1.0),) if trains else (),
            received_bytes=came + int(1.05 * stored), senders=(sender("10.0.0.3", stored),),
        )  # fmt: skip
        decision = decide(now_s=now_s, state=decision.state, measurements=Measurements((sample,)), policy=AUTO)
        codes.append(storage_reason(decision))
    assert "burst-comes" in codes[:10]
    assert "burst-comes" not in codes[20:80]
    assert "burst-comes" in codes[80:90]


def test_bursts_that_are_announced_and_never_sent_leave_storage_the_way_in() -> None:
    """A byte to each of many steps, or nothing at all, and by one user under another's name of a job."""
    for claimed in (0, 1, 4_000_000):
        decision, codes = Decision(State(), Allocation(())), []
        for tick in range(600):
            lies = [
                Burst(job, tick // 3, claimed, 0.0, 1.0, uid=1000) for job in ("job", *(f"z{n}" for n in range(99)))
            ]
            decision = at(
                tick / 10, sender("10.0.0.3", tick * 1_000_000), received_bytes=tick * 1_050_000, bursts=lies,
                state=decision.state,
            )  # fmt: skip
            codes.append(storage_reason(decision))
        assert codes.count("burst-comes") <= 0.04 * len(codes), claimed
        for now_s in (60.0, 60.1):
            honest = Burst("job", 1, 4_000_000, 0.0, 1.0, uid=1001)
            decision = at(now_s, sender("10.0.0.3", 600_000_000), bursts=[*lies, honest], state=decision.state)
            assert storage_reason(decision) == "burst-comes", "the other user's job has lost nothing"


# --- single decisions --------------------------------------------------------------------------------------------


def sender(address: str, received_bytes: int = 0, **fields: object) -> SenderSample:
    return SenderSample(address, "storage", received_bytes, 0.0, 0.01, **{"broker": "yes", **fields})  # type: ignore[arg-type]


def at(
    now_s: float, *senders: SenderSample, burst: bool = False, bursts: Sequence[Burst] = (),
    received_bytes: int | None = 0, link: int | None = LINK, state: State | None = None, policy: Policy = AUTO,
) -> Decision:  # fmt: skip
    classes = tuple(ClassSample(name, 0) for name in CLASS_NAMES)
    sample = InterfaceSample(
        "a", link, 0.0, classes, bursts=(BURST,) if burst else tuple(bursts), received_bytes=received_bytes,
        senders=senders,
    )  # fmt: skip
    return decide(now_s=now_s, state=state or State(), measurements=Measurements((sample,)), policy=policy)


def test_nobody_is_held_while_nobody_trains() -> None:
    decision = at(0.0, sender("10.0.0.3"))
    assert (decision.holds, storage_reason(decision)) == ((), "nothing-to-protect")
    burst = at(0.1, sender("10.0.0.3"), burst=True, state=decision.state)
    assert held(burst) == {"10.0.0.3": FLOOR}
    between = at(0.5, sender("10.0.0.3"), state=burst.state)
    assert held(between) == {"10.0.0.3": HELD_TO}
    assert at(11.0, sender("10.0.0.3"), state=between.state).holds == ()


def test_what_comes_of_another_class_counts_as_the_rest() -> None:
    decision = at(0.0, sender("10.0.0.3"), burst=True)
    for tick in range(1, 30):
        decision = at(tick / 10, sender("10.0.0.3"), received_bytes=tick * 500_000, state=decision.state)
    (rate,) = held(decision).values()
    assert rate == pytest.approx(HELD_TO - 1.1 * 40_000_000, rel=0.02)


def test_what_a_new_sender_brought_before_it_was_seen_is_storage_and_not_the_rest() -> None:
    decision = at(0.0, burst=True)
    for tick in (1, 2):
        decision = at(tick / 10, state=decision.state)
    first = at(0.3, sender("10.0.0.3", 950_000), received_bytes=1_000_000, state=decision.state)
    (rate,) = held(first).values()
    assert rate >= 0.99 * HELD_TO, "80 Mbit/s for a tick, counted as others', would leave it less"
    both = at(
        0.3, sender("10.0.0.3", 900_000), sender("10.0.0.4", 900_000), received_bytes=1_000_000, state=decision.state
    )
    assert both.state.ingress[0].storage_bits <= 8_000_000, "no more than came"


def test_without_a_speed_nothing_is_held_and_an_alarm_says_so() -> None:
    decision = at(0.0, sender("10.0.0.3"), burst=True, link=None)
    assert decision.holds == ()
    assert "ingress-unknown" in {alarm.code for alarm in decision.alarms}


def test_a_sender_without_a_broker_is_not_asked_and_is_said() -> None:
    decision = at(0.0, sender("10.0.0.3", broker=BrokerThere.NO), sender("10.0.0.4"), burst=True)
    assert list(held(decision)) == ["10.0.0.4"]
    assert {(alarm.code, alarm.subject) for alarm in decision.alarms} >= {("sender-without-broker", "a/10.0.0.3")}
    assert not inbound(decision).in_kernel


def test_with_a_rate_the_kernel_holds_who_has_no_broker_for_a_minute_after_it_sent() -> None:
    quiet = at(0.0, sender("10.0.0.3", broker=BrokerThere.NO), burst=True, policy=POLICY)
    assert not inbound(quiet).in_kernel
    sends = at(0.1, sender("10.0.0.3", 100_000, broker=BrokerThere.NO), burst=True, policy=POLICY, state=quiet.state)
    assert inbound(sends).in_kernel
    storage = next(entry for entry in inbound(sends).classes if entry.name == "storage")
    assert storage.ceil_bits_per_s == FLOOR
    assert sum(entry.rate_bits_per_s for entry in inbound(sends).classes) <= HELD_TO
    assert not inbound(at(61.0, policy=POLICY, state=sends.state)).in_kernel


def test_with_a_rate_the_kernel_holds_whose_broker_has_refused_for_two_seconds() -> None:
    decision, shaped = Decision(State(), Allocation(())), []
    for tick in range(40):
        refuses = sender("10.0.0.3", tick * 100_000, refused=tick >= 10)
        decision = at(tick / 10, refuses, burst=True, policy=POLICY, state=decision.state)
        shaped.append(inbound(decision).in_kernel)
    assert shaped == [False] * 31 + [True] * 9
    assert list(held(decision)) == ["10.0.0.3"], "it is asked all the same"
    assert "hold-refused" in {alarm.code for alarm in decision.alarms}


def test_the_promises_that_senders_are_told_add_up_to_our_link() -> None:
    decision = at(0.0, sender("10.0.0.3"), sender("10.0.0.4"), sender("10.0.0.5"), burst=True)
    assert sum(hold.capacity_bits_per_s for hold in decision.holds) <= HELD_TO
    assert [hold.capacity_bits_per_s > HELD_TO // 4 for hold in decision.holds] == 3 * [True]


def test_storage_that_is_owed_on_the_way_in_is_not_held_to_its_floor() -> None:
    decision, bytes_come = at(0.0, sender("10.0.0.3"), burst=True), 0
    codes = set()
    for tick in range(1, 60):  # training comes at full rate and never stops; storage gets its floor
        bytes_come += LINK // 80
        stored = tick * FLOOR // 84
        burst = Burst("job", tick // 5, 4_000_000, 0.0, 1.0)
        classes = tuple(ClassSample(name, bytes_come if name == "compute" else 0) for name in CLASS_NAMES)
        sample = InterfaceSample(
            "a", LINK, 0.0, classes, bursts=(burst,), received_bytes=bytes_come, senders=(sender("10.0.0.3", stored),)
        )  # fmt: skip
        decision = decide(
            now_s=tick / 10, state=decision.state, measurements=Measurements((sample,)), policy=AUTO
        )  # fmt: skip
        codes.add(storage_reason(decision))
    assert {"burst-comes", "inbound-guarantee-repaid"} <= codes
    assert held(decision)["10.0.0.3"] > 0.2 * HELD_TO


def test_counters_that_go_back_or_are_missing_decide_nothing_absurd() -> None:
    decision = at(0.0, sender("10.0.0.3", 10**9), burst=True, received_bytes=10**9)
    for now_s, came, stored in ((0.1, 0, 0), (0.2, None, 0), (0.3, 10**12, 10**12), (0.4, 1, 5)):
        decision = at(now_s, sender("10.0.0.3", stored), received_bytes=came, state=decision.state)
        (rate,) = held(decision).values()
        assert 0 < rate <= HELD_TO


def test_the_same_sender_through_two_interfaces_is_asked_for_the_lower_rate() -> None:
    policy = load("version = 1\n" + "".join(f'[[interface]]\nname = "{name}"\ningress = "auto"\n' for name in "ab"))
    bursts = (Burst("job", 1, 4_000_000, 0.0, 1.0),)
    samples = tuple(
        InterfaceSample(name, link, 0.0, (), bursts=bursts, senders=(sender("10.0.0.3"),))
        for name, link in (("a", LINK), ("b", LINK // 2))
    )
    decision = decide(now_s=0.0, state=State(), measurements=Measurements(samples), policy=policy)
    assert held(decision) == {"10.0.0.3": FLOOR // 2}


def test_holds_are_recorded_and_replayed_to_the_byte() -> None:
    world = Inflow(POLICY, [Storage("10.0.0.3")])
    state, lines = State(), [header_line(policy=POLICY, state=State())]
    for tick in range(20):
        measurements = Measurements(
            (
                InterfaceSample(
                    "a", None, 0.0, tuple(ClassSample(name, 0) for name in CLASS_NAMES), received_bytes=tick * 10**6,
                    bursts=(Burst("job", tick // 7, 10**6, 0.0, 0.5, 0.3),),
                    senders=(sender("10.0.0.3", tick * 10**5),),
                ),
            )
        )  # fmt: skip
        decision = decide(now_s=tick / 10, state=state, measurements=measurements, policy=world.policy)
        lines.append(tick_line(now_s=tick / 10, measurements=measurements, decision=decision))
        state = decision.state
    assert replay(lines).first_difference is None
    changed = lines[5].replace('"age_s":0.0,"rtt_s":0.01', '"age_s":0.0,"rtt_s":0.05')
    assert changed != lines[5]
    tampered = [*lines[:5], changed.replace('"rate_bits_per_s":1900000', '"rate_bits_per_s":1900001'), *lines[6:]]
    assert replay(tampered).first_difference is not None


def test_a_hold_says_why_and_ends_within_a_second() -> None:
    (hold,) = at(0.0, sender("10.0.0.3"), burst=True).holds
    assert isinstance(hold, Hold)
    assert (hold.traffic_class, hold.reason.code) == ("storage", "burst-comes")
    assert hold.lease_s < 1.0
    assert replace(hold, rate_bits_per_s=1) != hold
