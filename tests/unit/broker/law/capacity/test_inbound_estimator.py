"""What the way in carries: found, followed and given back, over a link in virtual time and in single decisions."""

from __future__ import annotations

import pytest
from inflow_link import Inflow, Storage

from broker.law.capacity import inbound as inbound_capacity
from broker.law.capacity import inbound_delay
from broker.law.capacity.evidence import INBOUND
from broker.law.capacity.inbound_delay import OutboundLoad
from broker.law.capacity.state import InboundCapacity, InboundSignalState, SenderDelayState
from broker.law.decide import decide
from broker.law.decision import Decision
from broker.law.recording import header_line, replay, tick_line
from broker.law.state import State
from broker.model.values import (
    BrokerThere,
    ClassSample,
    FlowSample,
    InterfaceAllocation,
    InterfaceSample,
    Measurements,
    SenderSample,
)
from broker.policy.toml import load
from broker.policy.types import CLASS_NAMES

LINK = 100_000_000
POLICY = load('version = 1\n[[interface]]\nname = "a"\ningress = "100 Mbit/s"\n')
AUTO = load('version = 1\n[[interface]]\nname = "a"\ningress = "auto"\n')
FALL_S, RISE_S = 4.0, 10.0
CHANGES = ((FALL_S, 30e6), (RISE_S, 70e6))
HEADROOM = 0.95


def inbound(decision: Decision) -> InterfaceAllocation:
    (entry,) = decision.allocation.ingress
    return entry


def decided_s(decision: Decision) -> float:
    return decision.state.ingress[0].at_s or 0.0


def capacities(world: Inflow, from_s: float, to_s: float) -> list[float]:
    """Of the decisions of a while, on the link's own scale."""
    during = [one for one in world.decisions if from_s <= decided_s(one) < to_s]
    return [inbound(one).capacity_bits_per_s / HEADROOM for one in during]


@pytest.fixture(scope="module", params=["trains", "silent", "stores", "one stores"])
def changing(request: pytest.FixtureRequest) -> Inflow:
    """A link that falls to less than a third and rises again: training that announces or not, or storage alone; or of
    one host alone, beside training whose clocks are the second voice."""
    senders = [Storage("10.0.0.3"), Storage("10.0.0.4")]
    if request.param == "one stores":
        senders = [Storage("10.0.0.3")]
    if request.param == "stores":
        senders = [Storage("10.0.0.3", 140e6), Storage("10.0.0.4", 140e6)]
    pause_s = 100.0 if request.param == "stores" else 0.2
    announces = request.param in ("trains", "one stores")
    return Inflow(POLICY, senders, changes=CHANGES, announces=announces, pause_s=pause_s, burst_bytes=1_000_000).run(16)


def test_a_fall_to_less_than_a_third_is_followed_within_a_second_and_a_half(changing: Inflow) -> None:
    assert set(capacities(changing, 1.0, FALL_S)) == {LINK}
    assert max(capacities(changing, FALL_S + 1.5, RISE_S)) <= 1.1 * 30e6
    assert min(capacities(changing, FALL_S + 1.5, RISE_S)) >= 0.75 * 30e6
    entry = inbound(next(one for one in changing.decisions if decided_s(one) >= FALL_S + 1.5))
    assert entry.capacity_source == "measured"
    assert entry.capacity_reason.code in ("inbound-queue", "inbound-draining", "inbound-probing")


def test_a_rise_is_followed_within_five_seconds(changing: Inflow) -> None:
    risen = capacities(changing, RISE_S + 5.0, 16.0)
    assert min(risen) >= 0.85 * 70e6
    assert max(risen) <= 1.15 * 70e6


