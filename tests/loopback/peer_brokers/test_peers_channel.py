"""Two brokers that ask each other, over real sockets and every pair of engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from engine_support import EACH, engines, over, pytest_generate_tests
from patience import wait_until
from peers_support import A_HOST, B_HOST, Broker, Cluster, Heard, free_port, until

from broker.model.leases import HoldOutcome
from broker.model.reasons import Reason
from broker.peers.channel import PeerChannel
from broker.peers.identity import broker_identity
from broker.peers.listening import split_listen
from broker.peers.protocol import wire
from broker.peers.protocol.connections import IDLE_S
from broker.peers.protocol.outgoing_requests import SHORT_LIFE_S
from broker.peers.quic_endpoint import MESSAGE_VALID_S
from transport.engine.base import OperationFailed

__all__ = ["engines", "pytest_generate_tests"]
Open = Callable[..., Broker]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def opened(cluster: Cluster) -> Iterator[Open]:
    """Opens brokers, and closes them after the test."""
    brokers: list[Broker] = []

    def open_one(node: str, listen: str, *, engine: str, port: int | None = None) -> Broker:
        broker = Broker(cluster.policy(node, listen, engine=engine), port=port)
        brokers.append(broker)
        return broker

    yield open_one
    for broker in brokers:
        broker.close()


@pytest.fixture
def both(opened: Open, engines: tuple[str, str]) -> tuple[Broker, Broker]:
    """Brokers "a" and "b", not yet connected."""
    port = free_port(A_HOST, B_HOST)
    return (
        opened("a", f"{A_HOST}:{port}", engine=engines[0]),
        opened("b", f"{B_HOST}:{port}", engine=engines[1]),
    )


def leased(broker: Broker, rate: int) -> bool:
    return [(one.peer, one.address, one.rate_bits_per_s) for one in broker.leases] == [("a", A_HOST, rate)]


def test_a_hold_is_asked_changed_answered_and_released(both: tuple[Broker, Broker]) -> None:
    a, b = both
    assert a.channel.brokers() == {}
    a.hold(B_HOST, 5_000_000)
    until(lambda: leased(b, 5_000_000), a, b)
    assert a.channel.brokers() == {B_HOST: "yes"}
    (lease,) = b.leases
    assert (lease.traffic_class, lease.capacity_bits_per_s) == ("storage", 100_000_000)
    assert 0 < lease.remaining_s <= 2.0
    held = until(lambda: a.channel.held().get(B_HOST), a, b)
    assert (held.peer, held.granted, held.rate_bits_per_s, held.reason.code) == ("b", True, 5_000_000, "leased")

    b.decide = lambda lease: HoldOutcome(
        lease.peer, lease.address, lease.number, False, 0, Reason("guarantee", "at risk")
    )
    until(lambda: not a.channel.held()[B_HOST].granted, a, b)
    assert a.channel.held()[B_HOST].reason == Reason("guarantee", "at risk")

    a.hold(B_HOST, 1_000_000)
    until(lambda: leased(b, 1_000_000), a, b)
    a.holds = []
    until(lambda: not b.leases, a, b)
    assert a.channel.held() == {}
    (seen,) = a.channel.status()
    assert (seen.address, seen.peer, seen.state, seen.leases) == (B_HOST, "b", "connected", 0)


def test_the_other_loop_is_woken_and_told_that_it_is_urgent(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.reach = [B_HOST]
    until(lambda: a.connections() and b.connections(), a, b)
    b.tick()
    assert not b.channel.urgent
    b.woken.clear()
    a.hold(B_HOST)
    a.tick()  # once: nothing but the message wakes b
    wait_until(lambda: b.woken.is_set() and b.channel.urgent)
    assert len(b.channel.leases()) == 1
    assert not b.channel.urgent


def test_renewals_hold_and_when_the_asker_is_gone_its_lease_ends_by_itself(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.hold(B_HOST, lease_s=1.0)
    until(lambda: b.leases, a, b)
    first = b.leases[0].number
    until(lambda: b.leases and b.leases[0].age_s > 1.0, a, b)  # longer than any one lease
    assert b.leases[0].number >= first + 2
    a.close()
    until(lambda: not b.leases, b)
    assert b.channel.brokers()[A_HOST] != "yes"


def test_one_that_was_dialled_and_had_no_place_is_dialled_again(
    both: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = both
    turned_away: list[str] = []

    def is_full(peer: str, now_s: float) -> bool:
        turned_away.append(peer)
        return len(turned_away) > 1

    monkeypatch.setattr(a.channel, "_make_room", is_full)
    a.hold(B_HOST)
    until(lambda: b.leases, a, b)
    assert turned_away[0] == "b"


def test_one_connection_serves_both_directions(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.hold(B_HOST)
    until(lambda: b.leases, a, b)
    b.hold(A_HOST)
    until(lambda: a.leases, a, b)
    assert len(a.connections()) == len(b.connections()) == 1
    until(lambda: a.channel.held() and b.channel.held(), a, b)


def test_brokers_that_dial_each_other_at_once_both_get_their_leases(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.hold(B_HOST)
    b.hold(A_HOST)
    until(lambda: a.leases and b.leases and a.channel.held() and b.channel.held(), a, b)


def test_a_broker_that_was_restarted_is_asked_again(
    both: tuple[Broker, Broker], opened: Open, engines: tuple[str, str]
) -> None:
    a, b = both
    a.hold(B_HOST)
    until(lambda: b.leases, a, b)
    b.close()
    again = opened("b", b.policy.listen, engine=engines[1])
    until(lambda: again.leases, a, again)


def test_a_broker_that_was_restarted_asks_anew_and_is_not_taken_for_a_replay(
    both: tuple[Broker, Broker], opened: Open, engines: tuple[str, str]
) -> None:
    a, b = both
    a.hold(B_HOST)
    until(lambda: b.leases and b.leases[0].number > 1, a, b)
    a.close()
    again = opened("a", a.policy.listen, engine=engines[0])
    again.hold(B_HOST, 1_000_000)
    until(lambda: leased(b, 1_000_000), again, b)
    assert b.leases[0].number < 100


@over(*EACH)
def test_a_connection_that_nobody_needs_is_closed_by_who_dialled(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.reach = [B_HOST]
    until(lambda: a.connections() and b.connections(), a, b)
    a.later_s = 2 * IDLE_S
    a.tick()
    assert a.connections(), "wanted: it stays"
    a.reach = []
    a.later_s = 4 * IDLE_S
    until(lambda: not a.connections() and not b.connections(), a, b)
    assert b.log.reasons("peer-disconnected") == ["the peer closed it"]


@over(*EACH)
def test_addresses_are_plain_over_ipv6_and_over_a_socket_for_both(opened: Open, engines: tuple[str, str]) -> None:
    p, q, r = (free_port("::1") for _ in range(3))
    six = opened("six", f"[::1]:{p}", engine=engines[0], port=q)
    dual = opened("dual", f"[::]:{q}", engine=engines[1], port=r)
    four = opened("four", f"{A_HOST}:{r}", engine=engines[0], port=q)
    six.hold("::1")
    until(lambda: dual.leases, six, dual)
    assert [one.address for one in dual.leases] == ["::1"]
    six.holds = []
    dual.hold(A_HOST)
    until(lambda: four.leases, dual, four)
    assert dual.channel.brokers()[A_HOST] == "yes"
    four.hold(A_HOST)
    until(lambda: any(one.address == A_HOST for one in dual.leases), dual, four)


@over(EACH[0])
def test_where_nobody_answers_there_is_no_broker(opened: Open, engines: tuple[str, str]) -> None:
    a = opened("a", f"{A_HOST}:{free_port(A_HOST)}", engine=engines[0])
    a.hold(B_HOST)
    a.tick()
    assert a.channel.brokers() == {B_HOST: "unknown"}
    until(lambda: a.channel.brokers() == {B_HOST: "no"}, a)
    assert a.state_of(B_HOST).startswith(("no broker answers; next attempt in", "dialling"))
    assert a.channel.held() == {}


@over(EACH[0])
def test_an_engine_that_fails_takes_nobody_down_with_it(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.hold(B_HOST)
    until(lambda: b.leases, a, b)
    a.later_s = 2 * SHORT_LIFE_S  # it worked for a while: nothing speaks against that address
    assert a.channel.alarms() == ()
    a.channel._carrier._engine.close()
    until(lambda: not b.leases and not a.connections(), a, b)
    assert [fields["error"][:17] for _, event, fields in a.log.lines if event == "peers-failed"] == [
        "the engine failed"
    ]
    a.tick()
    assert a.channel.status()[0].address == B_HOST
    assert a.channel.brokers() == {B_HOST: "no"}, "storage from there has to be held here"
    assert [alarm.code for alarm in a.channel.alarms()] == ["peers-failed"]


@over(EACH[0])
def test_calls_of_a_tick_return_at_once(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.reach = [f"127.1.0.{number}" for number in range(64)]
    a.hold(B_HOST)
    until(lambda: b.leases, a, b)
    quickest_s = min(_timed(a.tick) for _ in range(20))
    assert quickest_s < 0.05, "nobody waits for 64 addresses"


def _timed(call: Callable[[], None]) -> float:
    began_s = time.perf_counter()
    call()
    return time.perf_counter() - began_s


def test_a_message_that_could_not_be_sent_in_time_is_cancelled(both: tuple[Broker, Broker]) -> None:
    a, b = both
    a.reach = [B_HOST]
    until(lambda: a.connections() and b.connections(), a, b)
    (connection,) = a.channel._connections
    carrier, message = a.channel._carrier, wire.Answer(1, False, 0, 0.0, Reason("x", "t" * 500))
    for number in range(1000):  # b does not tick, and its store is full
        carrier.send(connection.number, message, now_s=number / 1000)
    carrier.cancel_late(now_s=MESSAGE_VALID_S)
    assert len(carrier._sent) == 999, "the first of them is late"
    assert not carrier._events
    carrier.cancel_late(now_s=MESSAGE_VALID_S + 1)
    wait_until(lambda: any(isinstance(event, OperationFailed) for event in carrier._events))


@over(EACH[0])
def test_the_socket_is_marked_before_anything_is_sent(cluster: Cluster, engines: tuple[str, str]) -> None:
    marked: list[tuple[str, int]] = []
    policy = cluster.policy("m", f"{A_HOST}:{free_port(A_HOST)}", engine=engines[0])
    log = Heard()
    channel = PeerChannel(
        policy,
        wake=lambda: None,
        log=log,
        clock=time.monotonic,
        mark=lambda sock: marked.append(sock.getsockname()),
    )
    channel.close()
    assert marked == [split_listen(policy.listen)]
    assert [event for _, event, _ in log.lines] == ["peers-listening"]


def test_a_renewed_certificate_is_presented_and_what_was_asked_goes_on(
    both: tuple[Broker, Broker], cluster: Cluster
) -> None:
    a, b = both
    a.hold(B_HOST)
    b.hold(A_HOST)
    until(lambda: a.leases and b.leases and a.channel.held(), a, b)
    renewed = cluster.policy("a-renewed", a.policy.listen, engine=a.policy.engine)
    a.channel.renew(broker_identity(renewed))
    assert a.channel.leases(), "a lease outlives the connection that it came over"
    until(lambda: {lease.peer for lease in b.leases} >= {"a-renewed"}, a, b)
    until(lambda: a.channel.held() and b.channel.held(), a, b)
    assert {one.peer for one in b.channel.status() if one.state == "connected"} == {"a-renewed"}
    assert {one.peer for one in a.channel.status() if one.state == "connected"} == {"b"}
    assert not a.channel.alarms()


@over(EACH[0])
def test_who_was_refused_is_talked_to_at_once_with_a_certificate_that_is_good(
    opened: Open, cluster: Cluster, tmp_path: Path, engines: tuple[str, str]
) -> None:
    port = free_port(A_HOST, B_HOST)
    listen = f"{B_HOST}:{port}"
    a = opened("a", f"{A_HOST}:{port}", engine=engines[0])
    b = Broker(Cluster(tmp_path, "theirs").policy("b", listen, engine=engines[1]), port=port)
    try:
        b.hold(A_HOST)
        until(lambda: b.state_of(A_HOST).startswith("refused"), a, b)
        b.channel.renew(broker_identity(cluster.policy("b", listen, engine=engines[1])))
        until(lambda: b.state_of(A_HOST) == "connected", a, b)
        assert [one.state for one in b.channel.status()] == ["connected"], "nothing is told of the former certificate"
    finally:
        b.close()
