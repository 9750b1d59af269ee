"""What a session client may say, checked field by field before anything believes it.

`docs/reference/broker-api.md` is the specification.

Each `read_*` takes a decoded JSON object and gives a frozen value, or raises `MessageError` whose code and text go back
to the client. Unknown keys are ignored, so that a newer client can say more. Every number is finite and bounded.
"""

from __future__ import annotations

import functools
import ipaddress
import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from broker.client.protocol import CONNECTIONS_PER_REPORT, DESCRIPTORS_MAX, NAME_BYTES_MAX, VERSION, MessageError
from broker.model.connection_report import ConnectionReport
from broker.policy.types import CLASS_NAMES

ROLES = ("gradient", "bulk", "storage", "control", "other")
DESTINATIONS_MAX = 1024
"""Destinations of one burst: more than any group of ranks that fits one packet."""
BYTES_MAX = 2**50
"""A petabyte: beyond every burst and every connection's life so far; keeps sums far from overflow."""
DURATION_S_MAX = 3600.0
"""Deadlines and forecasts beyond an hour say nothing that a broker could use."""
CLOCK_S_MAX = 1e10
"""Between two hosts' monotonic clocks: three hundred years of uptime."""
RATE_BITS_PER_S_MAX = 10**13
"""10 Tbit/s, as in the configuration."""


class Hello(Struct, frozen=True):
    """The first message: who speaks. `pid` is only what the client says; the kernel's word counts.

    `rates`: it wants to be told the rate that it may send at, unasked, and reads what it is told.
    """

    client: str
    job: str
    rates: bool = False


class Register(Struct, frozen=True):
    """Mark the sockets that came with this packet."""

    number: int
    traffic_class: str
    role: str


class Announce(Struct, frozen=True):
    """A burst begins: bytes to each literal address, seconds until they should be there, seconds until the next."""

    number: int | None
    job: str
    step: int
    bytes_by_destination: Mapping[str, int]
    deadline_s: float
    next_s: float | None


class AnnounceEnd(Struct, frozen=True):
    """The burst of this step is over."""

    job: str
    step: int


class Declare(Struct, frozen=True):
    """What a storage program has to do: its backlog, seconds until it has to be done, objects with too few copies.

    `bytes_by_destination` is the backlog by literal address, where the program says it; else empty. A backlog of 0 ends
    the need.
    """

    number: int
    backlog_bytes: int
    deadline_s: float | None
    replicas_at_risk: int
    bytes_by_destination: Mapping[str, int]


class Report(Struct, frozen=True):
    """Everything that the client measures, or a part of it: each connection replaces its former figures."""

    connections: tuple[ConnectionReport, ...]


class Enter(Struct, frozen=True):
    """Move the client's own process into the cgroup of a class."""

    number: int
    traffic_class: str


class Bye(Struct, frozen=True):
    """The client is done."""


Message = Hello | Register | Announce | AnnounceEnd | Declare | Report | Enter | Bye


def read(message: Mapping[str, Any]) -> Message:
    """Read one message.

    Raises:
        MessageError: unknown operation, or a field that is missing, of the wrong type or out of bounds.
    """
    operation = message.get("op")
    reader = _READERS.get(operation) if isinstance(operation, str) else None
    if reader is None:
        raise MessageError("unknown-operation", f"op must be one of {', '.join(sorted(_READERS))}")
    result: Message = reader(message)
    return result


def _hello(message: Mapping[str, Any]) -> Hello:
    version = message.get("v")
    if version != VERSION:
        raise MessageError("unknown-version", f"v must be {VERSION}")
    return Hello(client=_name(message, "client"), job=_name(message, "job"), rates=message.get("rates") is True)


def _register(message: Mapping[str, Any]) -> Register:
    role = message.get("role")
    if role not in ROLES:
        raise MessageError("bad-field", f"role must be one of {', '.join(ROLES)}")
    return Register(number=_integer(message, "id", most=2**53), traffic_class=_class(message), role=str(role))


def _announce(message: Mapping[str, Any]) -> Announce:
    by_destination = _destinations(message)
    next_s = _seconds(message, "next_s", most=DURATION_S_MAX)
    deadline_s = _seconds(message, "deadline_s", most=DURATION_S_MAX)
    if deadline_s is None:
        raise MessageError("bad-field", "deadline_s is missing")
    return Announce(
        number=_integer(message, "id", most=2**53) if "id" in message else None,
        job=_name(message, "job"),
        step=_integer(message, "step", most=2**63),
        bytes_by_destination=by_destination,
        deadline_s=deadline_s,
        next_s=next_s,
    )


def _announce_end(message: Mapping[str, Any]) -> AnnounceEnd:
    return AnnounceEnd(job=_name(message, "job"), step=_integer(message, "step", most=2**63))


def _declare(message: Mapping[str, Any]) -> Declare:
    return Declare(
        number=_integer(message, "id", most=2**53),
        backlog_bytes=_integer(message, "backlog_bytes", most=BYTES_MAX),
        deadline_s=_seconds(message, "deadline_s", most=DURATION_S_MAX),
        replicas_at_risk=_replicas(message),
        bytes_by_destination=_destinations(message) if message.get("bytes") is not None else {},
    )