@pytest.mark.parametrize(("training_bits_per_s", "risen_bits_per_s"), [(100e6, 0.85 * 70e6), (20e6, 1.1 * 30e6)])
def test_on_an_ifb_a_change_is_followed_by_what_tcp_says_beyond_what_waits_here(
    training_bits_per_s: float, risen_bits_per_s: float
) -> None:
    """No sender has a broker; what waits in the IFB is in every round trip of theirs. A rise is followed as far as what
    comes shows it: TCP, which loses at the start of each burst, does not come back to the link's rate in a pause."""
    senders = [Storage(f"10.0.0.{number}", broker=BrokerThere.NO, window_bits=4e5) for number in (3, 4)]
    changes = (8.0, 30e6), (18.0, 70e6)
    world = Inflow(POLICY, senders, changes=changes, burst_bytes=1_000_000, pace_bits_per_s=training_bits_per_s).run(26)
    assert min(capacities(world, 2.0, 8.0)) >= 0.9 * LINK
    assert max(capacities(world, 9.5, 18.0)) <= 1.01 * inbound_capacity.SHOWN * 30e6
    assert min(capacities(world, 9.5, 18.0)) >= 0.75 * 30e6
    assert min(capacities(world, 23.0, 26.0)) >= risen_bits_per_s
    assert max(capacities(world, 23.0, 26.0)) <= 1.01 * inbound_capacity.SHOWN * 70e6


def test_a_steady_link_keeps_what_is_configured_whatever_floods_it() -> None:
    for world in (
        Inflow(POLICY, [Storage("10.0.0.3")]),
        Inflow(POLICY, [Storage("10.0.0.3"), Storage("10.0.0.4", 20e6)], announces=False),
        Inflow(POLICY, [Storage("10.0.0.3", 140e6)], pause_s=100.0),
    ):
        world.run(8)
        assert min(capacities(world, 0.0, 8.0)) >= 0.96 * LINK


def test_without_a_speed_a_queue_shows_it_and_until_then_an_alarm_says_so() -> None:
    world = Inflow(AUTO, [Storage("10.0.0.3", 140e6), Storage("10.0.0.4", 140e6)], pause_s=100.0).run(3)
    first, last = world.decisions[0], world.decisions[-1]
    assert inbound(first).capacity_source == "fallback"
    assert [alarm.code for alarm in first.alarms if alarm.subject == "a"].count("ingress-unknown") == 1
    assert inbound(last).capacity_source == "measured"
    assert inbound(last).capacity_bits_per_s == pytest.approx(HEADROOM * LINK, rel=0.05)
    assert "ingress-unknown" not in {alarm.code for alarm in last.alarms}


def test_auto_without_other_brokers_finds_what_the_way_in_carries_and_asks_and_shapes_nothing() -> None:
    senders = [Storage(address, 140e6, broker=BrokerThere.NO) for address in ("10.0.0.3", "10.0.0.4")]
    world = Inflow(AUTO, senders, reported_bits_per_s=LINK, burst_bytes=1_000_000, changes=((FALL_S, 30e6),)).run(8)
    assert set(capacities(world, 1.0, FALL_S)) == {LINK}
    found = capacities(world, FALL_S + 1.5, 8.0)
    assert 0.75 * 30e6 <= min(found) <= max(found) <= 1.1 * 30e6
    assert not any(decision.holds or inbound(decision).in_kernel for decision in world.decisions)


def test_auto_finds_an_uplink_of_a_fiftieth_of_the_card() -> None:
    senders = [Storage(address, window_bits=4e5) for address in ("10.0.0.3", "10.0.0.4")]
    changes = ((0.0, 20e6),)
    world = Inflow(
        AUTO, senders, reported_bits_per_s=1e9, burst_bytes=250_000, changes=changes, grows_per_s=2.0
    ).run(8)  # fmt: skip
    found = capacities(world, 2.0, 8.0)
    assert 0.75 * 20e6 <= min(found) <= max(found) <= 1.1 * 20e6


def test_where_nobody_tells_of_delay_the_configured_rate_stands_and_the_reason_says_so() -> None:
    world = Inflow(
        POLICY, [Storage("10.0.0.3", 140e6, broker=BrokerThere.UNKNOWN)], pause_s=100.0, changes=((2.0, 30e6),)
    )
    world.clocks = False
    world.run(6)
    assert set(capacities(world, 0.0, 6.0)) == {LINK}
    assert inbound(world.decisions[-1]).capacity_reason.code == "inbound-not-measured"


# --- single decisions --------------------------------------------------------------------------------------------


