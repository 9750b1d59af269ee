"""The session protocol, packet by packet, without a socket."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.client.protocol import MessageError, decode, encode
from broker.model.connection_report import CLOCK_S_MAX
from broker.sessions import messages
from broker.sessions.messages import (
    Announce,
    AnnounceEnd,
    Declare,
    Enter,
    Entered,
    ErrorReply,
    Hello,
    Noted,
    Register,
    Registered,
    Reply,
    Report,
    Unregister,
    Welcome,
    read,
    write,
)
from broker.sessions.protocol import (
    FLOWS_MAX,
    End,
    Phase,
    SessionProtocol,
)

HELLO = {"v": 1, "op": "hello", "client": "transport", "job": "j", "pid": 1}
REGISTER = {"op": "register", "id": 1, "class": "compute", "role": "gradient"}


def packet(**message: Any) -> bytes:
    return json.dumps(message).encode()


def opened() -> SessionProtocol:
    machine = SessionProtocol(name="s-1", host="h")
    machine.receive(encode(HELLO))
    return machine


def code(actions: tuple[object, ...]) -> str:
    (reply,) = [action for action in actions if isinstance(action, ErrorReply)]
    return reply.code


def test_hello_is_welcomed_with_the_session_and_the_host() -> None:
    machine = SessionProtocol(name="s-12", host="h")
    hello, reply = machine.receive(encode(HELLO))
    assert hello == Hello(v=1, client="transport", job="j")
    assert reply == Welcome(v=1, session="s-12", host="h")
    assert machine.phase is Phase.OPEN


def test_another_version_is_refused_by_name_and_ends_the_session() -> None:
    machine = SessionProtocol(name="s", host="h")
    actions = machine.receive(encode({**HELLO, "v": 2}))
    assert code(actions) == "unknown-version"
    assert isinstance(actions[-1], End)
    assert machine.phase is Phase.OVER


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"\xff\xfe", "not-json"),
        (b"[1,2]", "not-json"),
        (b'{"op":"hello"', "not-json"),
        (b'{"op":NaN}', "not-json"),
        (b"[" * 50_000, "not-json"),
        (b" " * (64 * 1024 + 1), "too-long"),
    ],
)
def test_garbage_is_answered_with_its_code_and_ends_the_session(raw: bytes, expected: str) -> None:
    machine = opened()
    actions = machine.receive(raw)
    assert code(actions) == expected
    assert isinstance(actions[-1], End)
    assert machine.receive(encode(HELLO)) == ()


def test_a_cut_packet_ends_the_session() -> None:
    assert code(opened().receive(b'{"op":', truncated=True)) == "too-long"


def test_anything_before_hello_ends_the_session() -> None:
    assert code(SessionProtocol(name="s", host="h").receive(encode(REGISTER), descriptors=1)) == "out-of-order"


def test_a_second_hello_ends_the_session() -> None:
    assert code(opened().receive(encode(HELLO))) == "out-of-order"


def test_descriptors_with_another_message_end_the_session() -> None:
    actions = opened().receive(packet(op="report", connections=[]), descriptors=1)
    assert code(actions) == "unexpected-descriptors"
    assert isinstance(actions[-1], End)


def test_a_bad_field_is_refused_and_the_session_lives_on() -> None:
    machine = opened()
    actions = machine.receive(encode({**REGISTER, "class": "turbo"}), descriptors=1)
    assert code(actions) == "bad-field"
    assert actions[0].number == 1
    assert machine.receive(encode(REGISTER), descriptors=1) == (
        Register(number=1, traffic_class="compute", role="gradient"),
    )


def test_register_without_a_descriptor_is_refused() -> None:
    assert code(opened().receive(encode(REGISTER))) == "no-descriptor"


def test_a_session_has_a_bounded_number_of_sockets() -> None:
    machine = opened()
    for number in range(FLOWS_MAX // 8):
        assert isinstance(machine.receive(encode({**REGISTER, "id": number}), descriptors=8)[0], Register)
    assert code(machine.receive(encode(REGISTER), descriptors=1)) == "too-many"
    assert machine.receive(packet(op="unregister", id=3)) == (Unregister(number=3),)
    machine.receive(packet(op="unregister", id=3))
    assert isinstance(machine.receive(encode(REGISTER), descriptors=8)[0], Register)
    assert code(machine.receive(encode(REGISTER), descriptors=1)) == "too-many"


def test_bye_and_a_closed_end_are_no_errors() -> None:
    for raw in (packet(op="bye"), b""):
        (end,) = opened().receive(raw)
        assert isinstance(end, End)
        assert end.code == ""


def test_a_burst_is_read_with_canonical_addresses() -> None:
    (burst,) = opened().receive(
        packet(op="burst", id=2, job="j", step=7, bytes={"::ffff:10.0.0.2": 5, "fe80::0001%eth0": 6}, deadline_s=0.5)
    )
    assert burst == Announce(
        number=2, job="j", step=7, bytes_by_destination={"10.0.0.2": 5, "fe80::1": 6}, deadline_s=0.5, next_s=None
    )
    assert opened().receive(packet(op="burst-end", job="j", step=7)) == (AnnounceEnd(job="j", step=7),)


@pytest.mark.parametrize(
    "fields",
    [
        {"bytes": {}},
        {"bytes": {"nowhere.example": 1}},
        {"bytes": {"10.0.0.2": -1}},
        {"bytes": {"10.0.0.2": 1.5}},
        {"bytes": {"10.0.0.2": True}},
        {"bytes": {"10.0.0.2": 2**60}},
        {"deadline_s": -1},
        {"deadline_s": "soon"},
        {"deadline_s": None},
        {"step": -1},
        {"job": "x" * 129},
    ],
)
def test_a_burst_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    message = {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"10.0.0.2": 5}, "deadline_s": 0.5, **fields}
    assert code(opened().receive(encode(message))) == "bad-field"


def test_a_need_is_read_and_at_risk_may_be_a_number_or_a_word() -> None:
    (need,) = opened().receive(packet(op="need", id=3, backlog_bytes=5, deadline_s=60, replicas_at_risk=True))
    assert need == Declare(
        number=3, backlog_bytes=5, deadline_s=60.0, replicas_at_risk=1, bytes_by_destination={}
    )  # fmt: skip
    (need,) = opened().receive(packet(op="need", id=3, backlog_bytes=5, replicas_at_risk=7, bytes={"10.0.0.2": 5}))
    assert need == Declare(
        number=3, backlog_bytes=5, deadline_s=None, replicas_at_risk=7, bytes_by_destination={"10.0.0.2": 5}
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"backlog_bytes": None},
        {"backlog_bytes": -1},
        {"backlog_bytes": 2**60},
        {"backlog_bytes": 1.5},
        {"deadline_s": -1},
        {"deadline_s": "soon"},
        {"replicas_at_risk": -1},
        {"replicas_at_risk": 2**60},
        {"replicas_at_risk": "many"},
        {"bytes": {}},
        {"bytes": {"nowhere.example": 1}},
        {"id": "x"},
    ],
)
def test_a_need_that_cannot_be_is_refused(fields: dict[str, Any]) -> None:
    message = {"op": "need", "id": 2, "backlog_bytes": 5, "deadline_s": 0.5, **fields}
    assert code(opened().receive(encode(message))) == "bad-field"


def test_a_report_is_read_and_what_was_not_measured_is_none() -> None:
    (report,) = opened().receive(
        packet(op="report", connections=[{"peer": "[fd00::2]:4242", "rtt_s": 0.004, "lost_packets": 1}])
    )
    assert isinstance(report, Report)
    (connection,) = report.connections
    peer = connection.peer
    assert (peer.address, peer.port, connection.traffic_class) == ("fd00::2", 4242, "compute")
    assert (connection.rtt_s, connection.lost_packets, connection.delivered_bytes) == (0.004, 1, None)


@pytest.mark.parametrize("value", [10**400, -(10**400)])
@pytest.mark.parametrize("key", ["rtt_s", "delivered_bytes", "delivery_rate_bits_per_s"])
def test_a_figure_that_no_float_can_hold_is_refused(key: str, value: int) -> None:
    (action,) = opened().receive(packet(op="report", connections=[{"peer": "10.0.0.2:1", key: value}]))
    assert code((action,)) == "bad-field"


@pytest.mark.parametrize("peer", [None, 5, "", "10.0.0.2", "10.0.0.2:99999", "host:1", "10.0.0.2:-1", "10.0.0.2:²"])
def test_a_report_with_a_peer_that_is_no_endpoint_is_refused(peer: object) -> None:
    assert code(opened().receive(packet(op="report", connections=[{"peer": peer}]))) == "bad-field"


def test_enter_names_a_class() -> None:
    assert opened().receive(packet(op="enter", id=1, **{"class": "storage"})) == (
        Enter(number=1, traffic_class="storage"),
    )


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)  # the first text is slow to draw
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "op", "id", "class", "role", "job", "step", "bytes", "deadline_s", "next_s", "connections", "v",
                "backlog_bytes", "replicas_at_risk",
            ]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
            | st.sampled_from(["hello", "register", "burst", "burst-end", "need", "report", "enter", "bye"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        ),
    ),
    st.integers(min_value=0, max_value=9),
)  # fmt: skip
def test_no_message_breaks_the_machine(message: dict[str, Any], descriptors: int) -> None:
    for machine in (SessionProtocol(name="s", host="h"), opened()):
        actions = machine.receive(json.dumps(message).encode(), descriptors=descriptors)
        assert actions
        for action in actions:
            if isinstance(action, Reply):
                assert decode(write(action))


_ANY_NUMBER = st.integers() | st.integers(min_value=300, max_value=4000).map(lambda n: 10**n) | st.floats()


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from(["deadline_s", "next_s", "step", "id"]), _ANY_NUMBER),
    st.dictionaries(
        st.sampled_from(
            ["rtt_s", "rtt_latest_s", "rtt_s_min", "one_way_s", "one_way_age_s", "inbound_s", "inbound_age_s",
             "delivered_bytes", "received_bytes", "sent_packets", "lost_packets", "delivery_rate_bits_per_s"]
        ),
        _ANY_NUMBER,
    ),
)  # fmt: skip
def test_no_number_breaks_a_burst_or_a_report(burst: dict[str, Any], connection: dict[str, Any]) -> None:
    machine = opened()
    burst = {"op": "burst", "id": 1, "job": "j", "step": 1, "bytes": {"10.0.0.2": 5}, "deadline_s": 1, **burst}
    report = {"op": "report", "connections": [{"peer": "10.0.0.2:1", **connection}]}
    for message in (burst, report):
        assert machine.receive(json.dumps(message).encode()) is not None


@pytest.mark.parametrize("key", ["one_way_s", "inbound_s"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_peer_s_clock_that_is_far_off_is_held_to_the_most_and_costs_no_report(key: str, sign: float) -> None:
    connections = [{"peer": "10.0.0.2:1", key: sign * 1e11}, {"peer": "10.0.0.3:1", "rtt_s": 0.001}]
    report = read(encode({"op": "report", "connections": connections}))
    assert isinstance(report, Report)
    assert getattr(report.connections[0], key) == sign * CLOCK_S_MAX
    assert report.connections[1].rtt_s == 0.001


def test_round_trips_and_ages_are_cut_to_an_hour() -> None:
    fields = ("rtt_s", "rtt_latest_s", "rtt_s_min", "one_way_age_s", "inbound_age_s")
    report = read(encode({"op": "report", "connections": [{"peer": "10.0.0.2:1", **dict.fromkeys(fields, 1e9)}]}))
    assert isinstance(report, Report)
    assert {getattr(report.connections[0], name) for name in fields} == {3600.0}


@pytest.mark.parametrize("address", ["10.0.0.1%" + "n" * 200, "[" * 200 + "10.0.0.1"])
def test_long_addresses_are_refused_and_not_kept(address: str) -> None:
    burst = {"op": "burst", "id": 1, "job": "j", "step": 1, "bytes": {address: 1}, "deadline_s": 1.0}
    report = {"op": "report", "connections": [{"peer": address + ":1"}]}
    kept = messages._address.cache_info().currsize, messages._endpoint.cache_info().currsize
    for message in (burst, report):
        assert isinstance(read(encode(message)), ErrorReply)
    assert (messages._address.cache_info().currsize, messages._endpoint.cache_info().currsize) == kept


@given(st.binary(max_size=200))
def test_no_bytes_break_the_machine(raw: bytes) -> None:
    assert opened().receive(raw)


CONNECTION = {
    "peer": "10.0.0.2:4242", "class": "storage", "rtt_s": 0.004, "rtt_latest_s": 0.005, "rtt_s_min": 0.003,
    "one_way_s": -7.5, "one_way_age_s": 0.1, "inbound_s": 8.5, "inbound_age_s": 0.2, "delivered_bytes": 1,
    "received_bytes": 2, "sent_packets": 3, "lost_packets": 4, "delivery_rate_bits_per_s": 5,
    "application_limited": True,
}  # fmt: skip
FROM_CLIENTS = [
    HELLO,
    REGISTER,
    {"op": "burst", "id": 2, "job": "j", "step": 7, "bytes": {"10.0.0.2": 4000000}, "deadline_s": 0.5, "next_s": 0.8},
    {"op": "burst-end", "job": "j", "step": 7},
    {"op": "need", "id": 4, "backlog_bytes": 5, "deadline_s": 600.0, "replicas_at_risk": 12, "bytes": {"fd00::2": 1}},
    {"op": "report", "connections": [CONNECTION]},
    {"op": "enter", "id": 3, "class": "storage"},
    {"op": "bye"},
]
FROM_BROKER: list[tuple[Reply, dict[str, Any]]] = [
    (Welcome(v=1, session="s-1", host="h"), {"op": "welcome", "v": 1, "session": "s-1", "host": "h"}),
    (Registered(number=1, flows=["f-3"]), {"op": "registered", "id": 1, "flows": ["f-3"]}),
    (Registered(number=1, flows=[], note="n"), {"op": "registered", "id": 1, "flows": [], "note": "n"}),
    (Noted(number=4), {"op": "noted", "id": 4}),
    (Entered(number=3, traffic_class="storage"), {"op": "entered", "id": 3, "class": "storage"}),
    (ErrorReply(code="c", text="t"), {"op": "error", "code": "c", "text": "t"}),
    (ErrorReply(code="c", text="t", number=2), {"op": "error", "code": "c", "text": "t", "id": 2}),
]


@pytest.mark.parametrize("message", FROM_CLIENTS, ids=lambda message: message["op"])
def test_what_the_client_writes_the_broker_reads_key_by_key(message: dict[str, Any]) -> None:
    """The client has no msgspec: its encoder is another one."""
    found = read(encode(message))
    assert not isinstance(found, ErrorReply), found
    known = {key: value for key, value in message.items() if key != "pid"}
    assert json.loads(msgspec.json.encode(found, enc_hook=str)) == known


@pytest.mark.parametrize(("reply", "expected"), FROM_BROKER, ids=lambda one: one.get("op") if type(one) is dict else "")
def test_what_the_broker_writes_the_client_reads(reply: Reply, expected: dict[str, Any]) -> None:
    assert decode(write(reply)) == expected


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {**REGISTER, "class": "turbo"},
            "Invalid enum value 'turbo' - at `$.class`; one of control, compute",
        ),
        ({"op": "burst-end", "job": "j"}, "burst-end: Object missing required field `step`"),
        ({"op": "need", "id": 1, "backlog_bytes": -1}, "need: Expected `int` >= 0 - at `$.backlog_bytes`"),
        (
            {"op": "report", "connections": [{"peer": "x:1"}]},
            "IPv4 or IPv6 address - at `$.connections[0].peer`",
        ),
    ],
)
def test_an_error_says_which_field_is_wrong_and_what_it_must_be(message: dict[str, Any], text: str) -> None:
    found = read(encode(message))
    assert isinstance(found, ErrorReply)
    assert text in found.text


def test_an_error_is_short_whatever_was_sent() -> None:
    found = read(packet(**{**REGISTER, "class": "x\x1b" * 10_000}))
    assert isinstance(found, ErrorReply)
    assert len(found.text) <= 1000
    assert "\x1b" not in found.text


def test_a_message_longer_than_a_packet_is_not_sent() -> None:
    with pytest.raises(MessageError, match="at most"):
        encode({"op": "report", "text": "x" * 70_000})
    with pytest.raises(MessageError, match="plain JSON"):
        encode({"rtt_s": float("nan")})
    assert decode(encode(HELLO)) == HELLO