def _replicas(message: Mapping[str, Any]) -> int:
    """How many, or only whether any are."""
    value = message.get("replicas_at_risk", 0)
    return (
        int(value) if isinstance(value, bool) else _integer({"replicas_at_risk": value}, "replicas_at_risk", most=2**53)
    )


def _destinations(message: Mapping[str, Any]) -> Mapping[str, int]:
    destinations = message.get("bytes")
    if not isinstance(destinations, dict) or not 1 <= len(destinations) <= DESTINATIONS_MAX:
        raise MessageError("bad-field", f"bytes must map 1 to {DESTINATIONS_MAX} addresses to bytes")
    return {_address(address): _integer(destinations, address, most=BYTES_MAX) for address in destinations}


def _report(message: Mapping[str, Any]) -> Report:
    connections = message.get("connections")
    if not isinstance(connections, list) or len(connections) > CONNECTIONS_PER_REPORT:
        raise MessageError("bad-field", f"connections must be a list of at most {CONNECTIONS_PER_REPORT}")
    return Report(tuple(_connection(item) for item in connections))


def _connection(item: object) -> ConnectionReport:
    if not isinstance(item, dict):
        raise MessageError("bad-field", "a connection must be an object")
    peer, port = _endpoint(item.get("peer"))
    return ConnectionReport(
        peer=peer,
        port=port,
        traffic_class=_class(item) if "class" in item else "compute",
        rtt_s=_seconds(item, "rtt_s", most=DURATION_S_MAX),
        rtt_latest_s=_seconds(item, "rtt_latest_s", most=DURATION_S_MAX),
        rtt_s_min=_seconds(item, "rtt_s_min", most=DURATION_S_MAX),
        one_way_s=_seconds(item, "one_way_s", most=CLOCK_S_MAX, signed=True),
        one_way_age_s=_seconds(item, "one_way_age_s", most=DURATION_S_MAX),
        inbound_s=_seconds(item, "inbound_s", most=CLOCK_S_MAX, signed=True),
        inbound_age_s=_seconds(item, "inbound_age_s", most=DURATION_S_MAX),
        delivered_bytes=_count(item, "delivered_bytes"),
        received_bytes=_count(item, "received_bytes"),
        sent_packets=_count(item, "sent_packets"),
        lost_packets=_count(item, "lost_packets"),
        delivery_rate_bits_per_s=_count(item, "delivery_rate_bits_per_s", most=RATE_BITS_PER_S_MAX),
        application_limited=item.get("application_limited") is True,
    )


def _enter(message: Mapping[str, Any]) -> Enter:
    return Enter(number=_integer(message, "id", most=2**53), traffic_class=_class(message))


def _bye(message: Mapping[str, Any]) -> Bye:
    return Bye()


_READERS: dict[str, Any] = {
    "hello": _hello,
    "register": _register,
    "burst": _announce,
    "burst-end": _announce_end,
    "need": _declare,
    "report": _report,
    "enter": _enter,
    "bye": _bye,
}


def _class(message: Mapping[str, Any]) -> str:
    name = message.get("class")
    if name not in CLASS_NAMES:
        raise MessageError("bad-field", f"class must be one of {', '.join(CLASS_NAMES)}")
    return str(name)


def _name(message: Mapping[str, Any], key: str) -> str:
    text = message.get(key, "")
    if not isinstance(text, str) or len(text.encode(errors="surrogatepass")) > NAME_BYTES_MAX or "\x00" in text:
        raise MessageError("bad-field", f"{key} must be text of at most {NAME_BYTES_MAX} bytes")
    return text.encode(errors="replace").decode()  # JSON admits lone surrogates, which nothing later can print


def _integer(message: Mapping[str, Any], key: str, *, most: int) -> int:
    value = message.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise MessageError("bad-field", f"{key} must be an integer from 0 to {most}")
    return value


def _count(message: Mapping[str, Any], key: str, *, most: int = BYTES_MAX) -> int | None:
    return None if message.get(key) is None else _integer(message, key, most=most)


def _seconds(message: Mapping[str, Any], key: str, *, most: float, signed: bool = False) -> float | None:
    value = message.get(key)
    if value is None:
        return None
    # Compared before it is converted: JSON has integers that no float can hold. NaN fails the comparison.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -math.inf < value < math.inf:
        raise MessageError("bad-field", f"{key} must be a number of seconds")
    if value < 0 and not signed:
        raise MessageError("bad-field", f"{key} must be a number of seconds, not below 0")
    return float(max(min(value, most), -most))


def _address(text: object) -> str:
    try:
        return str(ipaddress.ip_address(str(text).split("%", 1)[0]))
    except ValueError:
        raise MessageError("bad-field", "a destination must be a literal IPv4 or IPv6 address") from None


def _endpoint(text: object) -> tuple[str, int]:
    if not isinstance(text, str) or len(text) > NAME_BYTES_MAX:
        raise MessageError("bad-field", "peer must be text: address, colon, port")
    return _parse_endpoint(text)


@functools.lru_cache(maxsize=4096)  # the same peers come ten times a second; parsing was half of a report's cost
def _parse_endpoint(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise MessageError("bad-field", "peer must be text: address, colon, port")
    return _address(address.strip("[]")), int(port)


assert DESCRIPTORS_MAX <= 253, "SCM_MAX_FD of the kernel"