class Ticks:
    """Ticks of a tenth of a second at an estimate: what comes, and how long packets of each sender take."""

    def __init__(self, base_bits_per_s: int = LINK, out: OutboundLoad | None = None) -> None:
        self.base = base_bits_per_s, "configured"
        self.out = out or OutboundLoad(LINK)
        self.state: InboundCapacity | None = None
        self.now_s = 0.0
        self.received_bytes = 0
        self.estimate: inbound_capacity.InboundEstimate

    def go(
        self, seconds: float, *, comes: float, ways: dict[str, float] | None = None,
        brokers: dict[str, float] | None = None, tcp: dict[str, float] | None = None,
        answers: dict[str, float] | None = None, answers_age_s: float = 0.0,
        held: frozenset[str] = frozenset(), limited: bool = False, crowd: int = 0, crowd_s: float = 0.0,
    ) -> inbound_capacity.InboundEstimate:  # fmt: skip
        """`crowd`: so many connections of another user, new ones at each tick where `crowd_s` passes between them."""
        for _ in range(round(10 * seconds)):
            self.now_s = round(self.now_s + 0.1, 6)
            self.received_bytes += int(comes / 80)
            noise_s = 1e-4 * (self.now_s % 0.7)
            flows = tuple(
                FlowSample(f"s/{peer}", peer, "compute", "report", 0.01, inbound_s=-50.0 + seconds_ + noise_s,
                           inbound_age_s=0.01, uid=2)
                for peer, seconds_ in (ways or {}).items()
            )  # fmt: skip
            turn = int(self.now_s / crowd_s) if crowd_s else 0
            flows += tuple(
                FlowSample(f"s-1/{turn}.{number:03}", f"10.1.{turn % 250}.{number}", "compute", "report", 0.01,
                           inbound_s=1.0, inbound_age_s=0.01, uid=1)
                for number in range(crowd)
            )  # fmt: skip
            trips = {address: trip_s + noise_s for address, trip_s in (brokers or {}).items()} | (answers or {})
            addresses = sorted({**trips, **(tcp or {})})
            senders = tuple(
                SenderSample(
                    address, "storage", 0, 0.0, 0.004, BrokerThere.YES,
                    broker_rtt_s=trips.get(address),
                    broker_rtt_age_s=answers_age_s,
                    receive_rtt_s=tcp[address] + noise_s if tcp and address in tcp else None,
                )
                for address in addresses
            )  # fmt: skip
            self.estimate = inbound_capacity.estimate(
                now_s=self.now_s, state=self.state, base=self.base, received_bytes=self.received_bytes, flows=flows,
                senders=senders, held=held, limited=limited, out=self.out, holding=bool(held), here={},
            )  # fmt: skip
            self.state = self.estimate.state
        return self.estimate


def test_two_senders_have_to_see_a_queue_and_none_must_see_none() -> None:
    for waits, clear, found in ((("b", "c"), (), True), (("b",), (), False), (("b", "c"), ("d",), False)):
        ticks = Ticks()
        ticks.go(2.0, comes=40e6, brokers=dict.fromkeys((*waits, *clear), 0.005))
        queued = dict.fromkeys(waits, 0.08) | dict.fromkeys(clear, 0.005)
        estimate = ticks.go(1.0, comes=40e6, brokers=queued)
        assert (estimate.source == "measured") is found, (waits, clear)
        assert (estimate.rate_bits_per_s == pytest.approx(HEADROOM * 40e6, rel=0.03)) is found


def test_a_program_alone_cannot_say_that_a_queue_stands_whatever_peers_it_names() -> None:
    for brokers, found in (({}, False), ({"d": 0.08}, True)):
        ticks = Ticks()
        ticks.go(2.0, comes=40e6, ways={"b": 0.005, "c": 0.005}, brokers=dict.fromkeys(brokers, 0.005))
        estimate = ticks.go(1.0, comes=40e6, ways={"b": 0.08, "c": 0.08}, brokers=brokers)
        assert (estimate.source == "measured") is found


@pytest.mark.parametrize("ticks_between", [10, 5, 2])
def test_a_broker_that_sees_no_queue_does_not_vouch_for_a_program_that_says_so_of_the_same_sender(
    ticks_between: int,
) -> None:
    """Ever more delay is told of a storage host and of somebody invented, while the host's broker answers in 5 ms."""
    ticks = Ticks(out=OutboundLoad(LINK, load=0.1))
    answer_s = 0.005
    for tick in range(600):
        if tick % ticks_between == 0:
            answer_s = 0.005 + 1e-5 * (tick % 7)
        said_s = 0.005 if tick < 20 else 1.0 if tick < 34 else 0.05 + 0.0012 * tick
        let_in = min(60e6, ticks.estimate.rate_bits_per_s) if tick else 60e6
        ticks.go(
            0.1, comes=let_in, ways={"d": said_s, "made-up": said_s}, answers={"d": answer_s}, held=frozenset({"d"}),
            limited=True,
        )  # fmt: skip
        assert ticks.estimate.rate_bits_per_s == HEADROOM * LINK, tick


