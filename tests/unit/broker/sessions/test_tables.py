"""Bursts, flows and shapes: what the daemon remembers between a message and a decision."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from broker.enforce.shapes import rules_of, shape_of
from broker.enforce.socket_marks import CLASS_OF_PRIORITY
from broker.law.decide import decide
from broker.law.state import State
from broker.measure.flow_table import (
    CONNECTIONS_PER_SESSION_MAX,
    FORGET_S,
    OTHERS_SHOWN_MAX,
    SAMPLES_MAX,
    TCP_SAMPLES_MAX,
    FlowTable,
    PassedSocket,
)
from broker.measure.port_classes import PortClasses
from broker.measure.tcp_diag import TcpConnection
from broker.model.connection_report import BYTES_MAX, ConnectionReport, Endpoint
from broker.model.values import DESTINATIONS_MAX, Measurements
from broker.policy.toml import load
from broker.sessions.burst_table import BURSTS_PER_SESSION_MAX, BURSTS_PER_USER_MAX, BurstTable
from broker.sessions.messages import Announce, Declare
from broker.sessions.need_table import EVERYWHERE, NEED_S, NeedTable
from shaping.model.observations import Capabilities
from shaping.model.shapes import Rule
from shaping.plan.desired_tree import desired_tree

POLICY = load(
    """
    version = 1
    [[interface]]
    name = "eth0"
    egress = "40 Mbit/s"
    [class.storage]
    match = [{ port = 873 }, { uid = 977 }, { dscp = 1 }]
    [class.compute]
    match = [{ cgroup = "hive-compute.slice" }]
    """
)


def announce(step: int = 1, **fields: object) -> Announce:
    given = {"number": None, "job": "j", "step": step, "bytes_by_destination": {"10.0.0.2": 100}, "deadline_s": 0.5,
             "next_s": None}  # fmt: skip
    return Announce(**{**given, **fields})  # type: ignore[arg-type]


def towards(address: str) -> str | None:
    return {"10": "eth0", "20": "eth1"}.get(address.split(".")[0])


def test_a_burst_is_split_by_interface_and_ages() -> None:
    book = BurstTable()
    burst = announce(bytes_by_destination={"10.0.0.2": 100, "10.0.0.3": 50, "20.0.0.1": 7, "30.0.0.1": 9}, next_s=2.0)
    book.announce("s-1", burst, uid=1000, now_s=100.0, interface_of=towards)
    now = book.current(now_s=100.25)
    assert set(now) == {"eth0", "eth1"}
    (entry,) = now["eth0"]
    assert (entry.announced_bytes, entry.age_s, entry.remaining_s, entry.next_s) == (150, 0.25, 0.25, 1.75)


def test_ranks_of_one_step_are_summed_and_the_last_deadline_counts() -> None:
    book = BurstTable()
    book.announce("s-1", announce(), uid=1000, now_s=0.0, interface_of=towards)
    book.announce("s-2", announce(deadline_s=0.9), uid=1000, now_s=0.1, interface_of=towards)
    (entry,) = book.current(now_s=0.2)["eth0"]
    assert (entry.announced_bytes, entry.age_s) == (200, 0.2)
    assert entry.remaining_s == pytest.approx(0.8)


def test_a_burst_ends_by_its_end_its_session_or_a_second_after_its_deadline() -> None:
    book = BurstTable()
    book.announce("s-1", announce(1), uid=1000, now_s=0.0, interface_of=towards)
    assert not book.end("s-2", job="j", step=1)
    assert book.end("s-1", job="j", step=1)
    book.announce("s-1", announce(2), uid=1000, now_s=0.0, interface_of=towards)
    book.forget("s-1")
    assert len(book) == 0
    book.announce("s-1", announce(3), uid=1000, now_s=0.0, interface_of=towards)
    assert book.current(now_s=1.49)
    assert book.current(now_s=1.51) == {}
    assert len(book) == 0


def test_a_session_that_never_ends_its_bursts_stays_bounded() -> None:
    book = BurstTable()
    for step in range(1000):
        book.announce("s-1", announce(step), uid=1000, now_s=0.0, interface_of=towards)
    assert len(book) == BURSTS_PER_SESSION_MAX


def test_a_user_who_opens_many_sessions_stays_bounded_and_pushes_nobody_else_out() -> None:
    book = BurstTable()
    book.announce("s-0", announce(), uid=1001, now_s=0.0, interface_of=towards)
    for session in range(1, 65):
        for step in range(10):
            book.announce(f"s-{session}", announce(step), uid=1000, now_s=0.0, interface_of=towards)
    assert len(book) == BURSTS_PER_USER_MAX + 1
    assert book.forget("s-0")
    for session in range(1, 65):
        book.forget(f"s-{session}")
    assert (len(book), book.current(now_s=0.0), book._of_user) == (0, {}, {})


def test_a_step_that_turns_out_larger_adds_to_what_was_announced_and_stays_as_old_as_it_is() -> None:
    book = BurstTable()
    book.announce("s-1", announce(next_s=2.0), uid=1000, now_s=0.0, interface_of=towards)
    more = announce(bytes_by_destination={"10.0.0.2": 30, "10.0.0.3": 50}, next_s=1.9)
    book.announce("s-1", more, uid=1000, now_s=0.1, interface_of=towards)
    (entry,) = book.current(now_s=0.2)["eth0"]
    assert (entry.announced_bytes, entry.age_s, entry.uid) == (180, 0.2, 1000)
    assert entry.by_destination == (("10.0.0.2", 130), ("10.0.0.3", 50))
    assert (entry.remaining_s, entry.next_s) == (pytest.approx(0.4), pytest.approx(1.8))


def test_ranks_add_up_by_destination_and_the_same_step_of_another_user_is_another_burst() -> None:
    book = BurstTable()
    for session, uid in (("s-1", 1000), ("s-2", 1000), ("s-3", 1001)):
        book.announce(session, announce(), uid=uid, now_s=0.0, interface_of=towards)
    mine, other = book.current(now_s=0.1)["eth0"]
    assert (mine.uid, mine.announced_bytes, mine.by_destination) == (1000, 200, (("10.0.0.2", 200),))
    assert (other.uid, other.announced_bytes) == (1001, 100)


def test_of_many_destinations_the_largest_are_kept_and_all_are_counted() -> None:
    book = BurstTable()
    for turn in range(3):
        reported = {f"10.0.{turn}.{number}": number + 1 for number in range(200)}
        book.announce("s-1", announce(bytes_by_destination=reported), uid=0, now_s=0.0, interface_of=towards)
    (entry,) = book.current(now_s=0.1)["eth0"]
    assert entry.announced_bytes == 3 * sum(range(1, 201))
    assert len(entry.by_destination) == DESTINATIONS_MAX
    assert entry.by_destination[0][1] == 200


def test_a_burst_that_is_announced_for_ever_stays_a_number() -> None:
    book = BurstTable()
    for _ in range(3):
        reported = announce(bytes_by_destination={"10.0.0.2": BYTES_MAX})
        book.announce("s-1", reported, uid=0, now_s=0.0, interface_of=towards)
    assert book.current(now_s=0.1)["eth0"][0].announced_bytes == BYTES_MAX


def declare(backlog_bytes: int = 100, **fields: object) -> Declare:
    given: dict[str, Any] = {
        "number": 1,
        "backlog_bytes": backlog_bytes,
        "deadline_s": None,
        "replicas_at_risk": 0,
        "bytes_by_destination": {},
    }
    return Declare(**{**given, **fields})


def test_a_need_stands_where_it_goes_or_everywhere_and_a_new_one_replaces_it() -> None:
    book = NeedTable()
    book.declare("s-1", declare(deadline_s=10.0), uid=5, now_s=0.0, interface_of=towards)
    ((need,),) = (book.current(now_s=4.0)[EVERYWHERE],)
    assert (need.session, need.uid, need.backlog_bytes, need.age_s, need.remaining_s) == ("s-1", 5, 100, 4.0, 6.0)
    parts = {"10.0.0.2": 60, "10.0.0.3": 20, "20.0.0.1": 900, "30.0.0.1": 9}
    book.declare("s-1", declare(bytes_by_destination=parts), uid=5, now_s=5.0, interface_of=towards)
    now = book.current(now_s=5.0)
    assert {name: needs[0].backlog_bytes for name, needs in now.items()} == {"eth0": 80, "eth1": 100}
    through_vpn = declare(bytes_by_destination={"30.0.0.1": 9})
    book.declare("s-1", through_vpn, uid=5, now_s=6.0, interface_of=towards)
    assert list(book.current(now_s=6.0)) == [EVERYWHERE]


def test_a_need_ends_with_its_backlog_its_session_or_when_it_is_not_said_again() -> None:
    book = NeedTable()
    for session in ("s-1", "s-2", "s-3"):
        book.declare(session, declare(), uid=0, now_s=0.0, interface_of=towards)
    book.declare("s-1", declare(0), uid=0, now_s=1.0, interface_of=towards)
    book.forget("s-2")
    assert [need.session for need in book.current(now_s=NEED_S)[EVERYWHERE]] == ["s-3"]
    assert book.current(now_s=NEED_S + 0.1) == {}
    assert len(book) == 0


def connection(peer: str = "10.0.0.2", port: int = 1, **fields: object) -> ConnectionReport:
    return ConnectionReport(peer=Endpoint(peer, port), **fields)  # type: ignore[arg-type]


def tcp(**fields: object) -> TcpConnection:
    given: dict[str, object] = {
        "local": ("10.0.0.1", 5000), "remote": ("10.0.0.9", 4000), "uid": 1000, "inode": 1, "classid": 0, "dscp": 0,
        "rtt_s": 0.01, "rtt_s_min": 0.005, "acked_bytes": 1, "received_bytes": 2, "sent_segments": 1,
        "retransmitted_segments": 0, "delivery_rate_bits_per_s": 8, "application_limited": False,
        **fields,
    }  # fmt: skip
    return TcpConnection(**given)  # type: ignore[arg-type]


def test_reports_age_until_they_are_forgotten() -> None:
    table = FlowTable()
    table.report("s-1", [connection(rtt_s=0.01)], now_s=0.0)
    ((sample,),) = table.samples(interface_of=towards, now_s=3.0).values()
    assert (sample.key, sample.age_s, sample.source) == ("s-1/10.0.0.2:1", 3.0, "report")
    assert table.samples(interface_of=towards, now_s=FORGET_S + 0.1) == {}


def test_reports_and_samples_stay_bounded() -> None:
    table = FlowTable()
    for port in range(3 * CONNECTIONS_PER_SESSION_MAX):
        table.report("s-1", [connection(port=port % 65536)], now_s=0.0)
    (samples,) = table.samples(interface_of=towards, now_s=0.0).values()
    assert len(samples) == SAMPLES_MAX


def test_a_user_of_many_sessions_and_peers_takes_no_place_of_the_kernels_or_of_other_users() -> None:
    table = FlowTable()
    for number in range(300):
        session, uid = f"s-{number}", 1000 if number else 2000
        table.add(
            PassedSocket(session, session, "j", "compute", "gradient", "udp", "10.0.0.1:1", 1, uid, number),
            registration=number,
        )
        table.report(session, [connection(f"10.3.{number % 250}.{port}", port + 1) for port in range(20)], now_s=0.0)
    table.see_tcp(
        [tcp(local=("10.0.0.1", 5000 + port)) for port in range(40)], matching=PortClasses(POLICY, CLASS_OF_PRIORITY)
    )
    samples = table.samples(interface_of=lambda address: "eth0", now_s=0.0)["eth0"]
    assert len(samples) == SAMPLES_MAX
    assert sum(sample.source == "tcp-info" for sample in samples) == TCP_SAMPLES_MAX
    assert sum(sample.uid == 2000 for sample in samples) == 20


def test_a_session_that_is_gone_takes_its_flows_with_it() -> None:
    table = FlowTable()
    table.report("s-1", [connection()], now_s=0.0)
    first = PassedSocket("f-1", "s-1", "j", "compute", "gradient", "udp", "10.0.0.1:1", 1, 0, 5)
    table.add(first, registration=1)
    table.add(msgspec.structs.replace(first, name="f-2"), registration=2)
    table.remove("s-1", registration=1)
    table.remove("s-2", registration=2)
    assert list(table.passed) == ["f-2"]
    table.forget("s-1")
    assert (table.passed, table.samples(interface_of=towards, now_s=0.0)) == ({}, {})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"classid": 0xFFE00310}, "storage"),
        ({"classid": 0xFFE00220}, "compute"),
        ({"classid": 0xFFE00210, "uid": 977}, "compute"),
        ({"remote": ("10.0.0.9", 873)}, "storage"),
        ({"local": ("10.0.0.1", 873)}, "storage"),
        ({"uid": 977}, "other"),  # its socket has no priority: the rule came after it
        ({"dscp": 1}, "storage"),
        ({"classid": 6}, "other"),
        ({}, "other"),
    ],
)
def test_a_tcp_connection_belongs_where_htb_puts_it(fields: dict[str, object], expected: str) -> None:
    assert PortClasses(POLICY, CLASS_OF_PRIORITY).class_of(tcp(**fields)) == expected


def test_a_tcp_connection_ages_from_when_the_kernel_spoke_of_it_until_it_is_forgotten() -> None:
    table = FlowTable()
    table.see_tcp([tcp(at_s=5.0)], matching=PortClasses(POLICY, CLASS_OF_PRIORITY))
    for now_s in (5.0, 6.5):
        ((sample,),) = table.samples(interface_of=towards, now_s=now_s).values()
        assert (sample.age_s, sample.delivered_bytes, sample.source) == (now_s - 5.0, 1, "tcp-info")
    assert not any(table.samples(interface_of=towards, now_s=5.1 + FORGET_S).values())


def test_of_other_only_the_busiest_connections_are_shown() -> None:
    table = FlowTable()
    crowd = [tcp(inode=number, waiting_bytes=number) for number in range(100)]
    table.see_tcp([*crowd, tcp(inode=500, classid=0xFFE00310)], matching=PortClasses(POLICY, CLASS_OF_PRIORITY))
    assert [connection.inode for connection, _ in table.tcp_shown] == [500, *range(99, 99 - OTHERS_SHOWN_MAX, -1)]
    receives = [tcp(inode=number, received_bytes=1000 if number < 5 else 1) for number in range(100)]
    table.see_tcp(receives, matching=PortClasses(POLICY, CLASS_OF_PRIORITY))
    shown = [connection.inode for connection, _ in table.tcp_shown]
    assert {*range(5)} <= set(shown[:5]), "those that carried most since the last look"


@pytest.mark.parametrize(
    ("local", "remote", "expected"),
    [
        (("10.88.3.1", 5), ("10.0.0.9", 4), "storage"),
        (("10.0.0.1", 5), ("10.88.255.255", 4), "storage"),
        (("10.0.0.1", 5), ("10.89.0.0", 4), "other"),
        (("fd00:1::5", 5), ("fd00:2::1", 4), "storage"),
        (("fd00:2::5", 5), ("fd00:2::1", 4), "other"),
        (("10.88.3.1", 5), ("10.0.0.9", 22), "storage"),  # the rule on the address stands before that on the port
    ],
)
def test_a_rule_on_an_address_finds_either_end(local: tuple[str, int], remote: tuple[str, int], expected: str) -> None:
    policy = load(
        'version = 1\n[[interface]]\nname = "eth0"\n[class.storage]\n'
        'match = [{ address = "10.88.0.0/16" }, { address = "fd00:1::/64" }]\n'
        "[class.other]\nmatch = [{ port = 22 }]\n"
    )
    assert PortClasses(policy, CLASS_OF_PRIORITY).class_of(tcp(local=local, remote=remote)) == expected


def test_of_many_tcp_connections_storage_comes_first() -> None:
    table = FlowTable()
    crowd = [tcp(local=("10.0.0.1", port)) for port in range(1, 600)] + [tcp(classid=0xFFE00310)]
    table.see_tcp(crowd, matching=PortClasses(POLICY, CLASS_OF_PRIORITY))
    (samples,) = table.samples(interface_of=towards, now_s=0.0).values()
    assert len(samples) == TCP_SAMPLES_MAX
    assert samples[0].traffic_class == "storage"


def first_allocation() -> object:
    return decide(now_s=0.0, state=State(), measurements=Measurements(), policy=POLICY).allocation.interfaces[0]


def test_rules_come_from_the_policy_and_from_the_cgroups_of_run() -> None:
    rules = rules_of(POLICY, class_cgroups=(("storage", "hive-qos/storage"),))
    assert Rule(target="storage", port=873) in rules
    assert Rule(target="compute", cgroup="hive-compute.slice") in rules
    assert rules[-1] == Rule(target="storage", cgroup="hive-qos/storage")


def test_a_shape_keeps_the_sum_of_rates_within_the_capacity() -> None:
    shape = shape_of(first_allocation(), rules=())  # type: ignore[arg-type]
    assert shape.interface == "eth0"
    assert sum(entry.rate_bits_per_s for entry in shape.classes) <= shape.capacity_bits_per_s


def test_people_who_are_not_held_keep_their_rate_in_the_shape_and_the_others_theirs() -> None:
    """An estimate so low that every class is given the least that the kernel keeps."""
    allocation = first_allocation()
    classes = tuple(
        msgspec.structs.replace(entry, rate_bits_per_s=38_797_000, ceil_bits_per_s=38_800_000)
        if entry.name == "other"
        else msgspec.structs.replace(entry, rate_bits_per_s=1_000, ceil_bits_per_s=20_000)
        for entry in allocation.classes  # type: ignore[attr-defined]
    )
    apart = msgspec.structs.replace(
        allocation, capacity_bits_per_s=20_000, classes=classes, open_bits_per_s=38_800_000  # type: ignore[type-var]
    )  # fmt: skip
    shape = shape_of(apart, rules=())  # type: ignore[arg-type]
    rates = {entry.name: entry.rate_bits_per_s for entry in shape.classes}
    assert rates.pop("other") == 38_770_000
    assert set(rates.values()) == {10_000}
    tree = desired_tree(shape, Capabilities(fq_codel=True))
    assert {spec.minor: spec.ceil_bits_per_s for spec in tree.classes}[0x40] >= 38_800_000
