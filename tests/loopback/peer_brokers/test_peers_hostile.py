"""What a broker is protected from: who may not talk to it, and what nobody may ask of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import cbor2
import msgspec
import pytest
from engine_support import EACH, bound_socket, engines, over, pytest_generate_tests
from peers_support import A_HOST, B_HOST, Broker, Cluster, Rogue, free_port, granted, until

from broker.model.leases import HELD_CLASS, LEASE_S_MAX, HoldOutcome, Lease
from broker.model.reasons import Reason
from broker.peers.protocol import connections, wire
from broker.peers.protocol.receive_quota import MESSAGES_AT_ONCE, MESSAGES_PER_S
from broker.peers.protocol.wire import Key, Refusal
from broker.peers.quic_endpoint import SETTINGS
from hive_qos.errors import PeerError
from hive_qos.units import RATE_BITS_PER_S_MAX
from transport.engine.base import ConnectionDown, ConnectionUp, EngineSettings
from transport.identity import ephemeral_identity
from transport.identity.credentials import Credentials
from transport.wire.control_frames import ALPN, APPLICATION_KEY_MIN
from transport.wire.error_codes import WireCode

__all__ = ["engines", "pytest_generate_tests"]
Make = Callable[..., Rogue]
ASK = wire.Ask(1, "storage", 5_000_000, 100_000_000, 1.0, Reason("burst", "now"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return Cluster(tmp_path_factory.mktemp("cluster"))


@pytest.fixture
def victim(cluster: Cluster, engines: tuple[str, str]) -> Iterator[Broker]:
    """The broker that is tried; because of its name each test runs over both engines."""
    broker = Broker(cluster.policy("victim", f"{B_HOST}:{free_port(A_HOST, B_HOST)}", engine=engines[0]))
    yield broker
    broker.close()


@pytest.fixture
def rogue(cluster: Cluster, engines: tuple[str, str]) -> Iterator[Make]:
    """Makes nodes that say what they like; with a good certificate unless told otherwise."""
    made: list[Rogue] = []

    def make(credentials: Credentials | None = None, **options: Any) -> Rogue:
        own = credentials or cluster.credentials("rogue")
        made.append(Rogue(own, cluster.trust, engine=engines[1], **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def of(fields: dict[Any, Any]) -> bytes:
    return cbor2.dumps(fields, canonical=True)


def ask(number: int, **change: Any) -> bytes:
    return wire.write(msgspec.structs.replace(ASK, number=number, **change))


# --- who may not talk ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strangers(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Credentials, WireCode]]:
    other = Cluster(tmp_path_factory.mktemp("theirs"), "theirs")
    return {
        "a job": (cluster.credentials("trainer", role="job"), WireCode.ROLE_REFUSED),
        "another CA": (other.credentials("rogue"), WireCode.CERTIFICATE_UNTRUSTED),
        "an expired certificate": (cluster.expired("late"), WireCode.CERTIFICATE_EXPIRED),
        "an ephemeral identity": (
            ephemeral_identity("rogue", role="broker").credentials,
            WireCode.CERTIFICATE_UNTRUSTED,
        ),
    }


STRANGERS = ("a job", "another CA", "an expired certificate", "an ephemeral identity")


@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_that_dials_is_refused_told_why_and_logged_once(
    who: str, strangers: dict[str, tuple[Credentials, WireCode]], victim: Broker, rogue: Make
) -> None:
    credentials, code = strangers[who]
    one = rogue(credentials)
    one.dial(victim)
    error = one.down(victim).error
    assert isinstance(error, PeerError)
    assert error.wire_code == code
    assert one.find(ConnectionUp) is None
    until(lambda: victim.state_of(A_HOST).startswith("refused: "), victim)
    again = rogue(credentials)
    again.dial(victim)
    again.down(victim)
    assert victim.leases == ()
    assert victim.connections() == []
    assert len(victim.log.reasons("peer-refused")) == 1


@pytest.mark.parametrize("who", STRANGERS[:2])
def test_a_stranger_that_is_dialled_is_refused_and_asked_nothing(
    who: str, strangers: dict[str, tuple[Credentials, WireCode]], victim: Broker, rogue: Make
) -> None:
    one = rogue(strangers[who][0], host=A_HOST, port=victim.address[1])
    victim.hold(A_HOST)
    until(lambda: victim.state_of(A_HOST).startswith("refused: "), victim, what=victim.channel.status)
    assert victim.channel.brokers() == {A_HOST: "no"}
    assert victim.channel.held() == {}
    assert one.find(ConnectionUp) is None


@over(*EACH, ("native", "aioquic"), ("aioquic", "native"))
def test_a_tensor_transport_and_a_broker_never_talk_whatever_the_certificate(
    victim: Broker, rogue: Make, cluster: Cluster
) -> None:
    one = rogue(settings=replace(SETTINGS, protocol=ALPN), host=A_HOST, port=victim.address[1])
    one.dial(victim)
    assert one.down(victim).error is not None
    victim.hold(A_HOST)
    until(lambda: victim.channel.brokers().get(A_HOST) == "no", victim, what=victim.channel.status)
    assert one.find(ConnectionUp) is None
    assert victim.connections() == []


def test_a_hello_without_a_run_is_not_enough(victim: Broker, rogue: Make) -> None:
    one = rogue(run=None)
    one.dial(victim)
    error = one.down(victim).error
    assert isinstance(error, PeerError)
    assert error.wire_code == WireCode.HELLO_INVALID
    assert victim.connections() == []


# --- what nobody may ask ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({Key.RATE: -1}, Refusal.RATE),
        ({Key.RATE: -(2**63)}, Refusal.RATE),
        ({Key.RATE: RATE_BITS_PER_S_MAX + 1}, Refusal.RATE),
        ({Key.RATE: math.nan}, Refusal.RATE),
        ({Key.RATE: math.inf}, Refusal.RATE),
        ({Key.CAPACITY: 0}, Refusal.CAPACITY),
        ({Key.LEASE_MS: 3_155_760_000_000}, Refusal.LEASE),
        ({Key.LEASE_MS: 0}, Refusal.LEASE),
        ({Key.CLASS: "compute"}, Refusal.CLASS),
        ({Key.CLASS: "other"}, Refusal.CLASS),
    ],
    ids=str,
)
@over(EACH[0])
def test_an_absurd_ask_is_refused_with_a_code_and_the_next_good_one_is_taken(
    change: dict[Key, object], refusal: Refusal, victim: Broker, rogue: Make
) -> None:
    one = rogue()
    connection = one.met(victim)
    fields = {**cbor2.loads(ask(1)), **{int(key): value for key, value in change.items()}}
    one.send(connection, of(fields))
    answer = one.answer_of(victim, "victim")
    assert (answer.number, answer.granted, answer.reason.code) == (1, False, refusal)
    assert victim.leases == ()
    one.send(connection, ask(2))
    until(lambda: victim.leases, victim)
    assert one.answer_of(victim, "victim").granted


@over(*EACH)
def test_a_repeated_ask_is_refused_and_changes_no_lease(victim: Broker, rogue: Make) -> None:
    rates: list[int] = []

    def noted(lease: Lease) -> HoldOutcome:
        rates.append(lease.rate_bits_per_s)
        return granted(lease)

    victim.decide = noted
    one = rogue()
    connection = one.met(victim)
    one.send(connection, ask(5, rate_bits_per_s=1_000_000))
    assert one.answer_of(victim, "victim").granted
    for number in (5, 4):
        one.send(connection, ask(number, rate_bits_per_s=3_000_000))
        answer = one.answer_of(victim, "victim")
        assert (answer.number, answer.granted, answer.reason.code) == (number, False, Refusal.STALE)
    one.send(connection, ask(6, rate_bits_per_s=2_000_000))
    assert one.answer_of(victim, "victim").granted
    assert list(dict.fromkeys(rates)) == [1_000_000, 2_000_000]


@over(*EACH)
def test_an_address_cannot_be_asked_for_only_had(victim: Broker, rogue: Make) -> None:
    one = rogue()
    connection = one.met(victim)
    one.send(connection, of({**cbor2.loads(ask(1)), 9: "10.9.9.9", 10: b"\x0a\x09\x09\x09", 40: {1: ["10.9.9.9"]}}))
    until(lambda: victim.leases, victim)
    assert [(lease.peer, lease.address) for lease in victim.leases] == [("rogue", A_HOST)]


@over(*EACH)
def test_an_address_that_the_certificate_does_not_name_is_not_held_back_for(
    cluster: Cluster, victim: Broker, rogue: Make
) -> None:
    one = rogue(cluster.credentials("elsewhere", addresses=["10.0.0.7"]))
    one.send(one.met(victim), ask(1))
    answer = one.answer_of(victim, "victim")
    assert (answer.granted, answer.reason.code) == (False, Refusal.ADDRESS)
    assert f"--address {A_HOST}" in answer.reason.text
    assert victim.leases == ()
    assert "does not name" in victim.state_of(A_HOST)


@over(*EACH)
def test_who_moves_to_another_address_loses_its_leases_and_has_to_dial_from_there(victim: Broker, rogue: Make) -> None:
    one = rogue()
    connection = one.met(victim)
    one.send(connection, ask(1, lease_s=2.0))
    until(lambda: victim.leases, victim)
    one.engine.rebind(one.endpoint, bound_socket("127.0.0.3"))
    number = 2

    def asked_from_there() -> bool:
        nonlocal number
        one.send(connection, ask(number, lease_s=2.0))
        number += 1
        assert all(lease.address == A_HOST for lease in victim.leases)
        return not victim.connections() and not victim.leases

    until(asked_from_there, victim, what=lambda: victim.leases)
    assert any("127.0.0.3" in line for line in victim.log.reasons("peer-refused"))


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff" * 600, of({0: 0}), of({0: 0, 1: 0}), b"\xa1\x00" + b"\x9b" + b"\xff" * 8, of({0: 0, 1: 1, 2: 7})],
    ids=repr,
)
@over(EACH[0])
def test_garbage_ends_the_connection_that_it_came_over_and_no_other(
    payload: bytes, victim: Broker, rogue: Make, cluster: Cluster
) -> None:
    good = rogue(cluster.credentials("good"))
    good.send(good.met(victim), ask(1, lease_s=2.0))
    bad = rogue()
    bad.send(bad.met(victim), payload)
    error = bad.down(victim).error
    assert isinstance(error, PeerError)
    assert error.wire_code == WireCode.HEADER_INVALID
    assert len(victim.connections()) == 1


@over(*EACH)
def test_a_message_that_is_too_long_is_never_read(victim: Broker, rogue: Make) -> None:
    one = rogue(settings=replace(SETTINGS, message_bytes_max=2**20))
    operation = one.send(one.met(victim), bytes(2**20))
    assert one.find(ConnectionUp) is not None
    until(lambda: any(getattr(event, "operation", None) == operation for event in one.events), victim)
    assert victim.leases == ()


@over(*EACH)
def test_ten_thousand_asks_a_second_cost_their_sender_alone(
    victim: Broker, rogue: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bytes] = []

    def counted(data: bytes, _read: Callable[[bytes], Any] = wire.read) -> Any:
        read.append(data)
        return _read(data)

    monkeypatch.setattr(wire, "read", counted)
    flood = rogue(cluster.credentials("flood"))
    connection = flood.met(victim)
    began_s = victim.clock()
    for number in range(1, 10_001):
        flood.send(connection, ask(number, rate_bits_per_s=number))
    good = rogue(cluster.credentials("good"))
    good.send(good.met(victim), ask(1))
    assert good.answer_of(victim, "victim").granted
    quickest_s = 1.0
    for _ in range(20):
        before_s = time.thread_time()
        victim.tick()
        quickest_s = min(quickest_s, time.thread_time() - before_s)
        time.sleep(0.02)
    lasted_s = victim.clock() - began_s
    own = 2  # of the one that behaves, and the answer to it
    assert own < len(read) <= own + MESSAGES_AT_ONCE + MESSAGES_PER_S * lasted_s + 1
    assert quickest_s < 0.02, "of the daemon's own time"


@over(*EACH)
def test_messages_of_no_meaning_fill_their_senders_store_and_no_more(
    victim: Broker, rogue: Make, cluster: Cluster, engines: tuple[str, str]
) -> None:
    one = rogue()
    connection = one.met(victim)
    for _ in range(500):
        one.send(connection, bytes(1000), group="elsewhere")
    good = rogue(cluster.credentials("good"))
    good.send(good.met(victim), ask(1))
    assert good.answer_of(victim, "victim").granted
    core: Any = victim.channel._carrier._engine._core  # type: ignore[attr-defined]
    held = (core if engines[0] == "native" else core.operations).held("rogue")
    assert 0 < held <= 4 * SETTINGS.unexpected_bytes_max, "the store, and the windows of the streams that stall"


@over(*EACH)
def test_datagrams_of_dust_do_no_harm(victim: Broker, rogue: Make) -> None:
    with bound_socket(A_HOST) as dust:
        for size in (1, 20, 1200, 1400):
            for first in (0x00, 0x40, 0xC0, 0xFF):
                dust.sendto(bytes([first]) * size, victim.address)
    one = rogue()
    one.send(one.met(victim), ask(1))
    until(lambda: victim.leases, victim)
    assert len(victim.connections()) == 1


@over(*EACH)
def test_who_says_nothing_is_let_go_for_who_comes_when_there_is_no_room(
    victim: Broker, rogue: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 1)
    silent = rogue(cluster.credentials("silent"))
    silent.met(victim)
    early = rogue(cluster.credentials("early"))
    early.dial(victim)
    early.down(victim)
    assert silent.find(ConnectionDown) is None, "it had no time to say anything yet"
    victim.later_s = connections.CROWDED_IDLE_S + 1.0
    late = rogue(cluster.credentials("late"))
    late.send(late.met(victim), ask(1))
    assert silent.down(victim).error is None, "it did nothing wrong"
    until(lambda: victim.leases, victim)
    assert [lease.peer for lease in victim.leases] == ["late"]
    assert len(victim.connections()) == 1


@over(*EACH, ("native", "aioquic"), ("aioquic", "native"))
def test_one_certificate_has_eight_connections_whatever_ranks_it_makes_up(
    victim: Broker, rogue: Make, cluster: Cluster
) -> None:
    greedy = [rogue(said={APPLICATION_KEY_MIN: rank}) for rank in range(3)]
    for one in greedy * 4:
        one.dial(victim)
    until(lambda: sum(one.count(ConnectionDown) for one in greedy) == 4, victim, what=victim.connections)
    until(lambda: len(victim.connections()) == 8, victim, what=victim.connections)
    honest = rogue(cluster.credentials("honest"))
    honest.send(honest.met(victim), ask(1))
    until(lambda: victim.leases, victim)
    assert [lease.peer for lease in victim.leases] == ["honest"]


@over(*EACH)
def test_a_full_table_lets_a_peer_with_few_in_and_refuses_one_with_many(
    victim: Broker, rogue: Make, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 4)
    greedy = rogue(cluster.credentials("greedy"))
    for _ in range(4):
        greedy.dial(victim)
    until(lambda: len(victim.connections()) == 4 == greedy.count(ConnectionUp), victim, what=victim.connections)
    greedy.send(greedy.find(ConnectionUp).connection, ask(1))
    until(lambda: victim.leases, victim)
    honest = rogue(cluster.credentials("honest"))
    honest.send(honest.met(victim), ask(1))
    until(lambda: "honest" in [lease.peer for lease in victim.leases], victim, what=lambda: victim.leases)
    until(lambda: greedy.count(ConnectionDown), victim, what=lambda: greedy.events)  # its own engine hears it later
    assert greedy.count(ConnectionDown) == 1
    victim.later_s = connections.CROWDED_IDLE_S + 1.0
    for dialled in range(1, 4):
        greedy.dial(victim)
        until(lambda dialled=dialled: greedy.count(ConnectionDown) == 1 + dialled, victim, what=lambda: greedy.events)
    assert honest.find(ConnectionDown) is None, "it is the only one of its peer"
    assert len(victim.connections()) == 4


@over(*EACH)
def test_a_lease_is_for_storage_and_never_longer_than_two_seconds_whatever_comes(victim: Broker, rogue: Make) -> None:
    one = rogue()
    connection = one.met(victim)
    one.send(connection, ask(1, lease_s=LEASE_S_MAX))
    until(lambda: victim.leases, victim)
    (lease,) = victim.leases
    assert (lease.traffic_class, lease.remaining_s <= LEASE_S_MAX) == (HELD_CLASS, True)
    one.close()
    until(lambda: not victim.leases, victim)


def test_the_protocol_of_an_engine_is_that_of_tensors_unless_it_is_a_brokers() -> None:
    assert EngineSettings().protocol == "hive-tensor/1"
    assert SETTINGS.protocol == "hive-broker/1"