def test_a_program_that_names_many_peers_drives_out_nothing_that_was_measured() -> None:
    ticks = Ticks()
    many = {f"p{number:02}": 0.005 for number in range(70)}
    for waits_s in (0.005, 0.08):
        for tick in range(30):
            brokers = {"b": waits_s, "c": waits_s} if tick % 10 == 0 else None
            ticks.go(0.1, comes=40e6, ways=dict.fromkeys(many, waits_s), brokers=brokers)
    assert ticks.estimate.source == "measured"


@pytest.mark.parametrize("crowd_s", [0.0, 0.1])
def test_one_users_connections_crowd_no_other_out_of_what_tells_of_a_queue(crowd_s: float) -> None:
    """One sender's broker sees the queue, and one program's clock confirms it; the crowd says nothing."""
    ticks = Ticks()
    for waits_s in (0.005, 0.08):
        ticks.go(
            2.0, comes=40e6, ways={"b": waits_s}, brokers={"d": waits_s}, crowd=inbound_delay.SOURCES_MAX,
            crowd_s=crowd_s,
        )  # fmt: skip
    assert ticks.estimate.source == "measured"
    assert ticks.state is not None
    assert len(ticks.state.signals.sources) <= inbound_delay.SOURCES_MAX


def test_of_two_crowds_each_user_s_connections_have_as_many_places() -> None:
    flows = [
        FlowSample(f"s-{uid}/10.0.{uid}.{number}:1", f"10.0.{uid}.{number}", "compute", "report", 0.0,
                   inbound_s=1.0 + 1e-6 * number, inbound_age_s=0.0, uid=uid)
        for uid in (1, 2)
        for number in range(inbound_delay.SOURCES_MAX)
    ]  # fmt: skip
    found = inbound_delay.observe(
        InboundSignalState(), flows=flows, senders=(), held=frozenset(), out=OutboundLoad(LINK), now_s=1.0, here={}
    )
    users = [source.uid for source in found.sources]
    assert users.count(1) == users.count(2) == inbound_delay.SOURCES_MAX // 2


def test_a_round_trip_counts_where_the_way_out_is_idle_or_explains_its_part() -> None:
    for out, trip_s, found in (
        (OutboundLoad(LINK, load=0.1), 0.08, True),
        (OutboundLoad(LINK, load=0.9), 0.08, False),
        (OutboundLoad(LINK, load=0.9, excess_s=0.0), 0.08, True),
        (OutboundLoad(LINK, load=0.9, excess_s=0.07), 0.08, False),
    ):
        ticks = Ticks(out=out)
        ticks.go(2.0, comes=40e6, brokers={"b": 0.005, "c": 0.005})
        estimate = ticks.go(1.5, comes=40e6, brokers={"b": trip_s, "c": trip_s})
        assert (estimate.source == "measured") is found, out


def test_a_round_trip_from_before_a_drains_end_says_nothing_of_what_is_there_now() -> None:
    for age_s, seen in ((0.0, True), (1.0, False)):
        ticks = Ticks()
        ticks.go(2.0, comes=60e6, brokers={"b": 0.005, "c": 0.005})
        while not ticks.state or not ticks.state.estimate.cut:
            ticks.go(0.1, comes=60e6, brokers={"b": 0.08, "c": 0.08}, held=frozenset({"d"}))
        ticks.go(ticks.state.estimate.cut.drained_s - ticks.now_s, comes=20e6, held=frozenset({"d"}))
        before = ticks.state.signals.sender_delays
        ticks.go(0.1, comes=40e6, brokers={"b": 0.07, "c": 0.07}, answers_age_s=age_s, held=frozenset({"d"}))
        assert (ticks.state.signals.sender_delays != before) is seen


def test_the_reason_stands_while_a_sender_says_now_this_and_now_that() -> None:
    ticks = Ticks()
    ticks.go(2.0, comes=40e6, brokers={"b": 0.005, "c": 0.005})
    waits_s = (0.08, 0.08, 0.005, 0.08, 0.08, 0.08, 0.005, 0.005)
    codes = {ticks.go(0.1, comes=40e6, brokers={"b": waits_s[tick % 8], "c": 0.005}).reason.code for tick in range(80)}
    assert codes == {"link-rate"}


def test_what_tcp_says_of_a_sender_that_we_hold_back_is_about_our_hold() -> None:
    for held, found in ((frozenset[str](), True), (frozenset({"b", "c"}), False)):
        ticks = Ticks()
        ticks.go(2.0, comes=40e6, tcp={"b": 0.005, "c": 0.005})
        assert (ticks.go(1.5, comes=40e6, tcp={"b": 0.2, "c": 0.2}, held=held).source == "measured") is found


def test_delay_with_next_to_nothing_coming_in_is_somebody_elses() -> None:
    ticks = Ticks()
    ticks.go(2.0, comes=2e6, ways={"b": 0.005}, brokers={"c": 0.005})
    assert ticks.go(3.0, comes=2e6, ways={"b": 0.2}, brokers={"c": 0.2}).rate_bits_per_s == HEADROOM * LINK


def test_delay_that_stays_while_ever_less_is_let_in_gives_the_rate_back() -> None:
    """Others fill the bottleneck: whatever we let in, it waits as long."""
    ticks = Ticks()
    ticks.go(2.0, comes=60e6, ways={"b": 0.005}, brokers={"c": 0.005})
    rates: list[int] = []
    for _ in range(120):
        let_in = 0.95 * (ticks.estimate.rate_bits_per_s if rates else 60e6)
        rates.append(
            ticks.go(0.1, comes=let_in, ways={"b": 0.08}, brokers={"c": 0.08}, held=frozenset({"d"})).rate_bits_per_s
        )  # fmt: skip
    assert min(rates) < 60e6
    assert ticks.estimate.reason.code == "delay-not-ours"
    assert rates[-1] == HEADROOM * LINK


def test_delay_that_began_with_an_overshoot_is_doubted_as_soon() -> None:
    """Others fill the bottleneck, and their windows were too large at first."""
    ticks = Ticks()
    ticks.go(2.0, comes=60e6, ways={"b": 0.005}, brokers={"c": 0.005})
    rates: list[int] = []
    for tick in range(150):
        waits_s = 0.005 + (0.25 if tick < 14 else 0.12)
        let_in = min(60e6, ticks.estimate.rate_bits_per_s)
        ticks.go(0.1, comes=let_in, ways={"b": waits_s}, brokers={"c": waits_s}, held=frozenset({"d"}))
        rates.append(ticks.estimate.rate_bits_per_s)
    assert HEADROOM * 35e6 < min(rates) < HEADROOM * 60e6
    assert ticks.estimate.reason.code == "delay-not-ours"
    assert rates[-1] == HEADROOM * LINK


def test_less_than_the_guarantees_of_what_the_operator_wrote_is_an_alarm() -> None:
    for policy, alarmed in ((POLICY, True), (AUTO, False)):
        senders = [Storage("10.0.0.3", 140e6), Storage("10.0.0.4", 140e6)]
        world = Inflow(policy, senders, pause_s=100.0, changes=((2.0, 30e6),)).run(5)
        before = next(one for one in world.decisions if decided_s(one) > 1.9)
        codes = [{alarm.code for alarm in one.alarms} for one in (before, world.decisions[-1])]
        assert ["ingress-below-guarantees" in one for one in codes] == [False, alarmed]


def test_a_queue_is_drained_only_while_somebody_is_held() -> None:
    for held, drains in ((frozenset({"d"}), True), (frozenset[str](), False)):
        ticks = Ticks()
        ticks.go(2.0, comes=60e6, ways={"b": 0.005}, brokers={"c": 0.005})
        seen = [
            ticks.go(0.1, comes=60e6, ways={"b": 0.08}, brokers={"c": 0.08}, held=held).draining for _ in range(10)
        ]  # fmt: skip
        assert any(seen) is drains


def test_a_program_that_sees_no_queue_does_not_outweigh_two_that_are_measured() -> None:
    for brokers, found in ((("b", "c"), True), (("b",), False)):
        ticks = Ticks()
        ticks.go(2.0, comes=40e6, ways={"d": 0.005, "e": 0.005}, brokers=dict.fromkeys(brokers, 0.005))
        estimate = ticks.go(1.0, comes=40e6, ways={"d": 0.08, "e": 0.005}, brokers=dict.fromkeys(brokers, 0.08))
        assert (estimate.source == "measured") is found


def test_one_sender_that_always_waits_and_programs_that_say_so_forbid_no_raise() -> None:
    """Its own uplink is full; another's broker sees that no queue is ours."""
    ticks = Ticks()
    ticks.go(2.0, comes=40e6, ways={"d": 0.005}, brokers={"b": 0.005, "c": 0.005})
    found = ticks.go(1.0, comes=40e6, ways={"d": 0.08}, brokers={"b": 0.08, "c": 0.08}).rate_bits_per_s
    assert found == pytest.approx(HEADROOM * 40e6, rel=0.03)
    later = let_in(ticks, 5.0, link=LINK, ways={"d": 0.08}, brokers={"b": 0.005, "c": 0.08})
    assert later[-1] > found


def test_what_nobody_knows_for_ten_seconds_is_forgotten() -> None:
    ticks = Ticks()
    ticks.go(2.0, comes=40e6, ways={"d": 0.005, "e": 0.005}, brokers={"b": 0.005})
    found = ticks.go(1.0, comes=40e6, ways={"d": 0.08, "e": 0.08}, brokers={"b": 0.08}).rate_bits_per_s
    assert found == pytest.approx(HEADROOM * 40e6, rel=0.03)
    disagreeing = {"d": 0.08, "e": 0.005}
    assert ticks.go(8.0, comes=0.95 * found, ways=disagreeing, limited=True).rate_bits_per_s == found
    assert ticks.go(4.0, comes=0.95 * found, ways=disagreeing, limited=True).rate_bits_per_s == HEADROOM * LINK


def test_a_raise_waits_until_storage_is_what_limits_and_somebody_sees_no_queue() -> None:
    for limited, ways, raised in (
        (True, {"b": 0.005, "c": 0.005}, True),
        (False, {"b": 0.005}, False),
        (True, {}, False),
    ):
        ticks = Ticks()
        ticks.go(2.0, comes=40e6, ways={"b": 0.005}, brokers={"c": 0.005})
        found = ticks.go(1.0, comes=40e6, ways={"b": 0.08}, brokers={"c": 0.08}).rate_bits_per_s
        later = ticks.go(4.0, comes=0.95 * found, ways=ways, limited=limited).rate_bits_per_s
        assert (later > found) is raised


def found_lower(ways: dict[str, float]) -> tuple[Ticks, int]:
    """A way in that was found to carry 40 Mbit/s by two brokers' word, beside what programs tell."""
    ticks = Ticks()
    calm = {"b": 0.005, "c": 0.005}
    ticks.go(2.0, comes=40e6, ways=dict.fromkeys(ways, 0.005), brokers=calm)
    ticks.go(1.0, comes=40e6, ways=dict.fromkeys(ways, 0.08), brokers=dict.fromkeys(calm, 0.08))
    return ticks, ticks.estimate.rate_bits_per_s


def test_where_two_measured_ones_are_sure_that_there_is_no_queue_a_program_slows_no_raise() -> None:
    """What a sender's own shaper holds back makes its clocks late, too."""
    ticks, found = found_lower({"d": 0.08})
    later = let_in(ticks, 2.5, link=LINK, ways={"d": 0.2}, brokers={"b": 0.005, "c": 0.005})
    assert later[-1] > 1.02 * found, "raised before the 3 s for which a doubt is waited for"


def let_in(
    ticks: Ticks, seconds: float, *, link: float, ways: dict[str, float], brokers: dict[str, float]
) -> list[int]:
    """The rates of a while in which a link brings all that is let in, as far as it carries that."""
    return [
        ticks.go(
            0.1, comes=min(link, ticks.estimate.rate_bits_per_s), ways=ways, brokers=brokers, limited=True
        ).rate_bits_per_s
        for _ in range(round(10 * seconds))
    ]  # fmt: skip


def test_a_raise_goes_no_further_than_what_came_shows() -> None:
    ticks, found = found_lower({})
    rates = let_in(ticks, 6.0, link=36e6, ways={}, brokers={"b": 0.005, "c": 0.005})
    assert found < max(rates) <= 1.01 * HEADROOM * inbound_capacity.SHOWN * 36e6


@pytest.mark.parametrize("link", [40e6, 0.9 * LINK])
def test_a_raise_that_nothing_shows_to_be_right_is_undone(link: float) -> None:
    """A link brings no more, whatever is let in, and in short gaps between bursts no queue tells of it. Also where the
    raise has come to what the link is said to carry."""
    ticks, _ = found_lower({})
    let_in(ticks, 15.0, link=link, ways={}, brokers={"b": 0.005, "c": 0.005})
    rates = let_in(ticks, 12.0, link=link, ways={}, brokers={"b": 0.005, "c": 0.005})
    beyond = "".join("x" if rate > 1.03 * link else " " for rate in rates)
    assert "x" in beyond, "tried"
    assert max(len(run) for run in beyond.split()) <= 10 * (INBOUND.proof_s + 0.1)
    assert rates[-1] >= 0.99 * HEADROOM * link


@pytest.mark.parametrize(
    ("waits_s", "clear", "disputed"),
    [
        ((0.0, 0.0, 0.0, 0.0), True, False),
        ((0.0, 0.0, 0.0, 0.02), False, False),
        ((0.02, 0.02, 0.0, 0.0), True, True),
        ((0.02, 0.02, 0.02, 0.0), False, True),
        ((0.0, 0.02, 0.02, 0.02), False, True),
    ],
)
def test_nobody_is_sure_whose_last_sample_was_late_and_half_of_them_late_is_doubt(
    waits_s: tuple[float, ...], clear: bool, disputed: bool
) -> None:
    series = tuple((1.0 + place / 10, seconds) for place, seconds in enumerate(waits_s))
    state = InboundSignalState(sender_delays=(SenderDelayState("b", measured=series),))
    said = inbound_delay.verdict(state, threshold_s=0.012, now_s=1.4)
    assert (said.queue, said.clear, said.disputed) == (False, clear, disputed)


def test_counters_that_go_back_or_are_missing_change_nothing() -> None:
    ticks = Ticks()
    ticks.go(2.0, comes=60e6, ways={"b": 0.005}, brokers={"c": 0.005})
    ticks.received_bytes = 0
    ticks.go(0.1, comes=0, ways={"b": 0.08}, brokers={"c": 0.08})
    missing = inbound_capacity.estimate(
        now_s=ticks.now_s + 0.1, state=ticks.state, base=ticks.base, received_bytes=None, flows=(), senders=(),
        held=frozenset(), limited=False, out=ticks.out, holding=False, here={},
    )  # fmt: skip
    assert missing.rate_bits_per_s == HEADROOM * LINK
    assert missing.state.signals.came == ()


def test_what_it_rests_on_is_recorded_and_replays_to_the_byte() -> None:
    state, lines = State(), [header_line(policy=POLICY, state=State())]
    for tick in range(40):
        waits_s = 0.08 if tick > 20 else 0.005
        noise_s = 1e-5 * tick
        flows = tuple(
            FlowSample(f"s/{peer}", peer, "compute", "report", 0.0, inbound_s=waits_s + noise_s, inbound_age_s=0.0)
            for peer in ("10.0.0.2", "10.0.0.5")
        )
        senders = (SenderSample("10.0.0.3", "storage", tick * 400_000, 0.0, 0.004, broker_rtt_s=waits_s + noise_s),)
        classes = tuple(ClassSample(name, 0) for name in CLASS_NAMES)
        sample = InterfaceSample(
            "a", None, 0.0, classes, flows, received_bytes=tick * 500_000, senders=senders, pace_bits_per_s=tick
        )
        decision = decide(
            now_s=tick / 10, state=state, measurements=Measurements((sample,)), policy=POLICY
        )  # fmt: skip
        lines.append(tick_line(now_s=tick / 10, measurements=Measurements((sample,)), decision=decision))
        state = decision.state
    assert inbound(decision).capacity_source == "measured"
    assert replay(lines).first_difference is None
